"""The preprocessing stage of a pipeline in which another stage writes the text: emits turns as soon as they are
complete.
"""

from __future__ import annotations

from typing import Any

from attrs import define

from omni_core.api import OmniRequest, ReasoningChunk, RequestTooLargeError, StreamingScheduler, TextChunk
from omni_fish_s2.preprocessing import Preprocessor
from omni_fish_s2.sampling import speech_sampling
from omni_fish_s2.text import TextCutter


@define(eq=False)
class _Writing:
    """The text of a request received so far."""

    request_id: str
    cutter: TextCutter
    tag: str
    characters: int = 0
    turns: int = 0


class TextStreamScheduler(StreamingScheduler[_Writing]):
    """Receives text from another stage (``str`` or :class:`TextChunk`) and emits each turn as soon as it is complete.

    Args:
        references: the voices of every request, in the format of a request's own ``references``.
    """

    def __init__(self, preprocessor: Preprocessor, references: list[dict[str, Any]]) -> None:
        super().__init__()
        self._preprocessor, self._references = preprocessor, references
        if references:
            preprocessor.opening(["."], references)  # an unreadable voice is an error at startup

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Writing:
        given = request or OmniRequest()
        speech_sampling(given)
        cutter = TextCutter(self._preprocessor.limits.segment_bytes)
        return _Writing(request_id, cutter, self._preprocessor.speaker(given))

    def on_chunk(self, state: _Writing, chunk: Any, metadata: dict[str, Any] | None) -> None:
        if isinstance(chunk, ReasoningChunk):
            return  # nobody says what is thought only
        text = chunk.text if isinstance(chunk, TextChunk) else chunk
        if not isinstance(text, str):
            raise TypeError(f"a chunk of text to speak must be str or TextChunk, is {type(text).__name__}")
        state.characters += len(text)
        most = self._preprocessor.limits.max_characters
        if state.characters > most:
            raise RequestTooLargeError(f"the text to speak is over the limit of {most} characters (max_characters)")
        self._speak(state, state.cutter.feed(state.tag + text))
        state.tag = ""

    def _speak(self, state: _Writing, turns: list[str]) -> None:
        for turn in turns:
            self._preprocessor.check(turn, "the text to speak")
            following: Any
            if state.turns:
                following = self._preprocessor.builder.following(turn)
            else:
                following = self._preprocessor.opening([turn], self._references)
            self.emit(state.request_id, following, target="semantic_ar")
            state.turns += 1

    def finish(self, request_id: str, state: _Writing) -> dict[str, Any]:
        self._speak(state, state.cutter.finish())
        return {}
