"""Check that docstrings begin with a verb or a noun: "Return the price", "The price of a token", not "What it costs"."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = ("omni_core", "omni_qwen3", "omni_fish_s2", "plugins", "benchmarks", "docs", "examples", "tests")
QUESTION = re.compile(r"\s*(What|Who|Whether|Where|How|Which|Why|When|Nobody|Everybody)\b")


def questions(source: str) -> Iterator[tuple[int, str]]:
    """Yield the line and the beginning of each docstring, of attributes too, that begins with a question word."""
    for node in ast.walk(ast.parse(source)):
        if not (isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)):
            continue
        text = node.value.value
        if isinstance(text, str) and QUESTION.match(text):
            yield node.lineno, text.splitlines()[0]


@pytest.mark.parametrize("folder", FOLDERS)
def test_docstrings_begin_with_a_verb_or_a_noun(folder: str) -> None:
    files = [path for path in (ROOT / folder).rglob("*.py") if ".venv" not in path.parts and ".nox" not in path.parts]
    assert files
    found = [
        f"{path.relative_to(ROOT)}:{line}: {first}"
        for path in files
        for line, first in questions(path.read_text(encoding="utf-8"))
    ]
    assert not found, "\n".join(found)


def test_a_question_is_found() -> None:
    text = (
        '"""Title."""\n\nRATE = 1\n"""How fast."""\n\n\ndef f():\n    """Whether it runs."""\n    x = "What is data"\n'
    )
    assert list(questions(text)) == [(4, "How fast."), (8, "Whether it runs.")]
