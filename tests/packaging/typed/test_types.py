"""mypy --strict and pyright accept the program of a user, and find each mistake of another. Run by ``nox -s types``."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("pyright", reason="pyright is not installed; `nox -s types` has it")

HERE = Path(__file__).parent
CHECKERS = {
    "mypy": ["mypy", "--strict", "--config-file=", "--no-error-summary"],
    "pyright": ["pyright", "--pythonpath", sys.executable],
}


def complaints(checker: str, name: str) -> list[str]:
    """Return the lines of a checker that are errors in the file."""
    command = [sys.executable, "-m", *CHECKERS[checker], name]
    answer = subprocess.run(command, cwd=HERE, capture_output=True, text=True, timeout=120, check=False)
    found = [line.strip() for line in answer.stdout.splitlines() if re.search(r"\.py:\d+.* error:", line)]
    assert answer.returncode == bool(found), answer.stdout + answer.stderr
    return found


@pytest.mark.parametrize("checker", CHECKERS)
def test_a_users_program_is_typed(checker: str) -> None:
    assert complaints(checker, "program.py") == []


@pytest.mark.parametrize("checker", CHECKERS)
def test_mistakes_are_found_where_they_are(checker: str) -> None:
    lines = (HERE / "mistakes.py").read_text().splitlines()
    wrong = {number for number, line in enumerate(lines, 1) if line.endswith("# wrong")}
    numbers = [re.search(r"\.py:(\d+)", line) for line in complaints(checker, "mistakes.py")]
    assert len(wrong) == 11
    assert {int(each[1]) for each in numbers if each is not None} == wrong
