"""Cuts what a process writes into lines, bounded: a process may write any number of bytes without a line break."""

from __future__ import annotations

LONGEST_LINE = 16_384
"""Bytes of a line that are kept."""

MOST_LINES = 200
"""Lines of one piece that are kept: its last ones."""


class LogLines:
    """Takes pieces of a byte stream and gives its lines, in time linear in the size of the pieces. No IO.

    A carriage return ends a line too, as progress bars write them.
    """

    def __init__(self) -> None:
        self._begun = b""
        self._cut = 0

    def feed(self, piece: bytes) -> list[str]:
        """The lines that end in ``piece``."""
        *ended, rest = piece.replace(b"\r", b"\n").split(b"\n")
        lines = []
        if ended:
            self._extend(ended[0])
            lines += [self._take(), *(line for each in ended[1:][-MOST_LINES:] if (line := _text(each)))]
            if len(ended) - 1 > MOST_LINES:
                lines.insert(1, f"[{len(ended) - 1 - MOST_LINES} lines dropped]")
        self._extend(rest)
        return [line for line in lines if line]

    def finish(self) -> list[str]:
        """The line that has not ended, if there is one."""
        line = self._take()
        return [line] if line else []

    def _extend(self, part: bytes) -> None:
        kept = part[: LONGEST_LINE - len(self._begun)]
        self._begun += kept
        self._cut += len(part) - len(kept)

    def _take(self) -> str:
        line = _text(self._begun) + (f" [{self._cut} bytes cut]" if self._cut else "")
        self._begun, self._cut = b"", 0
        return line


def _text(line: bytes) -> str:
    cut = f" [{len(line) - LONGEST_LINE} bytes cut]" if len(line) > LONGEST_LINE else ""
    return line[:LONGEST_LINE].decode(errors="replace").rstrip() + cut
