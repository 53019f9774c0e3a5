"""In a process of a stage, transformers finds our functions in place of packages that are not installed."""

from __future__ import annotations

import subprocess
import sys

import pytest

STAGES = [
    "omni_transformers.words.prepare",
    "omni_transformers.words.engine",
    "omni_transformers.words.transcripts",
    "omni_transformers.recognise.whisper",
    "omni_transformers.recognise.generated",
    "omni_transformers.recognise.frames",
    "omni_transformers.speak.stage",
]


@pytest.mark.parametrize("module", [STAGES[0], *(pytest.param(each, marks=pytest.mark.full) for each in STAGES[1:])])
def test_transformers_is_imported_after_the_stand_ins(module: str) -> None:
    program = f"import {module}; from transformers import Qwen2VLVideoProcessor as found; print(found.__module__)"
    told = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout
    assert "dummy" not in told
