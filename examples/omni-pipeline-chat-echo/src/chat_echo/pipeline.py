"""Three stages that say back what they hear.

``listen`` splits a message into words and its ending, and hands both on to two stages (fan-out). ``think`` gets the words
alone (a projection) and streams them one by one (a scheduler). ``speak`` streams them on to the client as they come, and
adds the ending when the payloads of both others are there (fan-in).
"""

from __future__ import annotations

from typing import Any

from attrs import define, field

from omni_core.api import (
    IncomingMessage,
    InvalidRequestError,
    LoopScheduler,
    OmniRequest,
    OutgoingMessage,
    PipelineConfig,
    StageConfig,
    StagePayload,
    StreamingScheduler,
    TextChunk,
    TextResult,
    text_of,
)


def no_model() -> tuple[str, str]:
    """Return the model path of ``omni run`` without ``--model``, and a notice about it."""
    return "none", "The echo needs no model."


def chat_echo(model_path: str, pause: float = 0.02) -> PipelineConfig:
    """The topology. ``pause``: seconds between two words."""
    stages = [
        StageConfig(
            name="listen",
            process="chat",
            factory="chat_echo.pipeline:listen",
            next=["think", "speak"],
            project_payload={"think": "chat-echo.words"},
        ),
        StageConfig(
            name="think",
            process="chat",
            factory="chat-echo.turns",
            factory_args={"pause": pause},
            next="speak",
            stream_to=["speak"],
        ),
        StageConfig(
            name="speak",
            process="chat",
            factory="chat_echo.pipeline:Speak",
            wait_for=["listen", "think"],
            merge_fn="chat_echo.pipeline:both",
            terminal=True,
        ),
    ]
    return PipelineConfig(model_path=model_path, name="chat-echo", stages=stages)


def listen(payload: StagePayload) -> dict[str, Any]:
    """The words of the last message, and the punctuation at its end.

    Raises:
        InvalidRequestError: it has no words. Only this request fails, with this message.
    """
    text = text_of(payload.request.inputs["messages"][-1]).strip()
    spoken = text.rstrip("?!.")
    if not spoken.split():
        raise InvalidRequestError("there is nothing to say back; give some words with --text")
    return {"words": spoken.split(), "ending": text[len(spoken) :]}


def words_only(payload: StagePayload) -> dict[str, Any]:
    """The projection to ``think``. Other stages get the payload too, so what is handed on is new."""
    return {"words": payload.data["words"]}


@define
class Speech:
    """One request: its words, and how many of them were said."""

    words: list[str]
    said: int = 0


class TakeTurns(LoopScheduler):
    """Streams one word of every request in turn, so that no request waits behind a long message.

    The contract of a scheduler is two queues, ``start`` (which runs in a thread of its own until ``stop``), ``stop`` and
    ``abort``. ``LoopScheduler`` has them all: one turn of the loop is left to write, and what to drop after an abort.
    """

    def __init__(self, pause: float = 0.0) -> None:
        super().__init__()
        self._pause = pause
        self._open: dict[str, Speech] = {}

    def turn(self) -> bool:
        message = self.inbox.get(timeout=self._pause if self._open else None)  # asleep while there is nothing to say
        if message is not None and message.request_id:
            self._begin(message)
        self.drop_aborted()
        if message is None:
            self._take_turns()
        return not self.inbox.closed

    def forget(self, request_id: str) -> None:
        self._open.pop(request_id, None)

    def _begin(self, message: IncomingMessage) -> None:
        try:
            self._open[message.request_id] = Speech(list(message.data.data["words"]))
        except BaseException as error:  # whatever it is, it is this request's alone
            self.put_out(OutgoingMessage(message.request_id, "error", error))

    def _take_turns(self) -> None:
        for request_id, speech in list(self._open.items()):
            if speech.said < len(speech.words):
                self.put_out(OutgoingMessage(request_id, "stream", speech.words[speech.said]))
                speech.said += 1
            else:
                del self._open[request_id]
                self.put_out(OutgoingMessage(request_id, "result", {"count": speech.said}))


def both(payloads: dict[str, StagePayload]) -> dict[str, Any]:
    """The fan-in: what ``speak`` gets once ``listen`` and ``think`` have both handed on their payloads."""
    return {"ending": payloads["listen"].data["ending"], "count": payloads["think"].data["count"]}


@define
class Reply:
    """One request: what was said so far, and what the fan-in brought."""

    request_id: str
    pieces: list[str] = field(factory=list)
    ending: str = ""
    count: int = 0


class Speak(StreamingScheduler[Reply]):
    """Streams text to the client as words come; the base class keeps a state per request, and calls ``finish`` at the end."""

    def __init__(self) -> None:
        super().__init__(sources=("think",))

    def new_state(self, request_id: str, request: OmniRequest | None) -> Reply:
        return Reply(request_id)

    def on_chunk(self, state: Reply, chunk: Any, metadata: dict[str, Any] | None) -> None:
        self._say(state, f" {chunk}" if state.pieces else f"You said: {chunk}")

    def on_payload(self, state: Reply, payload: StagePayload) -> None:
        state.ending, state.count = payload.data["ending"], payload.data["count"]

    def finish(self, request_id: str, state: Reply) -> TextResult:
        if state.ending:
            self._say(state, state.ending)
        return TextResult("".join(state.pieces), usage={"words": state.count})

    def _say(self, state: Reply, piece: str) -> None:
        state.pieces.append(piece)
        self.emit(state.request_id, TextChunk(piece))
