"""The transcript of one stream, as its tokens come: text, words and segments, each told once."""

from __future__ import annotations

from typing import Any

from attrs import frozen

from omni_core.api import Segment, TranscriptChunk, Word
from omni_transformers.recognise.text import in_order, segments, words
from omni_transformers.words.pieces import Pieces


@frozen
class Token:
    """A token that a network has written, and the seconds of the sound that it belongs to."""

    id: int
    start: float
    end: float


class Written:
    """A transcript that grows. What has no character, and words that may still go on, wait for the next tokens.

    Args:
        tokenizer: of the tokens.
        timestamps: ``none``, ``segment`` or ``word``.
        spaced: its language has spaces between words.

    Attributes:
        text, words, segments: told so far.
    """

    def __init__(self, tokenizer: Any, timestamps: str = "none", spaced: bool = True) -> None:
        self.text = ""
        self.words: list[Word] = []
        self.segments: list[Segment] = []
        self._pieces, self._timestamps, self._spaced = Pieces(tokenizer), timestamps, spaced
        self._special, self._was_special = {*tokenizer.all_special_ids}, False
        self._space = ""
        self._since: Token | None = None
        self._word: list[tuple[str, float, float]] = []
        self._later: list[Word] = []
        self._segment: list[Word] = []

    def add(self, tokens: list[Token], until: float) -> TranscriptChunk | None:
        """Take tokens; return what they add.

        Args:
            until: seconds of the sound that are heard. Words that end later are told with the next tokens.
        """
        text = ""
        for token in tokens:
            is_special, was_special = token.id in self._special, self._was_special
            self._was_special = is_special
            if is_special and was_special:  # one ends a character; a decoder would keep all of a silence
                continue
            since = self._since or token
            piece = self._pieces(token.id)
            self._since = None if piece else since
            text += piece
            if piece and self._timestamps != "none":
                self._timed((piece, since.start, token.end))
        return self._told(self._trimmed(text), until)

    def end(self, duration: float) -> TranscriptChunk | None:
        """Return what is left of a sound of ``duration`` seconds."""
        rest = self._trimmed(self._pieces.rest())
        if self._timestamps != "none":
            self._later += words(self._word, self._spaced)
            self._word = []
        return self._told(rest, duration, ended=True)

    def _trimmed(self, text: str) -> str:
        """Return new text without the space that it begins or ends with: more may follow."""
        text = self._space + text if self.text else text.lstrip()
        kept = text.rstrip()
        self._space = text[len(kept) :]
        self.text += kept
        return kept

    def _timed(self, piece: tuple[str, float, float]) -> None:
        found = words([*self._word, piece], self._spaced)
        if len(found) > 1:
            self._later += found[:-1]
            self._word = []
        self._word.append(piece)

    def _told(self, text: str, until: float, ended: bool = False) -> TranscriptChunk | None:
        count = len(self._later) if ended else next(
            (place for place, each in enumerate(self._later) if each.end > until), len(self._later)
        )  # fmt: skip
        found = in_order(self._later[:count], until, self._segment or self.words[-1:])
        del self._later[:count]
        whole: list[Segment] = []
        for each in found:
            if len(divided := segments([*self._segment, each])) > 1:
                whole += divided[:1]
                self._segment = []
            self._segment.append(each)
        if ended:
            whole += segments(self._segment)
        self.segments += whole
        found = found if self._timestamps == "word" else []
        self.words += found
        return TranscriptChunk(text, "", whole, found) if text or whole or found else None
