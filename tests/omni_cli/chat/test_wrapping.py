"""Wrapping of streamed text: at words, whatever the pieces; wide characters; control characters."""

from __future__ import annotations

import re
import textwrap

import pytest

from omni_cli.chat.wrapping import WordWrap, printable

TEXT = "The quick brown fox jumps over the lazy dog.\n\nAnd a second paragraph, with a comma. End"


def wrapped(pieces: list[str], width: int) -> list[str]:
    """The lines that a terminal shows, without the column that stays empty."""
    wrap = WordWrap()
    made = "".join(wrap.feed(piece, width + 1) for piece in pieces)
    while erased := re.search(r"\x1b\[(\d+)D\x1b\[K", made):
        made = made[: erased.start() - int(erased[1])] + made[erased.end() :]
    return [line.rstrip() for line in made.split("\n")]


@pytest.mark.parametrize("size", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("width", [12, 20, 80])
def test_lines_break_between_words(size: int, width: int) -> None:
    pieces = [TEXT[start : start + size] for start in range(0, len(TEXT), size)]
    expected = [line for paragraph in TEXT.split("\n") for line in textwrap.wrap(paragraph, width) or [""]]
    assert wrapped(pieces, width) == expected


def test_a_word_longer_than_a_line_is_not_lost() -> None:
    assert "".join(wrapped(["see ", "x" * 25, " end"], 10)) == "see" + "x" * 25 + " end"
    assert max(map(len, wrapped(["x" * 25], 10))) == 10


def test_wide_characters_break_anywhere() -> None:
    assert wrapped(["你好世界再见"], 8) == ["你好世界", "再见"]


def test_an_open_line_is_known() -> None:
    wrap = WordWrap()
    assert not wrap.open_line
    wrap.feed("word", 80)
    assert wrap.open_line
    wrap.feed("\n", 80)
    assert not wrap.open_line


def test_nothing_controls_the_terminal() -> None:
    assert printable("a\x1b[31mb\x07\tc\r\nd\u009b") == "a\ufffd[31mb\ufffd    c\nd\ufffd"
    assert printable("grüße 你好 🙂") == "grüße 你好 🙂"
