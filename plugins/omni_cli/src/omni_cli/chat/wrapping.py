"""Wrapping of text at words while it still comes, and the removal of what would control the terminal."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len


class WordWrap:
    """Breaks a stream of text into lines of a terminal. Characters appear as they come: a word that turns out not to fit is
    erased and begun again on the next line. Wide characters break anywhere.
    """

    def __init__(self) -> None:
        self._column = 0
        self._word = ""

    @property
    def open_line(self) -> bool:
        """True if the line has text."""
        return self._column > 0

    def feed(self, text: str, width: int) -> str:
        """Return what to write for ``text``. ``width``: columns of the terminal; the last one stays empty, because a cursor behind
        it does not move back by whole columns."""
        return "".join(self._placed(each, width - 1) for each in printable(text))

    def _placed(self, character: str, room: int) -> str:
        if character == "\n":
            self._column, self._word = 0, ""
            return "\n"
        cells, before = cell_len(character), ""
        if character == " " and self._column >= room:
            self._word = ""
            return ""
        if self._column + cells > room:
            word = cell_len(self._word)
            if cells < 2 and 0 < word < self._column:
                before = f"\x1b[{word}D\x1b[K\n{self._word}"
                self._column = word
            else:
                before = "\n"
                self._column, self._word = 0, ""
        self._column += cells
        self._word = "" if character == " " or cells > 1 else self._word + character
        return before + character


def printable(text: str) -> str:
    """Return text without control characters, of which a model with random weights writes many; tabs become spaces."""
    text = text.replace("\t", "    ").replace("\r\n", "\n")
    if text.isprintable():
        return text
    return "".join(
        each if each == "\n" or unicodedata.category(each) != "Cc" else "\N{REPLACEMENT CHARACTER}" for each in text
    )
