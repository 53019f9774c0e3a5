"""The output of a batch: what is answered after a stop, half a line, another input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_cli.batch.journal import BatchError, Journal
from omni_cli.batch.lines import line_id, read_lines

TEXTS = [b'{"text": "a"}', b'{"text": "b"}', b'{"text": "a"}']


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "in.jsonl"
    path.write_bytes(b"\n\n".join(TEXTS) + b"\n")
    return path


def answer(text: bytes, **more: Any) -> dict[str, Any]:
    return {"id": line_id(text), "text": "é", **more}


def left(journal: Journal, source: Path) -> list[int]:
    return [number for number, _ in journal.resume(read_lines(source))]


def test_answered_lines_are_left_out(source: Path, tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.jsonl")
    assert left(journal, source) == [1, 3, 5], "blank lines have no answer"
    journal.append([answer(TEXTS[0]), answer(TEXTS[1], error={"type": "X"})])
    journal.close()
    again = Journal(tmp_path / "out.jsonl")
    assert left(again, source) == [5]
    assert (again.done, again.failed) == (2, 1)
    again.append([answer(TEXTS[2], id="batch_req_" + line_id(TEXTS[2]))])
    again.close()
    third = Journal(tmp_path / "out.jsonl")
    assert left(third, source) == []
    third.close()


@pytest.mark.parametrize("cut", [1, 10, 30])
def test_half_a_line_is_removed(source: Path, tmp_path: Path, cut: int) -> None:
    path = tmp_path / "out.jsonl"
    whole = json.dumps(answer(TEXTS[0])) + "\n"
    path.write_text(whole + (json.dumps(answer(TEXTS[1])) + "\n")[:-cut])
    journal = Journal(path)
    assert left(journal, source) == [3, 5]
    assert path.read_text() == whole
    journal.append([answer(TEXTS[1])])
    journal.close()
    assert len(path.read_text().splitlines()) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            json.dumps({"id": line_id(b"other"), "custom_id": "c"}) + "\n",
            r"out.jsonl:1 \(custom_id 'c'\) answers another",
        ),
        ("a poem\n", "out.jsonl:1 is no answer of `omni batch`"),
        ("".join(json.dumps(answer(text)) + "\n" for text in [*TEXTS, b"x"]), "does not have"),
    ],
)
def test_a_foreign_file_is_left_alone(source: Path, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text(text)
    journal = Journal(path)
    with pytest.raises(BatchError, match=words):
        journal.resume(read_lines(source))
    journal.close()
    assert path.read_text() == text


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "out.jsonl")
    with pytest.raises(BatchError, match="another `omni batch` writes"):
        Journal(tmp_path / "out.jsonl")
    journal.close()
    Journal(tmp_path / "out.jsonl").close()
