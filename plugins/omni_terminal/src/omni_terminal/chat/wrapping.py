"""Wrapping of text at words while it still comes, and the removal of what would control the terminal."""

from __future__ import annotations

import unicodedata

from rich.cells import cell_len


class WordWrap:
    """Breaks a stream of text into lines of a terminal. A word is held back until it is whole; wide characters break anywhere."""

    def __init__(self) -> None:
        self._column = 0
        self._word = ""

    @property
    def open_line(self) -> bool:
        """True if the line has text."""
        return self._column > 0 or bool(self._word)

    def feed(self, text: str, width: int) -> str:
        """Return what can be printed after ``text`` has come. ``width``: columns of the terminal."""
        made: list[str] = []
        for character in printable(text):
            if character == "\n":
                made += [self.end(width), "\n"]
                self._column = 0
            elif character == " ":
                made.append(self.end(width))
                if self._column < width:
                    made.append(" ")
                    self._column += 1
            elif cell_len(character) > 1:
                made += [self.end(width), self._placed(character, width)]
            else:
                if cell_len(self._word) >= width:  # longer than a line
                    made.append(self.end(width))
                self._word += character
        return "".join(made)

    def end(self, width: int) -> str:
        """Return what was held back."""
        word, self._word = self._word, ""
        return self._placed(word, width) if word else ""

    def _placed(self, word: str, width: int) -> str:
        cells = cell_len(word)
        if self._column and self._column + cells > width:
            self._column = cells
            return f"\n{word}"
        self._column += cells
        return word


def printable(text: str) -> str:
    """Return text without control characters, of which a model with random weights writes many; tabs become spaces."""
    text = text.replace("\t", "    ").replace("\r\n", "\n")
    if text.isprintable():
        return text
    return "".join(
        each if each == "\n" or unicodedata.category(each) != "Cc" else "\N{REPLACEMENT CHARACTER}" for each in text
    )
