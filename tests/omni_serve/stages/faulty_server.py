"""A small OpenAI-compatible server that is right, or makes one deliberate mistake."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import random
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
from faulty_realtime import SmallRealtime
from PIL import Image
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route, WebSocketRoute
from starlette.websockets import WebSocket

from omni_serve.encoders import wav_header

KEY = "the-key-of-the-small-server"
MODEL = {"id": "small", "object": "model", "capabilities": {"outputs": ["text", "audio", "image"]}}
WORDS = ["Hello", " there,", " who", " is", " it?"]
PIECE = 2400
KNOWN = {"model", "messages", "stream", "stream_options", "modalities", "audio", "seed", "temperature", "input", "voice",
    "response_format", "stream_format", "prompt", "size", "n", "output_format", "partial_images"}  # fmt: skip


def error(status: int, message: str, param: str | None = None, code: str | None = None) -> JSONResponse:
    body = {"message": message, "type": "invalid_request_error", "param": param, "code": code}
    return JSONResponse({"error": body}, status)


def pcm(mistake: str) -> list[bytes]:
    """A steady tone in five pieces."""
    pieces = np.split(0.4 * np.sin(2 * np.pi * 220 * np.arange(5 * PIECE) / 24_000), 5)
    if mistake == "clicks":
        pieces = [each + 0.05 * (-1) ** number for number, each in enumerate(pieces)]
    return [(each * 32767).astype("<i2").tobytes() for each in pieces]


def event(data: Any) -> str:
    return f"data: {data if isinstance(data, str) else json.dumps(data)}\n\n"


class Small:
    """The server."""

    def __init__(self, mistake: str) -> None:
        self.mistake = mistake
        self.one_at_a_time = asyncio.Lock()
        self.left_behind: list[asyncio.Task[None]] = []

    async def check(self, request: Request, needed: str) -> Response | dict[str, Any]:
        """Return the body, or an error."""
        try:
            body = await request.json()
        except ValueError:
            return error(400, "The body is not JSON")
        if needed not in body:
            if self.mistake == "form":
                return JSONResponse({"detail": [{"loc": ["body", needed], "msg": "Field required"}]}, 422)
            return error(400, f"{needed}: missing", needed, "missing_required_parameter")
        if not isinstance(body[needed], list if needed == "messages" else str):
            return error(500 if self.mistake == "type" else 400, f"{needed}: wrong type", needed, "invalid_type")
        if body["model"] != "small" and self.mistake != "any model":
            return error(404, "no such model", "model", "model_not_found")
        for name in body:
            if name not in KNOWN and self.mistake != "ignores":
                return error(400, f"{name}: unknown", name, "unknown_parameter")
        return dict(body)

    async def chat(self, request: Request) -> Response:
        body = await self.check(request, "messages")
        if isinstance(body, Response):
            return body
        content = body["messages"][0]["content"]
        if isinstance(content, list):
            return error(503 if self.mistake == "picture" else 400, "messages[0].content[0]: no picture", "messages")
        sound = "audio" in body.get("modalities", ())
        if body.get("stream"):
            return StreamingResponse(self.stream(body, sound, len(content) > 200), media_type="text/event-stream")
        async with self.one_at_a_time:
            text = "".join(WORDS) + (str(random.random()) if self.mistake == "random" else "")
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if sound:
            data = base64.b64encode(b"".join(pcm(self.mistake))).decode()
            message = {"role": "assistant", "content": None}
            message["audio"] = {"id": "a", "data": data, "expires_at": 1, "transcript": text}
        return JSONResponse({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})

    async def stream(self, body: dict[str, Any], sound: bool, is_long: bool) -> AsyncIterator[str]:
        def chunk(delta: dict[str, Any], reason: str | None = None, **more: Any) -> str:
            choices = [{"index": 0, "delta": delta, "finish_reason": reason}]
            return event({"id": "x", "object": "chat.completion.chunk", "choices": choices, **more})

        if self.mistake == "holds" and is_long and not self.left_behind:
            self.left_behind.append(asyncio.ensure_future(self.hold()))
            await asyncio.sleep(0)
        if self.mistake != "no role":
            yield chunk({"role": "assistant"})
        if sound:
            yield chunk({"audio": {"id": "a", "transcript": ""}})
        for word in WORDS:
            if self.mistake == "streams another text" and word == WORDS[2]:
                continue
            yield chunk({"audio": {"transcript": word}} if sound else {"content": word})
            await asyncio.sleep(10 if is_long else 0)
        if sound:
            pieces = pcm(self.mistake)
            if self.mistake == "pieces":
                joined = b"".join(pieces)
                pieces = [joined[:4000], joined[4000:]]
            for piece in pieces[: -1 if self.mistake == "cut" else None]:
                yield chunk({"audio": {"data": base64.b64encode(piece).decode()}})
            yield chunk({"audio": {"expires_at": 1}})
        usage = {"prompt_tokens": 2, "completion_tokens": 5, "total_tokens": 7}
        wants_usage = (body.get("stream_options") or {}).get("include_usage")
        yield chunk({}, "stop", **({"usage": usage} if wants_usage and self.mistake == "usage" else {}))
        if wants_usage and self.mistake != "usage":
            yield event({"id": "x", "object": "chat.completion.chunk", "choices": [], "usage": usage})
        yield event("[DONE]")

    async def hold(self) -> None:
        async with self.one_at_a_time:
            await asyncio.sleep(600)

    async def speech(self, request: Request) -> Response:
        body = await self.check(request, "input")
        if isinstance(body, Response):
            return body
        form, pieces = body.get("response_format", "wav"), pcm(self.mistake)
        if form not in ("wav", "pcm"):
            return error(400, f"response_format: {form} is not offered", "response_format")
        if body.get("stream_format") == "sse":
            return StreamingResponse(self.speech_events(pieces), media_type="text/event-stream")
        data = b"".join(pieces)
        header = wav_header(24_000, len(data)) if form == "wav" and self.mistake != "no header" else b""
        return Response(header + data, media_type="audio/wav" if form == "wav" else "audio/pcm")

    async def speech_events(self, pieces: list[bytes]) -> AsyncIterator[str]:
        for piece in pieces:
            yield event({"type": "speech.audio.delta", "audio": base64.b64encode(piece).decode()})
        usage = {"input_tokens": 2, "output_tokens": 5, "total_tokens": 7}
        if self.mistake != "no end":
            yield event({"type": "speech.audio.done", "usage": usage})

    def picture(self, kind: str) -> dict[str, str]:
        file = io.BytesIO()
        Image.new("RGB", (16, 8)).save(file, "png" if self.mistake == "always png" else kind)
        return {"b64_json": base64.b64encode(b"none" if self.mistake == "no image" else file.getvalue()).decode()}

    async def images(self, request: Request) -> Response:
        body = await self.check(request, "prompt")
        if isinstance(body, Response):
            return body
        for name, right in (("size", body.get("size", "16x8") == "16x8"), ("n", body.get("n", 1) > 0)):
            if not right and self.mistake != "any size":
                return error(400, f"{name}: {body[name]} cannot be", name)
        made = self.picture(body.get("output_format", "png"))
        if not body.get("stream"):
            return JSONResponse({"created": "now" if self.mistake == "timeless" else 1, "data": [made], "size": "16x8"})
        kind = "image_generation."
        events = [{"type": f"{kind}partial_image", "partial_image_index": index, **made} for index in range(2)]
        events.append({"type": f"{kind}completed", **made})
        if self.mistake == "late preview":
            events.reverse()
        return StreamingResponse((event(each) for each in events), media_type="text/event-stream")

    async def edits(self, request: Request) -> Response:
        async with request.form() as form:
            file = form.get("image")
            data = b"" if file is None or isinstance(file, str) else await file.read()
        if data[:4] != b"\x89PNG" and self.mistake != "edits nothing":
            return error(400, "image: a file is needed", "image")
        return JSONResponse({"created": 1, "data": [self.picture("png")]})

    def app(self) -> Any:
        """Return the ASGI application, behind its key."""

        async def models(request: Request) -> Response:
            return JSONResponse({"object": "list", "data": [MODEL]})

        async def secret(request: Request) -> Response:
            return JSONResponse({})

        async def openapi(request: Request) -> Response:
            paths = {"/v1/models": {"get": {}}, "/v1/chat/completions": {"post": {}}, "/flush/{cache}": {"post": {}}}
            return JSONResponse({"paths": paths})

        async def realtime(socket: WebSocket) -> None:
            await socket.accept()
            await SmallRealtime(socket, self.mistake).run()

        inner = Starlette(
            routes=[
                WebSocketRoute("/v1/realtime", realtime),
                Route("/v1/models", models),
                Route("/v1/chat/completions", self.chat, methods=["POST"]),
                Route("/v1/audio/speech", self.speech, methods=["POST"]),
                Route("/v1/images/generations", self.images, methods=["POST"]),
                Route("/v1/images/edits", self.edits, methods=["POST"]),
                Route("/flush/{cache}", secret, methods=["POST"]),
                Route("/openapi.json", openapi),
            ],
            exception_handlers={404: lambda request, _: error(404, f"no route {request.url.path}", code="not_found")},
        )

        async def guarded(scope: Any, receive: Any, send: Any) -> None:
            given = dict(scope.get("headers", ())).get(b"authorization")
            is_open = self.mistake == "leak" and scope.get("path", "").startswith("/flush")
            if scope["type"] == "websocket" and given != f"Bearer {KEY}".encode():
                await send({"type": "websocket.close", "code": 1008})
            elif scope["type"] == "http" and given != f"Bearer {KEY}".encode() and not is_open:
                status = 403 if self.mistake == "key" else 401
                await error(status, "no key", code="invalid_api_key")(scope, receive, send)
            else:
                await inner(scope, receive, send)

        return guarded
