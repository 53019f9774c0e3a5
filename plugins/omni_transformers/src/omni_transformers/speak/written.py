"""The texts of requests, whole or still being written: they are spoken sentence by sentence while they come."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from omni_core.api import (
    IncomingMessage,
    InvalidRequestError,
    OutgoingMessage,
    ReasoningChunk,
    RequestTooLargeError,
    SentenceCutter,
    TextChunk,
    text_to_speak,
)
from omni_torch.api import StepScheduler

State = TypeVar("State")

MOST_UNSPOKEN = 1000
"""Characters of whole sentences that may wait to be spoken, about a minute of speech; with more, the writer waits."""


class Written:
    """A text, as far as it is written and not spoken.

    Args:
        whole: it came with the request; ``None``: it is still being written.
        cuts: it is spoken sentence by sentence, else as one piece.
        most_characters: of one that is still being written.
        hold: called with ``True`` when so much waits to be spoken that the writer should wait, and with ``False`` after that.
        may_be_empty: another pipeline writes it, which may have nothing to say: that is spoken as no sound.

    Attributes:
        whole: see above.
        error: of the request, raised when everything before it is spoken.
        is_speaking: a part was taken and is not spoken yet.
    """

    def __init__(
        self,
        whole: str | None,
        cuts: bool,
        most_characters: int,
        hold: Callable[[bool], None],
        may_be_empty: bool = False,
    ) -> None:
        self.whole, self._cuts, self._hold = whole, cuts, hold
        self._room = math.inf if whole is not None else most_characters
        self._most = most_characters
        self._cutter = SentenceCutter()
        self._parts: deque[str] = deque()
        self._over = self._held = False
        self._is_empty = not may_be_empty
        self.error: Exception | None = None
        self.is_speaking = False
        if whole is not None:
            self.write(TextChunk(whole))
            self.end()

    def write(self, chunk: Any) -> None:
        """Add a chunk. How the text is cut into chunks does not matter; thoughts are not spoken."""
        if self.whole is not None and self._over:
            self.error = InvalidRequestError(
                "send: this request came with its text; open one without messages to send a text in chunks"
            )
        if self._over or isinstance(chunk, ReasoningChunk):
            return
        if not isinstance(chunk, TextChunk):
            kind = type(chunk).__name__
            self._fail(InvalidRequestError(f"a chunk of a text to speak must be a TextChunk, is a {kind}"))
            return
        text = chunk.text if len(chunk.text) <= self._room else chunk.text[: int(self._room)]
        self._room -= len(text)
        self._add(self._cutter.feed(text) if self._cuts else [text])
        if len(text) < len(chunk.text):
            what = f"the text is over the limit of {self._most} characters (max_characters)"
            self._fail(RequestTooLargeError(f"{what}; the sentences before it were spoken" if self._cuts else what))

    def end(self) -> None:
        """Take in that no more is written."""
        if self._over:
            return
        self._over = True
        self._add(self._cutter.finish())
        if not any(part.strip() for part in self._parts):
            self._parts.clear()
        if self._is_empty:
            self._fail(InvalidRequestError("there is nothing to speak: inputs.messages is empty, and no text was sent"))

    def _fail(self, error: Exception) -> None:
        self._over, self.error = True, error
        if not self._cuts:
            self._parts.clear()
        self._regulate()

    def _add(self, parts: list[str]) -> None:
        self._parts += parts
        self._is_empty = self._is_empty and not any(part.strip() for part in parts)
        self._regulate()

    def _regulate(self) -> None:
        held = self._cuts and not self._over and sum(map(len, self._parts)) > MOST_UNSPOKEN
        if held != self._held and self.whole is None:
            self._held = held
            self._hold(held)

    @property
    def next(self) -> str | None:
        """The next part to speak; ``None``: there is none, or not yet."""
        if not self._parts:
            return None
        if self._cuts:
            return self._parts[0]
        return "".join(self._parts).strip() if self._over else None

    def take(self) -> str:
        """Return the next part, which is spoken from here on."""
        part = self.next
        assert part is not None
        if self._cuts:
            self._parts.popleft()
        else:
            self._parts.clear()
        self.is_speaking = True
        self._regulate()
        return part

    @property
    def is_spoken(self) -> bool:
        """True if there is nothing more to speak, and no more is written."""
        return self._over and not self._parts

    @property
    def waits(self) -> bool:
        """True if more must be written before it goes on."""
        return not self.is_speaking and not self._over and self.next is None


class TextScheduler(StepScheduler[State]):
    """A scheduler of requests whose text may still be written.

    Args:
        arguments: of the next class.
        cuts, most_characters: as of :class:`Written`.

    Attributes:
        texts: by request.
    """

    def __init__(self, *arguments: Any, cuts: bool, most_characters: int) -> None:
        super().__init__(*arguments)
        self._cuts, self._most_characters = cuts, most_characters
        self.texts: dict[str, Written] = {}

    def receive(self, message: IncomingMessage) -> None:
        name = message.request_id
        if message.type == "new_request":
            whole = text_to_speak(message.data.request)
            hold = lambda held: self.hold_input(name, held)  # noqa: E731 - of this request
            self.texts[name] = Written(
                whole, self._cuts, self._most_characters, hold, message.data.request.may_be_empty
            )
            super().receive(message)
        elif (text := self.texts.get(name)) is not None:
            if message.type == "stream_chunk":
                text.write(message.data)
            else:
                text.end()

    def can_step(self, request_id: str) -> bool:
        text = self.texts.get(request_id)
        return text is None or not text.waits

    def waiting(self, request_id: str) -> str:
        """Name what a request waits for, for a message. From any thread."""
        text = self.texts.get(request_id)
        return "more of its text" if text is not None and text.waits else ""

    def put_out(self, message: OutgoingMessage) -> None:
        if message.type != "stream":
            self.texts.pop(message.request_id, None)
        super().put_out(message)

    def forget(self, request_id: str) -> None:
        super().forget(request_id)
        self.texts.pop(request_id, None)
