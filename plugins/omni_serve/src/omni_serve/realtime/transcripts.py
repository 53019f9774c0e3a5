"""The turns of a session that are written down: while they are spoken where the recogniser listens to streams, else when they have ended.

A turn is written down under the id that its item will have. What comes of it before the item is in the conversation is words; how it ends
is told afterwards. No IO.
"""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field

from omni_serve.encoders import Samples
from omni_serve.errors import ApiError
from omni_serve.realtime.actions import Abort, Action, Feed, Finish, Listen, Transcribe
from omni_serve.realtime.audio import INPUT_RATE
from omni_serve.realtime.config import Transcription
from omni_serve.realtime.conversation import Conversation
from omni_serve.realtime.events import error_of
from omni_serve.realtime.items import Item
from omni_serve.realtime.reply import Event
from omni_serve.settings import RealtimeLimits
from omni_serve.usage import of_transcript

Step = Action | Event
"""An action that is to be done, or an event that is to be sent."""

_KIND = "conversation.item.input_audio_transcription"


@define(eq=False)
class _Turn:
    """A turn that is written down.

    Attributes:
        is_live: the recogniser listens to it.
        is_kept: its item is in the conversation.
        is_silent: words of it were sent by a request that has been given up, so that the next one may only send all of them at its end.
        waiting: samples that the recogniser has not taken.
        text: that is final.
        spoke: words of it were sent.
        guess: there are words on the client's screen that may still change.
        end: how it ended: its text or what is wrong, and what it used.
    """

    item: str
    is_live: bool = False
    is_kept: bool = False
    is_silent: bool = False
    waiting: int = 0
    text: str = ""
    spoke: bool = False
    guess: bool = False
    end: tuple[str | ApiError, Mapping[str, int]] | None = None


@define(eq=False)
class Transcripts:
    """Every public method returns what is to be done, in order.

    Args:
        conversation: of the session.
        limits: ``transcriptions`` at once; ``turn_seconds`` of sound may wait for a recogniser that is too slow.
        is_live: the recogniser listens to streams.
    """

    conversation: Conversation
    limits: RealtimeLimits
    is_live: bool
    _turns: dict[str, _Turn] = field(factory=dict, init=False)
    _open: _Turn | None = field(default=None, init=False)
    _silent: str = field(default="", init=False)

    @property
    def waiting(self) -> int:
        """Return the samples that recognisers have not taken."""
        return sum(turn.waiting for turn in self._turns.values())

    @property
    def pending(self) -> bool:
        """Return if the transcript of a turn in the conversation is still to come."""
        return any(turn.is_kept for turn in self._turns.values())

    def text(self, item: str) -> str:
        """Return what is written of a turn in progress and will not change."""
        return self._turns[item].text if item in self._turns else ""

    def hear(self, item: str, samples: Samples, wanted: Transcription) -> list[Step]:
        """Take the next sound of the turn in progress, which begins with it. Without room for one more it is written down at its end."""
        steps: list[Step] = []
        turn = self._open
        if turn is None:
            turn = self._open = _Turn(item, self.is_live and self._has_room, is_silent=item == self._silent)
            if turn.is_live:
                self._turns[item] = turn
                steps.append(Listen(item, wanted.language, wanted.prompt))
        return [*steps, *self._feed(turn, samples)]

    def end(self, item: Item, rest: Samples, wanted: Transcription | None) -> list[Step]:
        """Take the end of a turn, whose item is in the conversation now. ``rest``: its sound that has not been heard."""
        steps = [] if wanted is None or self._open is not None else self.hear(item.id, rest[:0], wanted)
        turn, self._open, self._silent = self._open or _Turn(item.id), None, ""
        turn.is_kept = True
        if turn.is_live:
            steps += self._feed(turn, rest)
            return [*steps, *([Finish(item.id)] if turn.end is None else self._told(turn))]
        if wanted is None:
            return []
        has_room, self._turns[item.id] = self._has_room, turn
        if not has_room:
            text = "Too many recordings of this session are being written down."
            turn.end = ApiError(429, text, code="overloaded"), {}
            return self._told(turn)
        return [Transcribe(item.id, item.content[0].data, wanted.language, wanted.prompt)]

    def drop(self) -> list[Step]:
        """Give up the request of the turn in progress: what the turn is changes, or how it is to be written down."""
        turn, self._open = self._open, None
        if turn is None or not turn.is_live:
            return []
        self._silent = turn.item if turn.spoke or turn.is_silent else ""
        del self._turns[turn.item]
        return [Abort(turn.item)] if turn.end is None else []

    def taken(self, item: str, count: int) -> None:
        """Take in that a recogniser has taken samples."""
        if (turn := self._turns.get(item)) is not None and turn.end is None:
            turn.waiting -= count

    def said(self, item: str, text: str, guess: str = "") -> list[Step]:
        """Take words that are final, and those that may follow and may still change: they are shown to those who read them."""
        turn = self._turns.get(item)
        if turn is not None:
            turn.text += text
        if turn is None or turn.end is not None or turn.is_silent or (turn.is_kept and self._item(item) is None):
            return []
        text = text if turn.spoke else text.lstrip()
        turn.spoke |= bool(text)
        if not (text or guess or turn.guess):
            return []
        turn.guess = bool(guess)
        event = {"type": f"{_KIND}.delta", "item_id": item, "content_index": 0, "delta": text}
        return [{**event, "x_omni_tentative": guess} if guess or not text else event]

    def written(self, item: str, text: str | ApiError, usage: Mapping[str, int]) -> list[Step]:
        """Take the transcript of a turn, or why there is none."""
        turn = self._turns.get(item)
        if turn is None or turn.end is not None:
            return []
        turn.end, turn.waiting = (text, usage), 0
        return self._told(turn) if turn.is_kept else []

    @property
    def _has_room(self) -> bool:
        return sum(turn.end is None for turn in self._turns.values()) < self.limits.transcriptions

    def _feed(self, turn: _Turn, samples: Samples) -> list[Step]:
        if not turn.is_live or turn.end is not None or not len(samples):
            return []
        turn.waiting += len(samples)
        if self.waiting <= self.limits.turn_seconds * INPUT_RATE:
            return [Feed(turn.item, samples)]
        text = f"The recogniser does not keep up: {self.limits.turn_seconds:g} s of sound wait for it (turn_seconds)."
        turn.end, turn.waiting = (ApiError(429, text, code="overloaded"), {}), 0
        return [Abort(turn.item, overrun=True)]

    def _told(self, turn: _Turn) -> list[Step]:
        """Return the event about a turn that has ended."""
        assert turn.end is not None
        del self._turns[turn.item]
        found, (text, usage) = self._item(turn.item), turn.end
        if found is None:
            return []
        where = {"item_id": turn.item, "content_index": 0}
        if isinstance(text, ApiError):
            return [{"type": f"{_KIND}.failed", **where, "error": error_of(text)}]
        found.content[0].text = text
        return [{"type": f"{_KIND}.completed", **where, "transcript": text, "usage": of_transcript(usage)}]

    def _item(self, identity: str) -> Item | None:
        return next((each for each in self.conversation.items if each.id == identity), None)
