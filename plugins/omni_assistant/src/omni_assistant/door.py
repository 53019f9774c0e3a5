"""The entry stage: recordings go to the recogniser, messages to the language model, where transcripts take the place of recordings.

A text that is to be spoken as it is goes to the voice alone. Its results are plain data: ``to``, the stages that get something;
``recordings``, a message for each; ``inputs`` of the language model, in which a part is ``None`` where a recording was; ``places``, message
and part of each; ``waits``, the stages whose results make the inputs; ``speech``, the inputs of the voice, without a message where the
language model writes it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attrs import evolve

from omni_core.api import (
    SPEECH,
    InvalidRequestError,
    OmniRequest,
    Scheduler,
    SimpleScheduler,
    StagePayload,
    StreamingScheduler,
)

LIVE = "live"


def create_door(**stages: Any) -> Scheduler:
    """Return the stage for whole requests. Arguments as of :func:`opened`."""
    return SimpleScheduler(lambda payload: opened(payload, **stages))


class Door(StreamingScheduler[dict[str, Any]]):
    """The stage where the recogniser hears sound that is still coming: chunks are passed on. Arguments as of :func:`opened`."""

    def __init__(self, **stages: Any) -> None:
        super().__init__()
        self._stages = stages

    def new_state(self, request_id: str, request: OmniRequest | None) -> dict[str, Any]:
        return {"id": request_id, "data": None}

    def on_payload(self, state: dict[str, Any], payload: StagePayload) -> None:
        state["payload"] = payload

    def on_chunk(self, state: dict[str, Any], chunk: Any, metadata: dict[str, Any] | None) -> None:
        if state["data"] is None:
            state["data"] = opened(state["payload"], live=True, **self._stages)
        self.emit(state["id"], chunk, LIVE)

    def finish(self, request_id: str, state: dict[str, Any]) -> dict[str, Any]:
        return state["data"] or opened(state["payload"], **self._stages)


class Live(StreamingScheduler[str]):
    """The stage from which the recogniser gets sound that is still coming."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> str:
        return request_id

    def on_chunk(self, state: str, chunk: Any, metadata: dict[str, Any] | None) -> None:
        self.emit(state, chunk)

    def finish(self, request_id: str, state: str) -> None:
        return None


def opened(
    payload: StagePayload, asr: str, llm: str, tts: str, waits: list[str], several: bool, live: bool = False
) -> dict[str, Any]:
    """Return what the parts get of a request.

    Args:
        asr, llm, tts: the entry stages of the parts.
        waits: this stage, and the one that writes recordings down.
        several: the recogniser hears several recordings of a request.
        live: the last message is a recording that comes as a stream.

    Raises:
        InvalidRequestError: it has no messages, or recordings that the recogniser does not take; or it asks for more than to be spoken.
    """
    inputs = payload.request.inputs
    messages = inputs.get("messages") if isinstance(inputs, Mapping) else None
    if not isinstance(messages, list) or not all(isinstance(each, Mapping) for each in messages):
        raise InvalidRequestError("inputs.messages: must be a list of {'role': ..., 'content': ...}")
    voice = {name: inputs[name] for name in ("references",) if name in inputs}
    if SPEECH in (wanted := _modalities(payload)):
        if len(wanted) > 1 or live or not messages:
            raise InvalidRequestError("modalities: 'speech' speaks the text of the last message, and stands alone")
        return {"to": [tts], "speech": {"messages": messages[-1:], **voice}}
    written = [_without_sound(each) for each in messages]
    places = [
        (number, index)
        for number, message in enumerate(messages)
        for index, part in enumerate(_parts(message))
        if _is_sound(part)
    ]
    if len(places) > (0 if live else 1) and (live or not several or _wants_transcript(payload)):
        raise _only_one(places, live, several)
    recordings = [{"role": "user", "content": [_parts(messages[n])[index]]} for n, index in places]
    if live:
        places = [(len(written), 0)]
        written.append({"role": "user", "content": [None]})
    elif not places and _wants_transcript(payload):
        raise InvalidRequestError("messages: there is no recording to write down")
    return {
        "to": [llm, *([LIVE] if live else [asr] if places else []), tts],
        "recordings": recordings,
        "inputs": {**{name: each for name, each in inputs.items() if name not in voice}, "messages": written},
        "speech": {"messages": [], **voice},
        "places": places,
        "waits": waits if places else waits[:1],
    }


def _only_one(places: list[tuple[int, int]], live: bool, several: bool) -> InvalidRequestError:
    number, index = places[0]
    why = "beside sound that is still coming" if live else "for a transcript" if several else "for this recogniser"
    what = f"messages[{number}].content[{index}]: a request has one recording {why}; put the words of earlier ones in their places"
    return InvalidRequestError(what)


def _wants_transcript(payload: StagePayload) -> bool:
    return "transcript" in _modalities(payload)


def _modalities(payload: StagePayload) -> list[str]:
    return list((payload.request.composed or {}).get("modalities") or ())


def _parts(message: Mapping[str, Any]) -> list[Any]:
    content = message.get("content")
    return list(content) if isinstance(content, list | tuple) else []


def _is_sound(part: Any) -> bool:
    return isinstance(part, Mapping) and part.get("type") == "audio"


def _without_sound(message: Mapping[str, Any]) -> dict[str, Any]:
    parts = _parts(message)
    return {**message, "content": [None if _is_sound(part) else part for part in parts]} if parts else dict(message)


def route(request_id: str, payload: StagePayload) -> list[str]:
    """Return the entry stages that get something of a request."""
    return list(payload.data["to"])


def streams(request_id: str, payload: StagePayload) -> list[str]:
    """Return the stages whose stream of the client's sound ends."""
    return [LIVE] if LIVE in payload.data["to"] else []


def recordings(payload: StagePayload) -> dict[str, Any]:
    """Return the inputs of the recogniser."""
    return {"messages": payload.data["recordings"]}


def messages(payload: StagePayload) -> dict[str, Any]:
    """Return what waits for the transcripts before the language model."""
    return {name: payload.data[name] for name in ("inputs", "places", "waits")}


def speech(payload: StagePayload) -> dict[str, Any]:
    """Return the inputs of the voice."""
    found: dict[str, Any] = payload.data["speech"]
    return found


def opens(request_id: str, source: str, payload: StagePayload) -> list[str]:
    """Return the stage whose result is, or opens, the request to the voice: the text of the language model comes after that."""
    return ["door-door"]


def opening(payloads: Mapping[str, StagePayload]) -> StagePayload:
    """Return that result."""
    [found] = payloads.values()
    return found


def waits(request_id: str, source: str, payload: StagePayload) -> list[str] | None:
    """Return the stages whose results make the inputs of the language model: the recogniser's too, if there are recordings."""
    found: list[str] | None = payload.data.get("waits")
    return found


def merged(payloads: Mapping[str, StagePayload]) -> StagePayload:
    """Return the inputs of the language model: transcripts in the places of recordings."""
    [opened] = [each for each in payloads.values() if "inputs" in each.data]
    texts = [text for each in payloads.values() for text in each.data.get("texts", ())]
    written = [dict(each) for each in opened.data["inputs"]["messages"]]
    for (number, index), text in zip(opened.data["places"], texts, strict=True):
        parts = list(written[number]["content"])
        parts[index] = {"type": "text", "text": text}
        written[number]["content"] = parts
    for number in {number for number, _ in opened.data["places"]}:
        [first, *others] = written[number]["content"]
        if not others:  # a template may know texts only
            written[number]["content"] = first["text"]
    return evolve(opened, data={**opened.data["inputs"], "messages": written})
