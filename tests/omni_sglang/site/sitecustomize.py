"""Python imports this at the start of every process that has this folder in PYTHONPATH: those of the pipelines under test."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
import cpu_shim

cpu_shim.install()
