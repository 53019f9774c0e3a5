"""A value of any type in any field of what clients send: the answer is right or an error of the client, never a failure of the server."""

from __future__ import annotations

import base64
import copy
import io
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import httpx2
import pytest
from omni_serve_clients import socket_to
from PIL import Image
from serve_stages import RATE, tone

from omni_serve.app import Application
from omni_serve.encoders import whole
from omni_serve.errors import ApiError
from omni_serve.realtime.actions import Send
from omni_serve.realtime.config import Offer
from omni_serve.realtime.live import Live
from omni_serve.realtime.session import Session

on_the_loop = pytest.mark.asyncio(loop_scope="session")

ODD: list[Any] = [["a"], {"a": ["b"]}, [], -1, 1.5, True, None, "x", [[["a"]]], 10**30]

_picture = io.BytesIO()
Image.new("RGB", (4, 4)).save(_picture, "png")
PICTURE = "data:image/png;base64," + base64.b64encode(_picture.getvalue()).decode()
SCHEMA = {
    "type": "object",
    "properties": {"a": {"anyOf": [{"type": "string", "enum": ["a"]}, {"type": "array", "items": {"$ref": "#/$defs/b"}}]}},
    "required": ["a"],
    "additionalProperties": False,
    "$defs": {"b": {"type": "integer", "minimum": 1}},
}  # fmt: skip
FUNCTION = {"name": "look", "description": "d", "parameters": SCHEMA}
IMAGE = {"type": "image_url", "image_url": {"url": PICTURE, "detail": "auto"}}
LOOK = {"type": "function", "function": {"name": "look"}}
TEXT_FILE = {"type": "file", "file": {"file_data": "data:text/plain;base64,AAAA", "filename": "a.txt"}}
CALL = {"id": "c", "type": "function", "function": {"name": "look", "arguments": "{}"}}
SESSION = {
    "type": "realtime",
    "model": "tones",
    "output_modalities": ["text"],
    "instructions": "i",
    "audio": {
        "input": {
            "format": {"type": "audio/pcm", "rate": 24000},
            "turn_detection": {"type": "server_vad", "threshold": 0.5},
            "transcription": {"language": "en"},
        },
        "output": {"voice": "default", "speed": 1.0, "format": {"type": "audio/pcm"}},
    },
    "tools": [{"type": "function", **FUNCTION}],
    "tool_choice": "auto",
    "max_output_tokens": "inf",
}
ITEM = {
    "id": "a",
    "type": "message",
    "role": "user",
    "content": [{"type": "input_text", "text": "one"}, {"type": "input_audio", "audio": "A" * 64, "transcript": "a"}],
}
TOOLS = {"tools": [{"type": "function", "function": {**FUNCTION, "strict": True}}], "parallel_tool_calls": True}
BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {
        "model": "tones",
        "messages": [
            {"role": "system", "content": "a"},
            {
                "role": "user",
                "content": [{"type": "text", "text": "one"}, IMAGE, TEXT_FILE],
            },
            {"role": "assistant", "content": None, "tool_calls": [CALL]},
            {"role": "tool", "tool_call_id": "c", "content": "r"},
        ],
        "modalities": ["text", "audio"],
        "audio": {"voice": "default", "format": "wav"},
        "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [LOOK]}},
        "extra_body": {"metadata": {"a": "b"}},
        "logit_bias": {},
        "response_format": {"type": "text"},
        "reasoning": {"effort": "none"},
        **TOOLS,
    },
    "/v1/responses": {
        "model": "tones",
        "input": [
            {
                "type": "message",
                "role": "user",
                "content": [{"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": PICTURE, "detail": "auto"}],
            },
            {"type": "function_call", "call_id": "c", "name": "look", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "r"},
        ],
        "instructions": "i",
        "tools": [{"type": "function", **FUNCTION}],
        "text": {"format": {"type": "text"}},
    },
    "/v1/audio/speech": {"model": "tones", "input": "one", "voice": "default", "response_format": "wav", "speed": 1.0},
    "/v1/realtime/client_secrets": {"expires_after": {"anchor": "created_at", "seconds": 10}, "session": SESSION},
}  # fmt: skip
EVENTS: list[dict[str, Any]] = [
    {"type": "session.update", "session": SESSION},
    {"type": "input_audio_buffer.append", "audio": "AAAA"},
    {"type": "conversation.item.create", "item": ITEM, "previous_item_id": None},
    {"type": "conversation.item.retrieve", "item_id": "said"},
    {"type": "conversation.item.truncate", "item_id": "said", "content_index": 0, "audio_end_ms": 0},
    {"type": "response.create", "response": {"input": [ITEM, {"type": "item_reference", "id": "said"}], "metadata": {"a": "b"}}},
    {"type": "response.cancel", "response_id": "a", "event_id": "mine"},
]  # fmt: skip
LIVE: list[dict[str, Any]] = [
    {"type": "session.input_audio.append", "audio": "AAAA", "event_id": "mine"},
    {"type": "session.instructions.append", "content": "a"},
    {"type": "session.input_audio.mute"},
]
START = {
    "type": "session.start",
    "event_id": "mine",
    "session": {
        "model": "tones",
        "instructions": "i",
        "audio": {"format": {"type": "audio/pcm", "rate": 16000}, "output": {"voice": "default"}},
        "input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "a"}]}],
        "delegation": {"type": "client"},
    },
}


def changed(value: Any) -> Iterator[Any]:
    """Yield the value with an odd one in each of its places."""
    yield from ODD
    if isinstance(value, dict | list):
        for key in list(value) if isinstance(value, dict) else range(len(value)):
            for each in changed(value[key]):
                made = copy.copy(value)
                made[key] = each
                yield made


@on_the_loop
@pytest.mark.parametrize("path", BODIES)
async def test_bodies(http: httpx2.AsyncClient, path: str) -> None:
    assert (await http.post(path, json=BODIES[path])).status_code == 200
    for body in changed(BODIES[path]):
        answer = await http.post(path, json=body)
        assert answer.status_code < 500, f"{json.dumps(body)}: {answer.text}"


FORMS = {
    "/v1/audio/transcriptions": ("file", ("model", "language", "prompt", "response_format", "stream", "temperature")),
    "/v1/audio/voices": ("audio_sample", ("name", "text", "consent", "type")),
    "/v1/audio/voice_consents": ("recording", ("name", "language")),
}


@on_the_loop
@pytest.mark.parametrize("path", FORMS)
async def test_forms(http: httpx2.AsyncClient, path: str) -> None:
    """A file in place of a text, and a text in place of the file."""
    file, names = FORMS[path]
    recording = ("a.wav", whole("wav", [tone("x")], RATE), "audio/wav")
    texts = {"name": "A", "text": "t", "language": "en", "model": "tones"}
    given = {name: text for name, text in texts.items() if name in names}
    for name in names:
        files = {file: recording, name: ("a.txt", b"1", "text/plain")}
        others = {each: text for each, text in given.items() if each != name}
        answer = await http.post(path, data=others, files=files)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, name)
    for odd in ("x", "NaN", "\x00"):
        assert (await http.post(path, data={**given, file: odd})).status_code == 400


def test_events_of_a_session() -> None:
    session = Session(offer=Offer())
    said = {
        "id": "said",
        "type": "message",
        "role": "assistant",
        "content": [{"type": "output_audio", "transcript": "a"}],
    }
    session.receive({"type": "conversation.item.create", "item": said}, 0)
    for event in EVENTS:
        for each in changed(event):
            if isinstance(each, dict):
                session.receive(each, 0)
                if session.reply is not None:
                    session.finished(session.reply.id, 0, {})
    assert isinstance(session.receive({"type": "conversation.item.retrieve", "item_id": "said"}, 0), list)


def test_events_of_a_live_session() -> None:
    def start(event: dict[str, Any]) -> Live:
        return Live.start(event, Offer(), lambda config: Session(offer=Offer(), config=config), 0.0, 0)

    live = start(START)
    for event in (each for said in LIVE for each in changed(said) if isinstance(each, dict)):
        actions, answers = live.receive(event, 0)
        for each in [*(action.event for action in actions if isinstance(action, Send)), *answers]:
            live.translate(each, 0)
    for event in changed(START):
        if isinstance(event, dict):
            with suppress(ApiError):
                start(event)


@on_the_loop
@pytest.mark.parametrize("path", ["/v1/realtime", "/v1/live/sessions", "/v1/audio/speech/stream"])
async def test_sockets(app: Application, path: str) -> None:
    """Over the socket an image and a recording are read before the session sees the event."""
    events = {"/v1/realtime": EVENTS, "/v1/live/sessions": LIVE, "/v1/audio/speech/stream": []}[path]
    async with socket_to(app, path) as socket:
        if path == "/v1/live/sessions":
            await socket.send_json(START)
        for event in (each for said in events for each in changed(said)):
            await socket.send_json(event)
        await socket.send_json({"type": ["a"], "event_id": "last"})
        while True:
            received = await socket.receive_json()
            if received["type"] == "error":
                assert received["error"]["type"] != "server_error", received
                if path not in ("/v1/realtime", "/v1/live/sessions") or "last" in received["error"].values():
                    break
    for first in (
        {"type": ["a"]},
        {"type": "session.config", "model": ["a"]},
        {"type": {"a": []}, "session": []},
        ["a"],
    ):
        if path != "/v1/realtime":
            async with socket_to(app, path) as socket:
                await socket.send_json(first)
                assert (await socket.receive_json())["error"]["type"] == "invalid_request_error"
