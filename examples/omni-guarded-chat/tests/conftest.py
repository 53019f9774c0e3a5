"""Lets the processes of stages import the parts beside the tests."""

import os
from pathlib import Path

os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")])
