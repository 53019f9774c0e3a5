"""docs/python.md: its examples run in order, and print what their comments say."""

from __future__ import annotations

import contextlib
import io
import re
from pathlib import Path
from typing import Any

import pytest

import omni_core as omni

PAGE = Path(__file__).parents[3] / "docs/python.md"


def test_the_examples_of_the_page_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    real = omni.open
    monkeypatch.setattr(omni, "open", lambda name: real(name, options={"processes": "one"}))  # starts in less time
    names: dict[str, Any] = {}
    blocks = re.findall(r"^```python\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    for block in blocks:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(block, str(PAGE), "exec"), names)
        lines = printed.getvalue().splitlines()
        expected = re.findall(r"print\([^\n]*\)  # (.*)$", block, re.MULTILINE)
        assert lines[len(lines) - len(expected) :] == expected, block
    assert (tmp_path / "reply.wav").read_bytes().startswith(b"RIFF")
