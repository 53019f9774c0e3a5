"""Stop strings: finds the end of a growing text at the first of several strings. Imports no torch."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Sequence


class StopStrings:
    """A text that grows by pieces and ends before the first stop string in it, however it is cut into pieces.

    Attributes:
        text: all pieces so far.
        end: index in ``text`` of the stop string that was completed first (of two, the longer one); ``None`` so far.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        self._stops = list(stops)
        self._longest = max(map(len, self._stops), default=0)
        self.text = ""
        self.end: int | None = None

    def feed(self, piece: str) -> None:
        """Append a piece."""
        begin = max(0, len(self.text) - self._longest + 1)
        self.text += piece
        if self.end is None:
            found = [(index + len(stop), index) for stop in self._stops if (index := self.text.find(stop, begin)) >= 0]
            self.end = min(found)[1] if found else None

    @property
    def safe(self) -> int:
        """Return the number of characters that precede every stop string, whatever follows: the rest may be the
        beginning of one.
        """
        if self.end is not None:
            return self.end
        for length in range(min(self._longest - 1, len(self.text)), 0, -1):
            tail = self.text[-length:]
            if any(stop.startswith(tail) for stop in self._stops):
                return len(self.text) - length
        return len(self.text)


class StopTokens:
    """The same for token ids: tells whether a reply has ended, and which of its tokens precede the stop string.

    Args:
        stops: the stop strings.
        decoder: makes a function from one id at a time to the text that it completes (``None`` or empty if none).
    """

    def __init__(self, stops: Sequence[str], decoder: Callable[[], Callable[[int], str | None]]) -> None:
        self._stops, self._decoder = stops, decoder
        self._restart()

    def _restart(self) -> None:
        self._ids: list[int] = []
        self._ends: list[int] = []
        self._text, self._step = StopStrings(self._stops), self._decoder()

    def ended(self, ids: Sequence[int]) -> bool:
        """Return True if the text of ``ids``, the whole reply so far, contains a stop string. Ids may be removed and
        replaced.
        """
        if list(ids[: len(self._ids)]) != self._ids:
            self._restart()
        for token in ids[len(self._ids) :]:
            self._ids.append(token)
            piece = self._step(token)
            if piece:
                self._text.feed(piece)
                # A character may take several tokens, which all end where it does.
                self._ends += [len(self._text.text)] * (len(self._ids) - len(self._ends))
        return self.found

    @property
    def found(self) -> bool:
        """True once a stop string was found."""
        return self._text.end is not None

    @property
    def safe(self) -> int:
        """Return the number of leading tokens that precede every stop string, whatever follows."""
        return bisect_right(self._ends, self._text.safe)
