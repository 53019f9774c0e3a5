"""Transcriptions of uploads that are still coming: words go out before the body has ended, and equal those of the whole recording."""

from __future__ import annotations

import asyncio
import io
import json
import random
import threading
import wave
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
from attrs import evolve
from live_input_stages import HEARING, hearing_pipeline, words
from media_files import encoded
from omni_serve_clients import Connection, http_client, running_server

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, coming_form, create_app, guard
from omni_serve.app import Application
from omni_serve.settings import Limits

pytestmark = pytest.mark.asyncio(loop_scope="session")

PATH = "/v1/audio/transcriptions"
RATE = 8_000
BOUNDARY = "a-boundary"


def recording(seconds: float = 2.0, seed: int = 0) -> bytes:
    stream = io.BytesIO()
    samples = np.random.default_rng(seed).integers(-1000, 1000, round(seconds * RATE)).astype("<i2")
    with wave.open(stream, "wb") as file:
        file.setparams((1, 2, RATE, 0, "NONE", ""))
        file.writeframes(samples.tobytes())
    return stream.getvalue()


def total(data: bytes) -> int:
    """Return the sum of the samples, as the recogniser tells it."""
    return int(np.frombuffer(data[44:], "<i2").sum(dtype=np.int64)) % 2**31


def form(*fields: tuple[str, Any], end: bool = True) -> bytes:
    """Return a multipart body; a value of bytes is a file."""
    body = b""
    for name, value in fields:
        head = f'--{BOUNDARY}\r\ncontent-disposition: form-data; name="{name}"'
        if isinstance(value, bytes):
            body += f'{head}; filename="a.wav"\r\ncontent-type: audio/wav\r\n\r\n'.encode() + value + b"\r\n"
        else:
            body += f"{head}\r\n\r\n{value}\r\n".encode()
    return body + (f"--{BOUNDARY}--\r\n".encode() if end else b"")


MODEL, STREAM = ("model", "hear"), ("stream", "true")


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hearing() -> AsyncIterator[AsyncPipe]:
    async with open_async(hearing_pipeline()) as pipe:
        yield pipe


@pytest.fixture(autouse=True)
def no_body_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let bodies that a test has whole be written down as they come."""
    monkeypatch.setattr(coming_form, "WHOLE_SECONDS", 0.0)


@pytest.fixture(scope="module")
def app(hearing: AsyncPipe) -> Application:
    return create_app(hearing, Settings())


def posting(app: Any) -> Connection:
    """A request whose body is put in by hand."""
    scope = {
        "type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode(), "query_string": b"", "root_path": "",
        "scheme": "http", "client": ("test", 1), "server": ("test", 80), "http_version": "1.1",
        "headers": [(b"host", b"test"), (b"content-type", f"multipart/form-data; boundary={BOUNDARY}".encode())],
        "asgi": {"version": "3.0", "spec_version": "2.4"},
    }  # fmt: skip
    return Connection(app, scope)


async def send(request: Connection, data: bytes, more: bool = True) -> None:
    await request.to_app.put({"type": "http.request", "body": data, "more_body": more})


async def answer(request: Connection) -> tuple[int, list[dict[str, Any]]]:
    """Return the status and the events of a whole answer."""
    start, data = await request.receive(), b""
    while (message := await request.receive()).get("more_body"):
        data += message["body"]
    data += message["body"]
    await request.to_app.put({"type": "http.disconnect"})
    await request.task
    if start["status"] != 200:
        return start["status"], [json.loads(data)]
    return 200, [json.loads(line[6:]) for line in data.decode().split("\n\n") if line[:7] == "data: {"]


async def posted(app: Any, body: bytes, *sizes: int) -> tuple[int, list[dict[str, Any]]]:
    request = posting(app)
    at = 0
    for size in sizes:
        await send(request, body[at : at + size])
        at += size
    await send(request, body[at:], more=False)
    return await answer(request)


async def nothing_is_left(app: Application, pipe: AsyncPipe) -> None:
    server = app.state.server
    async with asyncio.timeout(30):
        while (
            server.admission.running
            or server.body_budget.held
            or any(each.name == "upload" for each in threading.enumerate())
        ):
            await asyncio.sleep(0.01)
        while any(parts.get("hear", {}).get("running") for parts in (await pipe.statistics()).values()):
            await asyncio.sleep(0.01)
    assert server.metrics.live.labels("audio")._value.get() == 0


async def test_words_come_before_the_body_has_ended(app: Application, hearing: AsyncPipe) -> None:
    """Over a real connection: the head of the answer and words are read while the recording is being sent."""
    data = recording(20.0)
    body = form(MODEL, STREAM, ("language", "de"), ("file", data))
    async with running_server(app) as address:
        host, port = address.split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        head = f"POST {PATH} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
        writer.write(f"{head}content-type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n".encode() + body[:80_000])
        async with asyncio.timeout(30):
            found = await reader.readuntil(b"transcript.text.delta")
            assert found.startswith(b"HTTP/1.1 200 ")
            assert b"de1 de2" in await reader.readuntil(b"\n\n")
            writer.write(body[80_000:])
            rest = await reader.readuntil(b"[DONE]")
            done = json.loads(rest[rest.index(b'{"type":"transcript.text.done"') :].partition(b"\n\n")[0])
            # The connection serves on.
            await reader.readuntil(b"0\r\n\r\n")
            writer.write(b"GET /health HTTP/1.1\r\nhost: x\r\n\r\n")
            assert (await reader.readline()).startswith(b"HTTP/1.1 200")
        writer.close()
    assert done["text"] == words(20.0, "de")
    assert (done["usage"]["input_tokens"], done["usage"]["output_tokens"]) == (20 * RATE, total(data))
    await nothing_is_left(app, hearing)


async def test_the_sdk_gets_the_words_of_every_format(app: Application, hearing: AsyncPipe) -> None:
    async with openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http_client(app)) as client:
        for name, data in (
            ("a.wav", recording(2.0)),
            ("a.pcm", bytes(2 * 48_000)),
            *((f"a.{kind}", encoded(kind, codec)) for kind, codec in (
                ("flac", "flac"), ("mp3", "libmp3lame"), ("ogg", "libopus"), ("webm", "libopus"), ("adts", "aac"))),
        ):  # fmt: skip
            stream = await client.audio.transcriptions.create(model="hear", file=(name, data), stream=True)
            events = [each async for each in stream]
            assert "".join(each.delta for each in events if each.type == "transcript.text.delta") == events[-1].text
            assert events[-1].text.startswith(words(2.0))  # AAC is padded
    await nothing_is_left(app, hearing)


async def test_no_cut_of_the_body_changes_what_is_heard(app: Application) -> None:
    data = recording(1.5)
    body = form(("prompt", "names"), MODEL, STREAM, ("file", data), ("unknown", "x"))
    for seed in range(12):
        choice, sizes = random.Random(seed), list[int]()
        while sum(sizes) < len(body):
            sizes.append(choice.randint(1, choice.choice([40, 400, 4000, 40_000])))
        status, events = await posted(app, body, *sizes[:-1])
        assert (status, events[-1]["text"]) == (200, words(1.5)), events
        assert events[-1]["usage"]["input_tokens"] == round(1.5 * RATE)
        assert events[-1]["usage"]["output_tokens"] == total(data)


async def test_a_client_can_know_it(app: Application) -> None:
    async with http_client(app) as http:
        [model] = (await http.get("/v1/models")).json()["data"]
    assert model["capabilities"]["input_streams"] == ["audio"]


class Counting:
    """A pipeline's face that counts requests by how they come."""

    def __init__(self, pipe: AsyncPipe) -> None:
        self._pipe, self.opened, self.whole = pipe, 0, 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pipe, name)

    def open_request(self, *given: Any, **named: Any) -> Any:
        self.opened += 1
        return self._pipe.open_request(*given, **named)

    def stream(self, *given: Any, **named: Any) -> Any:
        self.whole += 1
        return self._pipe.stream(*given, **named)


async def test_what_cannot_be_heard_while_it_comes_is_read_whole(hearing: AsyncPipe) -> None:
    wav = recording(0.5)
    pipe: Any = Counting(hearing)
    app = create_app(pipe, Settings())
    for fields, live in (
        ((MODEL, STREAM, ("file", wav)), True),
        ((MODEL, ("file", wav), STREAM), False),
        ((STREAM, ("file", wav), MODEL), False),
        ((MODEL, ("stream", "false"), ("file", wav)), False),
        ((MODEL, ("file", wav)), False),
    ):
        before = pipe.opened, pipe.whole
        status, _ = await posted(app, form(*fields), 300)
        assert status == 200
        assert (pipe.opened - before[0], pipe.whole - before[1]) == ((1, 0) if live else (0, 1))
    with_index_last = form(MODEL, STREAM, ("file", encoded("mp4", "aac")))
    await posted(app, with_index_last, 1000)
    assert pipe.opened == 1  # the toy decodes WAV alone: the request came whole, and it fails there
    deaf = create_app(pipe, Settings())
    deaf.state.server.interface = evolve(HEARING, input_streams=[])
    assert (await posted(deaf, form(MODEL, STREAM, ("file", wav)), 300))[1][-1]["text"] == words(0.5)
    assert pipe.opened == 1


@pytest.mark.parametrize(
    ("fields", "code", "message"),
    [
        ([("file", recording(0.3)), ("language", "de")], 400, "language: comes after the file"),
        ([("file", recording(0.3)), ("file", recording(0.3))], 400, "file: given twice"),
        ([("prompt", ""), ("file", recording(0.3)), ("prompt", "")], 400, "prompt: given twice"),
        ([("file", b"RIFF0000WAVE" + bytes(500))], 400, "file (audio): "),
        ([("file", recording(0.3)[:44])], 400, "there is no sound"),
        ([("prompt", "refuse"), ("file", recording(0.3))], 400, "told to refuse"),
        ([("prompt", "fail"), ("file", recording(0.3))], 500, "The server failed"),
        ([("language", "xx" * 60), ("file", b"short")], 400, ""),
        ([("file", b"")], 400, "the file is empty"),
    ],
)
async def test_mistakes_are_named(
    app: Application, hearing: AsyncPipe, fields: list[tuple[str, Any]], code: int, message: str
) -> None:
    status, events = await posted(app, form(MODEL, STREAM, *fields), 600)
    error = events[-1]["error"]
    assert message in error["message"], error
    assert status in (code, 200)
    await nothing_is_left(app, hearing)


async def test_fields_after_the_file_that_are_here_already_are_read(app: Application) -> None:
    _, events = await posted(app, form(MODEL, STREAM, ("file", recording(0.3)), ("language", "de")))
    assert events[-1]["text"] == words(0.3, "de")


async def test_a_form_that_ends_too_early(app: Application, hearing: AsyncPipe) -> None:
    body = form(MODEL, STREAM, ("file", recording(1.0)))
    status, events = await posted(app, body[:-100], 3000)
    assert (status, events[-1]["error"]["code"]) == (400, "invalid_form") or "the form ends" in str(events[-1])
    await nothing_is_left(app, hearing)


async def test_limits_are_those_of_whole_recordings(hearing: AsyncPipe) -> None:
    body = form(MODEL, STREAM, ("file", recording(2.0)))
    for limits, words_of_it in (
        (Limits(audio_seconds=1.0, recording_seconds=1.0), "1 s"),
        (Limits(media_mib=0.5, body_mib=1), ""),
    ):
        app = create_app(hearing, Settings(limits=limits))
        _, events = await posted(app, body if words_of_it else form(MODEL, STREAM, ("file", recording(40.0))), 500)
        error = events[-1]["error"]
        assert error["code"] == "media_too_large"
        assert words_of_it in error["message"]
        await nothing_is_left(app, hearing)


async def test_a_client_that_goes_away_in_the_middle_leaves_nothing(app: Application, hearing: AsyncPipe) -> None:
    body = form(MODEL, STREAM, ("file", recording(30.0)))
    for size in (300, 5_000, 120_000):
        request = posting(app)
        await send(request, body[:size])
        if size == 120_000:
            assert (await request.receive())["status"] == 200
        await request.to_app.put({"type": "http.disconnect"})
        async with asyncio.timeout(30):
            await request.task
    await nothing_is_left(app, hearing)


async def test_an_upload_that_waits_for_its_place_holds_little(hearing: AsyncPipe) -> None:
    """Neither bytes of the budget of bodies nor a thread, and its body is not read to the end."""
    app = create_app(hearing, Settings(concurrent=1))
    body = form(MODEL, STREAM, ("file", recording(60.0)))
    first, second = posting(app), posting(app)
    await send(first, body[:120_000])
    assert (await first.receive())["status"] == 200
    for at in range(0, 600_000, 60_000):
        await send(second, body[at : at + 60_000])
    async with asyncio.timeout(30):
        while second.to_app.qsize() > 10 - 4:
            await asyncio.sleep(0.01)
    await asyncio.sleep(0.1)
    assert app.state.server.body_budget.held == 0
    assert second.to_app.qsize() >= 10 - 5
    assert sum(each.name == "upload" for each in threading.enumerate()) == 1
    await send(first, body[120_000:], more=False)
    await send(second, body[600_000:], more=False)
    for each in (first, second):
        while b'"transcript.text.done"' not in (message := await each.receive()).get("body", b""):
            assert message["type"].startswith("http.response")
        await each.to_app.put({"type": "http.disconnect"})
        async with asyncio.timeout(30):
            await each.task
    await nothing_is_left(app, hearing)


async def test_a_body_may_take_its_time_but_no_piece_of_it(
    app: Application, hearing: AsyncPipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(guard, "_BODY_SECONDS", 0.3)
    body = form(MODEL, STREAM, ("file", recording(1.0)))
    request = posting(app)
    for at in range(0, len(body), 4_000):
        await send(request, body[at : at + 4_000], more=at + 4_000 < len(body))
        await asyncio.sleep(0.12)
    assert (await answer(request))[1][-1]["text"] == words(1.0)
    request = posting(app)
    await send(request, body[:1000])
    status, events = await answer(request)
    assert (status, events[-1]["error"]["code"]) == (408, "body_timeout")
    assert events[-1]["error"]["message"] == "Nothing of the body has come for 0.3 s."
    await nothing_is_left(app, hearing)
