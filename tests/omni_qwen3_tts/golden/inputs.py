"""Writes what ``make_golden.py`` reads: ``python inputs.py FOLDER``, where our packages are installed."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "helpers"))
from qwen3_tts_cases import SHAPES

from omni_testing.tiny.qwen3_tts import write_tiny_checkpoint

if __name__ == "__main__":
    for shape in SHAPES:
        write_tiny_checkpoint(Path(sys.argv[1]) / shape, shape=shape)
