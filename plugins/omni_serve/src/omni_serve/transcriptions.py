"""``POST /v1/audio/transcriptions``: a recording is written down, by instruction: the pipeline answers a fixed prompt that it declares."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter
from starlette.datastructures import FormData, UploadFile
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from omni_core.errors import shown
from omni_core.protocol.messages import OmniRequest
from omni_serve.bodies import json_response
from omni_serve.calls import Call
from omni_serve.errors import ApiError, invalid
from omni_serve.forms import check_fields, form_schema, read_form, upload
from omni_serve.media import check_media
from omni_serve.server import Server, key_of, server_of
from omni_serve.streams import Stream, event, unless_gone

router = APIRouter(tags=["speech"])

_FIELDS = ("file", "model", "language", "prompt", "response_format", "stream", "temperature")
_FORMATS = ("json", "text", "verbose_json")


@router.post(
    "/v1/audio/transcriptions",
    openapi_extra=form_schema({name: "binary" if name == "file" else "string" for name in _FIELDS}, ["file", "model"]),
)
async def create_transcription(request: Request) -> Response:
    """Write down what is said in a recording."""
    server = server_of(request)
    form = await read_form(request)
    call, form_of_answer, streamed, seconds = await _call(server, request, form)
    if streamed:
        return Stream(_events(call), "text/event-stream", events=True, ping_seconds=server.settings.ping_seconds)
    text, _, _ = await unless_gone(request, call.whole())
    text = text.strip()
    if form_of_answer == "text":
        return PlainTextResponse(text + "\n")
    answer: dict[str, Any] = {"text": text, "usage": _usage(call)}
    if form_of_answer == "verbose_json":
        # Without segments and words: nothing here knows when each was said. Nor which language it was, if nobody has told.
        answer |= {"task": "transcribe", "language": str(form.get("language") or ""), "duration": seconds or 0.0}
    return json_response(answer)


async def _call(server: Server, request: Request, form: FormData) -> tuple[Call, str, bool, float | None]:
    """Return the call, the form of its answer, if it is streamed, and the seconds of the recording."""
    check_fields(form, _FIELDS, "file")
    model = form.get("model")
    if not isinstance(model, str):
        raise invalid("model: field required", "model", "missing_required_parameter")
    server.check_model(model)
    prompt = server.interface.prompts.get("transcription")
    if prompt is None:
        raise invalid("This pipeline declares no way to write down recordings.", code="unsupported_operation")
    answer = str(form.get("response_format") or "json")
    if answer not in _FORMATS:
        raise invalid(
            f"response_format: must be {', '.join(_FORMATS)}, is {shown(answer)}",
            "response_format",
            "unsupported_value",
        )
    streamed = str(form.get("stream") or "false").lower()
    if streamed not in ("true", "false"):
        raise invalid(f"stream: must be true or false, is {shown(streamed)}", "stream", "invalid_type")
    if streamed == "true" and answer != "json":
        raise invalid(f"stream: events are JSON; remove response_format={answer}", "stream", "unsupported_value")
    file = form.get("file")
    if not isinstance(file, UploadFile):
        raise invalid("file: a file is needed", "file", "missing_required_parameter")
    limits = server.settings.limits
    try:
        data = await upload(file, "file", limits.media_mib)
        seconds = (await asyncio.to_thread(check_media, "audio", data, "file", limits)).seconds
    except ApiError as error:
        error.param = "file"
        raise
    if language := form.get("language"):
        prompt += f" The language is: {language}."
    if hint := form.get("prompt"):
        prompt += f" Follow the spelling and the style of this text: {hint}"
    given: dict[str, Any] = {"temperature": _temperature(form.get("temperature"))}
    parameters = server.parameters.read(given)
    content = [{"type": "audio", "data": data}, {"type": "text", "text": prompt}]
    modalities = ["text"] if "text" in server.interface.outputs else None
    inputs = {"messages": [{"role": "user", "content": content}]}
    omni = OmniRequest(inputs, parameters.params, modalities, parameters.metadata)
    return (
        Call(server, key_of(request), omni, speech=False, body=request.scope["omni.body"]),
        answer,
        streamed == "true",
        seconds,
    )


def _temperature(value: Any) -> float | None:
    if value is None or value == "":
        return None
    try:
        return float(value)
    except ValueError:
        raise invalid(f"temperature: must be a number, is {shown(value)}", "temperature", "invalid_type") from None


async def _events(call: Call) -> AsyncGenerator[bytes]:
    text = ""
    async with aclosing(call.pieces()) as pieces:
        async for piece in pieces:
            if isinstance(piece, str):
                text += piece
                yield event({"type": "transcript.text.delta", "delta": piece})
    yield event({"type": "transcript.text.done", "text": text, "usage": _usage(call)})
    yield b"data: [DONE]\n\n"


def _usage(call: Call) -> dict[str, Any]:
    usage = call.openai_usage
    return {
        "type": "tokens",
        "input_tokens": usage["prompt_tokens"],
        "output_tokens": usage["completion_tokens"],
        "total_tokens": usage["total_tokens"],
    }
