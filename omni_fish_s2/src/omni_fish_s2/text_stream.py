"""The scheduler of preprocessing: prompts of whole texts, and of texts that are still being written, turn by turn."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from attrs import define, field

from omni_core.api import (
    Aside,
    InvalidRequestError,
    OmniRequest,
    OutgoingMessage,
    ReasoningChunk,
    RequestTooLargeError,
    StagePayload,
    StreamingScheduler,
    TextChunk,
)
from omni_fish_s2.payloads import SpeechInputs, TextError
from omni_fish_s2.preprocessing import Preprocessor, takes_long
from omni_fish_s2.prompt import Voice
from omni_fish_s2.sampling import speech_sampling
from omni_fish_s2.text import TextCutter

THREADS = 4
"""Requests whose recordings of voices are encoded at once."""


@define(eq=False)
class _Text:
    """A request.

    Attributes:
        whole: its payload, if its text came with it.
        aside: what is computed in another thread: of a whole text the result, else the voices.
        turns: those that are complete, and not handed on.
        spoken: number of turns handed on.
        may_be_empty: another stage writes the text, which may have nothing to say.
        error: of the text, after the turns that are complete; ``is_told``: it was handed on.
    """

    request_id: str
    cutter: TextCutter
    tag: str
    whole: StagePayload | None = None
    aside: Future[Any] | None = None
    turns: list[str] = field(factory=list)
    characters: int = 0
    spoken: int = 0
    may_be_empty: bool = True
    error: InvalidRequestError | None = None
    is_told: bool = False

    @property
    def waits(self) -> bool:
        return self.aside is not None and not self.aside.done()


class PreprocessingScheduler(StreamingScheduler[_Text]):
    """Makes the prompt of a whole text, or emits each turn of one that is still being written as soon as it is complete.

    Requests that bring recordings of voices are computed in further threads, so that the others do not wait.

    Args:
        text_stream: another stage writes the text of every request (``str`` or :class:`TextChunk`).
        references: with a text stream, the voices of every request, in the format of a request's own ``references``.

    Attributes:
        enter_thread: see :class:`~omni_core.scheduling.base.Scheduler`.
    """

    def __init__(self, preprocessor: Preprocessor, text_stream: bool, references: list[dict[str, Any]]) -> None:
        super().__init__()
        self._preprocessor, self._text_stream = preprocessor, text_stream
        self._voices = preprocessor.voices_of(references)  # an unreadable voice is an error at startup
        self.enter_thread: Callable[[], None] = lambda: None
        self._aside = Aside(self, THREADS)

    def start(self) -> None:
        try:
            super().start()
        finally:
            self._aside.close()

    def statistics(self) -> dict[str, float]:
        voices = self._preprocessor.voices
        return {
            **super().statistics(),
            "voices_encoded": float(voices.encoded),
            "voices_found": float(voices.found),
            "cpu_seconds": self._aside.cpu_seconds,
        }

    def running_computes(self) -> dict[str, float]:
        """See :class:`~omni_core.scheduling.base.Scheduler`."""
        return self._aside.running

    def flush_caches(self) -> None:
        """Forget the voices that were encoded before. From any thread."""
        self._preprocessor.voices.clear()

    def forget(self, request_id: str) -> None:
        try:
            aside = self.state_of(request_id).aside
        except KeyError:
            return
        super().forget(request_id)
        if aside is not None:
            aside.cancel()

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Text:
        given = request or OmniRequest()
        speech_sampling(given)  # invalid parameters fail the request before a voice is encoded
        cutter = TextCutter(self._preprocessor.limits.segment_bytes)
        return _Text(request_id, cutter, self._preprocessor.speaker(given))

    def on_payload(self, state: _Text, payload: StagePayload) -> None:
        if self._text_stream:
            return
        if not payload.request.is_streamed:
            state.whole = payload
            if takes_long(payload):
                state.aside = self._aside.submit(state.request_id, partial(self._preprocessor, payload))
            return
        state.may_be_empty = payload.request.may_be_empty
        if takes_long(payload):
            compute = partial(self._preprocessor.voices_of, payload.request.inputs["references"])
            state.aside = self._aside.submit(state.request_id, compute)

    def on_chunk(self, state: _Text, chunk: Any, metadata: dict[str, Any] | None) -> None:
        if isinstance(chunk, ReasoningChunk):
            return  # nobody says what is thought only
        if state.whole is not None:
            raise InvalidRequestError(
                "send: this request came with its text; open one without messages to send a text in chunks"
            )
        text = chunk.text if isinstance(chunk, TextChunk) else chunk
        if not isinstance(text, str):
            raise TypeError(f"a chunk of text to speak must be str or TextChunk, is {type(text).__name__}")
        if state.error is not None:
            return
        most = self._preprocessor.limits.max_characters
        room = most - state.characters
        state.characters += len(text)
        state.turns += state.cutter.feed(state.tag + text[:room])
        state.tag = ""
        if len(text) > room:
            state.error = RequestTooLargeError(
                f"the text to speak is over the limit of {most} characters (max_characters)"
            )

    def step(self, states: dict[str, _Text]) -> dict[str, BaseException]:
        failed: dict[str, BaseException] = {}
        for request_id, state in states.items():
            if state.waits:
                self.unfinished[request_id] = None
                continue
            self.unfinished.pop(request_id, None)
            try:
                self._aside.timed(request_id, partial(self._hand_on, state))
            except BaseException as error:
                failed[request_id] = error
        return failed

    def _hand_on(self, state: _Text) -> None:
        """Hand on a whole text as the request's result, or the turns that are complete."""
        if state.whole is not None:
            inputs = self._preprocessor(state.whole) if state.aside is None else state.aside.result()
            self.forget(state.request_id)
            self.put_out(OutgoingMessage(state.request_id, "result", inputs))
            return
        turns, state.turns = state.turns, []
        for turn in turns:
            try:
                self._preprocessor.check(turn, "the text to speak")
            except InvalidRequestError as error:
                state.error = error
                break
            following: Any
            if state.spoken:
                following = self._preprocessor.builder.following(turn)
            else:
                voices: list[Voice] = self._voices if state.aside is None else state.aside.result()
                following = self._preprocessor.opening([turn], voices)
            self.emit(state.request_id, following, target="semantic_ar")
            state.spoken += 1
        if state.error is not None and not state.is_told:
            if not state.spoken:
                raise state.error
            too_large = isinstance(state.error, RequestTooLargeError)
            self.emit(state.request_id, TextError(message=str(state.error), too_large=too_large), target="semantic_ar")
            state.is_told = True

    def finish(self, request_id: str, state: _Text) -> SpeechInputs:
        if state.error is None:
            state.turns += state.cutter.finish()
        self._aside.timed(request_id, partial(self._hand_on, state))
        if not state.spoken and not state.may_be_empty:
            raise InvalidRequestError("there is no text to speak: inputs.messages is empty, and no text was sent")
        return SpeechInputs()


def ends_stream_to(request_id: str, payload: StagePayload) -> list[str]:
    """Return the stages that got turns: of a whole text, none did."""
    return [] if "token_ids" in payload.data else ["semantic_ar"]
