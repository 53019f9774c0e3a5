"""``POST /v1/audio/transcriptions`` and ``translations``: by the pipeline's stage for that, or by a prompt that it declares.

A recording that is longer than the pipeline takes is written down in parts, and so is one whose client asks for it.
"""

from __future__ import annotations

import asyncio
import io
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from typing import IO, Any

from attrs import define, evolve
from fastapi import APIRouter
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from omni_core.api import TokenLogprob
from omni_media.api import Limits as DecodingLimits
from omni_media.api import sound_pieces
from omni_serve.bodies import json_response
from omni_serve.body_budget import Held
from omni_serve.calls import Call, Heard
from omni_serve.coming_form import ComingForm, begun_form
from omni_serve.coming_sound import ComingSound
from omni_serve.cuts import Part, cut
from omni_serve.errors import ApiError, invalid, placed
from omni_serve.forms import form_schema, read_form
from omni_serve.long_recordings import PLACES, LongCall
from omni_serve.media import check_media, pcm_rate, uploaded_sound
from omni_serve.realtime.vad import TurnDetector, detector_class
from omni_serve.recognition import listens, transcription_request
from omni_serve.server import Server, key_of, server_of
from omni_serve.settings import Limits
from omni_serve.streams import Stream, event, unless_gone
from omni_serve.transcript_fields import SCHEMA, SPEAKERS, SUBTITLES, Asked, Chunking, names, read
from omni_serve.transcript_forms import Speakers, diarized, logprobs, subtitles, verbose
from omni_serve.usage import of_transcript

router = APIRouter(tags=["speech"])

PART_SECONDS = 30.0
"""The longest part of a recording that is cut, unless the pipeline takes less: models of speech learn from such."""

_TRANSLATED = {name: SCHEMA[name] for name in ("file", "model", "prompt", "response_format", "temperature")}


@router.post("/v1/audio/transcriptions", openapi_extra=form_schema(SCHEMA, ["file", "model"]))
async def create_transcription(request: Request) -> Response:
    """Write down what is said in a recording."""
    server = server_of(request)
    if listens(server.interface):
        again, coming, more = await begun_form(request)
        if coming is not None and (stream := _as_it_comes(server, request, coming, more)) is not None:
            return stream
        request = again
    return await _answer(server, request, "transcribe")


@router.post("/v1/audio/translations", openapi_extra=form_schema(_TRANSLATED, ["file", "model"]))
async def create_translation(request: Request) -> Response:
    """Write down in English what is said in a recording."""
    return await _answer(server_of(request), request, "translate")


async def _answer(server: Server, request: Request, task: str) -> Response:
    form = await read_form(request)
    asked = read(server, form, task)
    recording = await _recording(server, form)
    call = _call(server, request, asked, recording)
    if asked.stream:
        ping = server.settings.ping_seconds
        return Stream(_events(call, asked), "text/event-stream", events=True, ping_seconds=ping)
    with placed(PLACES):
        text = await unless_gone(request, _text(call))
    _check_whole(call)
    text, found = text.strip(), call.transcript
    if asked.format == "text":
        return PlainTextResponse(text + "\n")
    if asked.format in SUBTITLES:
        return PlainTextResponse(subtitles(found.segments if found else [], asked.format))
    answer: dict[str, Any] = {"text": text}
    if asked.format == SPEAKERS:
        answer |= diarized(call, recording.seconds)
    elif asked.format == "json":
        answer["usage"] = of_transcript(call.usage, call.heard)
    else:
        language, timed = str(asked.given.get("language") or ""), "timestamps" in asked.given
        answer |= verbose(call, asked.times, asked.task, language, recording.seconds, timed=timed)
        answer |= {"language": "english"} if task == "translate" else {}
    if asked.logprobs:
        answer["logprobs"] = logprobs(found.logprobs if found else [])
    return json_response(answer)


def _as_it_comes(server: Server, request: Request, form: ComingForm, more: bool) -> Response | None:
    """Return the stream of an upload that is written down while it comes; ``None``: it must be read as a whole, with its mistakes."""
    body: Held = request.scope["omni.body"]
    try:
        asked = read(server, FormData(form.fields), "transcribe")
        omni = transcription_request(server, None, asked.given)
    except ApiError:
        return None
    fields = names(server.interface)
    if not asked.stream or asked.chunking or asked.logprobs or asked.speakers:
        return None
    if form.file != "file" or fields & set(form.late):
        return None
    body.is_live = True
    body.give_back()  # the length that was announced; what waits of it is little
    limits = _of_recordings(server.settings.limits)
    sound = ComingSound(form, request.receive, more, body, limits, fields)
    call = Call(server, key_of(request), omni, speech=False, transcribes=True, tells=True, body=body, input=sound)

    async def events() -> AsyncGenerator[bytes]:
        async with sound.coming(), aclosing(_events(call, asked)) as made:
            async for each in made:
                yield each

    ping = server.settings.ping_seconds
    return Stream(events(), "text/event-stream", events=True, ping_seconds=ping, gone=sound.gone)


def _of_recordings(limits: Limits) -> Limits:
    """Return the limits on one that is decoded piece by piece: of its samples, of eight channels at any rate, none are kept."""
    seconds = max(limits.audio_seconds, limits.recording_seconds)
    return evolve(limits, audio_seconds=seconds, media_samples=max(limits.media_samples, round(seconds * 8 * 192_000)))


@define
class _Recording:
    """An upload.

    Attributes:
        data: of one that is sent as a whole.
        file: of one that is cut, on the disk if it is large; ``None``: the data.
        seconds: ``None``: not known.
        samples: of all channels.
    """

    data: bytes
    file: IO[bytes] | None
    seconds: float | None
    samples: float


async def _recording(server: Server, form: FormData) -> _Recording:
    """Read and measure the recording."""
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise invalid("file: a file is needed", "file", "missing_required_parameter")
    limits = _of_recordings(server.settings.limits)
    try:
        data = await uploaded_sound(file, "file", limits.media_mib)
        found = await asyncio.to_thread(check_media, "audio", data, "file", limits)
    except ApiError as error:
        error.param = "file"
        raise
    has_header = pcm_rate(file.filename or "", file.content_type or "") is None
    return _Recording(data, file.file if has_header else None, found.seconds, found.samples)


def _call(server: Server, request: Request, asked: Asked, recording: _Recording) -> Call | LongCall:
    """Return the call that writes a recording down, as a whole or in parts.

    Raises:
        ApiError: 413, it must be cut, and cannot.
    """
    limits, body = server.settings.limits, request.scope["omni.body"]
    taken = server.interface.limits.get("max_audio_seconds", float("inf"))
    most, seconds = min(taken, limits.audio_seconds), recording.seconds or 0.0
    is_long = seconds > most or recording.samples > limits.media_samples
    if asked.chunking is None and (not is_long or asked.speakers):
        if is_long:
            message = (
                f"file: {seconds:.1f} s are over the limit of {most:g} s for telling speakers apart; send less at once"
            )
            raise ApiError(413, message, param="file", code="media_too_large")
        omni = transcription_request(server, recording.data, asked.given, asked.task)
        call = Call(server, key_of(request), omni, speech=False, transcribes=True, tells=True, body=body)
        call.heard_seconds = seconds
        return call
    chunking = asked.chunking or Chunking.auto(server.settings.realtime)
    transcription_request(server, b"", asked.given, asked.task)  # its mistakes are those of the form
    file, data, recording.data = recording.file, recording.data, b""
    if file is not None:
        body.give_back()  # for minutes it is on the disk
    return LongCall(
        server,
        key_of(request),
        _parts(server, io.BytesIO(data) if file is None else file, chunking, min(taken, PART_SECONDS)),
        lambda data: transcription_request(server, data, asked.given, asked.task),
        most=limits.recording_parts,
        times=bool(asked.times),
        decoded=body.give_back,
    )


def _parts(server: Server, file: IO[bytes], chunking: Chunking, longest: float) -> Iterator[Part]:
    """Yield the parts of a file, decoded as they are asked for."""
    limits = _of_recordings(server.settings.limits)
    bounds = DecodingLimits(max_audio_seconds=limits.audio_seconds, max_request_samples=limits.media_samples)
    detector = detector_class(server.settings.realtime.detector)()
    turns = TurnDetector(detector, chunking.threshold, chunking.silence_ms)
    pieces = sound_pieces(file, bounds, "file")
    yield from cut(pieces, turns, longest=longest, padding=chunking.padding_ms / 1000, by_turn=chunking.by_turn)


async def _text(call: Call | LongCall) -> str:
    texts: list[str] = []
    async with aclosing(call.pieces()) as pieces:
        async for piece in pieces:
            texts += [piece] if isinstance(piece, str) else []
    return "".join(texts)


def _check_whole(call: Call | LongCall) -> None:
    """Raise ApiError 413 if a limit has cut the transcript: one with less would look like the whole."""
    if call.finish_reason == "length":
        found = call.transcript
        timed = [] if found is None else [each.end for each in found.segments] + [each.end for each in found.words]
        end = max(timed, default=None)
        heard = "" if end is None else f" after {end:.1f} s"
        message = (
            f"file: the transcript was cut{heard} by a limit of the pipeline; send the recording in shorter parts, or with "
            "chunking_strategy=auto"
        )
        raise ApiError(413, message, param="file", code="transcript_cut")


async def _events(call: Call | LongCall, asked: Asked) -> AsyncGenerator[bytes]:
    text, speakers, told = "", Speakers(), list[TokenLogprob]()
    with placed(PLACES):
        async with aclosing(call.pieces()) as pieces:
            async for piece in pieces:
                if not isinstance(piece, Heard):
                    continue
                text += piece
                told += piece.chunk.logprobs
                if piece:
                    more = {"logprobs": logprobs(piece.chunk.logprobs)} if asked.logprobs else {}
                    yield event({"type": "transcript.text.delta", "delta": str(piece), **more})
                if asked.format == SPEAKERS:
                    for each in speakers.told(piece.chunk.segments):
                        yield event(each)
    _check_whole(call)
    done = {"type": "transcript.text.done", "text": text, "usage": of_transcript(call.usage)}
    yield event({**done, "logprobs": logprobs(told)} if asked.logprobs else done)
    yield b"data: [DONE]\n\n"
