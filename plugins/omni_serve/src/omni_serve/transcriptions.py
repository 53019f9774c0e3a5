"""``POST /v1/audio/transcriptions``: a recording is written down by the pipeline's stage for that, or by a prompt that it declares."""

from __future__ import annotations

import asyncio
import math
import zlib
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any

from attrs import frozen
from fastapi import APIRouter
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from omni_core.api import Segment, Transcript, Word, shown
from omni_serve.bodies import json_response
from omni_serve.body_budget import Held
from omni_serve.calls import Call
from omni_serve.coming_form import ComingForm, begun_form
from omni_serve.coming_sound import ComingSound
from omni_serve.errors import ApiError, invalid, placed
from omni_serve.forms import check_fields, form_schema, read_form, typed
from omni_serve.ignored import ignore
from omni_serve.media import check_media, uploaded_sound
from omni_serve.recognition import listens, parameters_of, transcription_request, writes_down
from omni_serve.server import Server, key_of, server_of
from omni_serve.streams import Stream, event, unless_gone
from omni_serve.usage import of_transcript

router = APIRouter(tags=["speech"])

_GIVEN = ("language", "prompt", "temperature")
_TIMES = "timestamp_granularities[]"
_FIELDS = ("file", "model", *_GIVEN, "response_format", "stream")
_PLACES = {"messages[0].content[0]": "file"}
_FORMATS = ("json", "text", "verbose_json", "srt", "vtt")
_SUBTITLES = ("srt", "vtt")
_SCHEMA = {name: "binary" if name == "file" else "string" for name in (*_FIELDS, _TIMES)}


@router.post("/v1/audio/transcriptions", openapi_extra=form_schema(_SCHEMA, ["file", "model"]))
async def create_transcription(request: Request) -> Response:
    """Write down what is said in a recording."""
    server = server_of(request)
    if listens(server.interface):
        again, coming, more = await begun_form(request)
        if coming is not None and (stream := _as_it_comes(server, request, coming, more)) is not None:
            return stream
        request = again
    form = await read_form(request)
    asked = _read(server, form)
    data, seconds = await _recording(server, form)
    omni = transcription_request(server, data, asked.given)
    call = Call(server, key_of(request), omni, speech=False, transcribes=True, body=request.scope["omni.body"])
    call.heard_seconds = seconds or 0.0
    if asked.stream:
        return Stream(_events(call), "text/event-stream", events=True, ping_seconds=server.settings.ping_seconds)
    with placed(_PLACES):
        text, _, _ = await unless_gone(request, call.whole())
    _check_whole(call)
    text = text.strip()
    if asked.format == "text":
        return PlainTextResponse(text + "\n")
    if asked.format == "json":
        return json_response({"text": text, "usage": of_transcript(call.usage, call.heard)})
    if asked.format in _SUBTITLES:
        return PlainTextResponse(_subtitles(call.transcript.segments if call.transcript else [], asked.format))
    return json_response({"text": text, **_verbose(call.transcript or Transcript(text), asked, seconds)})


def _as_it_comes(server: Server, request: Request, form: ComingForm, more: bool) -> Response | None:
    """Return the stream of an upload that is written down while it comes; ``None``: it must be read as a whole, with its mistakes."""
    body: Held = request.scope["omni.body"]
    try:
        asked = _read(server, FormData(form.fields))
        omni = transcription_request(server, None, asked.given)
    except ApiError:
        return None
    fields = {*_FIELDS, _TIMES, *parameters_of(server.interface)}
    if not asked.stream or form.file != "file" or fields & set(form.late):
        return None
    body.is_live = True
    body.give_back()  # the length that was announced; what waits of it is little
    sound = ComingSound(form, request.receive, more, body, server.settings.limits, fields)
    call = Call(server, key_of(request), omni, speech=False, transcribes=True, body=body, input=sound)

    async def events() -> AsyncGenerator[bytes]:
        async with sound.coming(), aclosing(_events(call)) as made:
            async for each in made:
                yield each

    ping = server.settings.ping_seconds
    return Stream(events(), "text/event-stream", events=True, ping_seconds=ping, gone=sound.gone)


@frozen
class _Asked:
    """The fields of a form beside the recording. ``times``: of segments and words, those that are wanted."""

    given: dict[str, Any]
    format: str
    times: list[str]
    stream: bool


def _read(server: Server, form: FormData) -> _Asked:
    interface, declared = server.interface, parameters_of(server.interface)
    own = [name for name in declared if name != "timestamps"]
    check_fields(form, [*_FIELDS, _TIMES, *own], "file", several=_TIMES)
    model = form.get("model")
    if not isinstance(model, str):
        raise invalid("model: field required", "model", "missing_required_parameter")
    server.check_model(model)
    if not writes_down(interface):
        raise invalid("This pipeline declares no way to write down recordings.", code="unsupported_operation")
    answer = _one_of("response_format", str(form.get("response_format") or "json"), _FORMATS)
    streamed = str(form.get("stream") or "false").lower()
    if streamed not in ("true", "false"):
        raise invalid(f"stream: must be true or false, is {shown(streamed)}", "stream", "invalid_type")
    if streamed == "true" and answer != "json":
        raise invalid(f"stream: events are JSON; remove response_format={answer}", "stream", "unsupported_value")
    times = [_one_of(_TIMES, str(each), ("segment", "word")) for each in form.getlist(_TIMES)]
    if times and answer != "verbose_json":
        raise invalid(f"{_TIMES}: only verbose_json has them; set response_format", _TIMES, "unsupported_value")
    given: dict[str, Any] = {name: form.get(name) for name in _GIVEN}
    given["temperature"] = _temperature(form.get("temperature"))
    for name in set(own) & form.keys() - set(_GIVEN):
        given[name] = typed(name, str(form[name]), declared[name].type)
    if answer in _SUBTITLES and "timestamps" not in declared:
        raise invalid(
            f"response_format: {answer} needs times, and this pipeline tells none",
            "response_format",
            "unsupported_value",
        )
    if "timestamps" in declared and (answer == "verbose_json" or answer in _SUBTITLES):
        given["timestamps"] = "word" if "word" in times else "segment"
    elif "word" in times:
        raise invalid(f"{_TIMES}: this pipeline tells no times", _TIMES, "unsupported_parameter")
    elif times:
        ignore(_TIMES)
    return _Asked(given, answer, times or ["segment"], streamed == "true")


async def _recording(server: Server, form: FormData) -> tuple[bytes, float | None]:
    """Return the recording and its seconds."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise invalid("file: a file is needed", "file", "missing_required_parameter")
    limits = server.settings.limits
    try:
        data = await uploaded_sound(file, "file", limits.media_mib)
        return data, (await asyncio.to_thread(check_media, "audio", data, "file", limits)).seconds
    except ApiError as error:
        error.param = "file"
        raise


def _one_of(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        raise invalid(f"{name}: must be {', '.join(choices)}, is {shown(value)}", name, "unsupported_value")
    return value


def _temperature(value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        return float(value)
    except ValueError:
        raise invalid(f"temperature: must be a number, is {shown(value)}", "temperature", "invalid_type") from None


def _check_whole(call: Call) -> None:
    """Raise ApiError 413 if a limit has cut the transcript: one with less would look like the whole."""
    found = call.transcript
    if found is not None and found.finish_reason == "length":
        end = max([each.end for each in found.segments] + [each.end for each in found.words], default=None)
        heard = "" if end is None else f" after {end:.1f} s"
        message = f"file: the transcript was cut{heard} by a limit of the pipeline; send the recording in shorter parts"
        raise ApiError(413, message, param="file", code="transcript_cut")


async def _events(call: Call) -> AsyncGenerator[bytes]:
    text = ""
    with placed(_PLACES):
        async with aclosing(call.pieces()) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    text += piece
                    yield event({"type": "transcript.text.delta", "delta": piece})
    _check_whole(call)
    yield event({"type": "transcript.text.done", "text": text, "usage": of_transcript(call.usage)})
    yield b"data: [DONE]\n\n"


def _verbose(found: Transcript, asked: _Asked, seconds: float | None) -> dict[str, Any]:
    """Return what the verbose form has beside the text: nothing that neither the pipeline nor the client has said."""
    duration = next((each for each in (found.duration, seconds) if each is not None), 0.0)
    answer: dict[str, Any] = {
        "task": asked.given.get("task", "transcribe"),
        "language": found.language or asked.given.get("language") or "",
        "duration": duration,
        "usage": {"type": "duration", "seconds": duration},
    }
    if "segment" in asked.times and found.segments:
        answer["segments"] = [_segment(number, each) for number, each in enumerate(found.segments)]
    if "word" in asked.times:
        answer["words"] = [{"word": each.text, **_times(each)} for each in found.words]
    return answer


def _segment(number: int, segment: Segment) -> dict[str, Any]:
    """Return a segment with all that OpenAI's has. Figures that the pipeline does not know are 0."""
    data = segment.text.encode()
    return {
        "id": number,
        "seek": round(segment.start * 100),
        "text": segment.text,
        "tokens": segment.token_ids,
        "temperature": segment.temperature,
        "avg_logprob": math.log(segment.confidence) if segment.confidence else 0.0,
        "compression_ratio": len(data) / len(zlib.compress(data)),
        "no_speech_prob": segment.no_speech or 0.0,
        **_times(segment),
    }


def _subtitles(segments: list[Segment], form: str) -> str:
    """Return segments as SubRip (``srt``) or WebVTT (``vtt``)."""

    def clock(seconds: float) -> str:
        whole, thousandths = divmod(round(seconds * 1000), 1000)
        mark = "," if form == "srt" else "."
        return f"{whole // 3600:02}:{whole // 60 % 60:02}:{whole % 60:02}{mark}{thousandths:03}"

    cues = [f"{clock(each.start)} --> {clock(each.end)}\n{each.text.strip()}\n" for each in segments]
    if form == "srt":
        cues = [f"{number}\n{cue}" for number, cue in enumerate(cues, 1)]
    return "\n".join(["WEBVTT\n", *cues] if form == "vtt" else cues)


def _times(timed: Segment | Word) -> Mapping[str, Any]:
    known = {"speaker": timed.speaker, "confidence": timed.confidence}
    return {"start": timed.start, "end": timed.end, **{name: each for name, each in known.items() if each is not None}}
