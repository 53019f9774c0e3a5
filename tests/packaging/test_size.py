"""The core stays small enough to be read in one sitting."""

from __future__ import annotations

import ast
from pathlib import Path

CORE = Path(__file__).parents[2] / "omni_core/src/omni_core"

MOST_LINES_OF_CODE = 9_500
"""Lines of the core without blank lines, comments and docstrings."""

MOST_LINES_OF_A_FILE = 400


def lines_of_code(text: str) -> int:
    """Count the lines that are neither blank nor a comment nor part of a docstring (of any string that is a statement)."""
    lines = text.splitlines()
    skipped = {number for number, line in enumerate(lines, 1) if not line.strip() or line.strip().startswith("#")}
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            skipped.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    return len(lines) - len(skipped)


def test_lines_of_code_are_counted_without_comments_and_docstrings() -> None:
    text = '"""Title.\n\nText.\n"""\n\n# why\nNAME = "x"\n"""Its docstring."""\n\ndef f():\n    return (\n        1\n    )  # why\n'
    assert lines_of_code(text) == 5


def test_the_core_has_few_lines_of_code() -> None:
    counts = {str(path.relative_to(CORE)): lines_of_code(path.read_text()) for path in CORE.rglob("*.py")}
    largest = sorted(counts, key=counts.__getitem__, reverse=True)[:5]
    assert sum(counts.values()) <= MOST_LINES_OF_CODE, (
        f"the largest files: {[(name, counts[name]) for name in largest]}"
    )


def test_no_file_of_the_core_is_long() -> None:
    lengths = {str(path.relative_to(CORE)): len(path.read_text().splitlines()) for path in CORE.rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length > MOST_LINES_OF_A_FILE} == {}
