"""The real web server: OpenAI's client in all its forms over a socket, bounded connections, SIGTERM."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import logging
import socket
import wave
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import pytest_asyncio
import websockets
from omni_serve_clients import SECRET, running_server

from omni_core import AsyncPipe
from omni_serve import Settings, connections, create_app
from omni_serve.encoders import pcm16

QUESTION: Any = [{"role": "user", "content": "Say hello."}]
REPLY = "Hello, nice to meet you."


def test_the_blocking_client(demo: str) -> None:
    client = openai.OpenAI(api_key=SECRET, base_url=demo, max_retries=0)
    assert [model.id for model in client.models.list()] == ["demo"]
    assert client.models.retrieve("demo").model_extra["capabilities"]["sample_rate"] == 24_000  # type: ignore[index]
    answer = client.chat.completions.create(
        model="demo", messages=QUESTION, modalities=["text", "audio"], audio={"voice": "ethan", "format": "wav"}
    )
    audio = answer.choices[0].message.audio
    assert audio is not None
    assert audio.transcript == REPLY
    with wave.open(io.BytesIO(base64.b64decode(audio.data))) as file:
        assert file.getframerate() == 24_000
        assert 0.5 < file.getnframes() / 24_000 < 5
    raw = client.chat.completions.with_raw_response.create(model="demo", messages=QUESTION)
    assert raw.headers["x-request-id"]
    assert raw.parse().choices[0].message.content == REPLY
    turn: Any = [*QUESTION, {"role": "assistant", "audio": {"id": audio.id}}, {"role": "user", "content": "Thank you!"}]
    assert client.chat.completions.create(model="demo", messages=turn).choices[0].message.content == "You are welcome."


def test_the_helpers_for_streams(demo: str) -> None:
    client = openai.OpenAI(api_key=SECRET, base_url=demo, max_retries=0)
    with client.chat.completions.stream(
        model="demo",
        messages=QUESTION,
        modalities=["text", "audio"],
        audio={"voice": "ethan", "format": "pcm16"},
        seed=1,
    ) as stream:
        streamed = stream.get_final_completion().choices[0].message.audio
    whole = client.chat.completions.create(
        model="demo",
        messages=QUESTION,
        modalities=["text", "audio"],
        audio={"voice": "ethan", "format": "pcm16"},
        seed=1,
    )
    assert streamed is not None
    assert whole.choices[0].message.audio is not None
    assert streamed.transcript == REPLY
    assert base64.b64decode(streamed.data, validate=True) == base64.b64decode(whole.choices[0].message.audio.data)
    with client.audio.speech.with_streaming_response.create(
        model="demo", voice="ethan", input="Say hello.", response_format="mp3"
    ) as speech:
        assert len(b"".join(speech.iter_bytes())) > 3000
    with client.responses.stream(model="demo", input="Say hello.") as response:
        assert response.get_final_response().output_text == REPLY


@pytest.mark.parametrize("word", ["yes", "stop"])
def test_a_spoken_question_gets_a_spoken_answer(demo: str, word: str) -> None:
    pytest.importorskip("espeakng_loader")
    from demo_training.speech.espeak import speak

    # Low noise, as of a microphone: the demo was trained with some.
    random = np.random.default_rng(1)
    question = np.concatenate([np.zeros(12_000), speak(word, rate=24_000), np.zeros(24_000)])
    question = (0.6 * question + 0.001 * random.standard_normal(len(question))).astype(np.float32)
    client = openai.OpenAI(api_key=SECRET, base_url=demo, max_retries=0)
    sound, answer = b"", None
    with client.realtime.connect(model="demo") as connection:
        for start in range(0, len(question), 2400):
            data = base64.b64encode(pcm16(question[start : start + 2400])).decode()
            connection.input_audio_buffer.append(audio=data)
        for event in connection:
            if event.type == "response.output_audio.delta":
                sound += base64.b64decode(event.delta)
            if event.type == "response.done":
                answer = event.response
                break
    assert answer is not None
    assert answer.output is not None
    assert answer.output[0].content[0].transcript == f"I heard you say {word}."  # type: ignore[union-attr,index]
    assert 0.5 < len(sound) / 2 / 24_000 < 5
    assert np.abs(np.frombuffer(sound, "<i2")).max() > 3000


async def test_the_asynchronous_client(demo: str) -> None:
    async with openai.AsyncOpenAI(api_key=SECRET, base_url=demo, max_retries=0) as client:

        async def ask() -> str:
            stream = await client.chat.completions.create(model="demo", messages=QUESTION, stream=True)
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])

        assert await asyncio.gather(*(ask() for _ in range(4))) == [REPLY] * 4
    async with openai.AsyncOpenAI(api_key="wrong", base_url=demo, max_retries=0) as client:
        with pytest.raises(openai.AuthenticationError):
            await client.models.list()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address(pipe: AsyncPipe) -> AsyncIterator[str]:
    """The server in this process, with a short time for headers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(connections, "HEADER_SECONDS", 0.3)
        async with running_server(create_app(pipe, Settings(keys={"mine": SECRET}))) as address:
            yield address


@pytest.mark.asyncio(loop_scope="session")
async def test_the_options_of_a_connection(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without TCP_NODELAY each answer is 40 ms late; without the others a client that has vanished is not missed."""
    seen: list[tuple[int, int, int]] = []
    made = connections.BoundedProtocol.connection_made

    def connection_made(self: Any, transport: Any) -> None:
        option = transport.get_extra_info("socket").getsockopt
        vanished = option(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT)
        alive = option(socket.SOL_SOCKET, socket.SO_KEEPALIVE) and option(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE)
        seen.append((option(socket.IPPROTO_TCP, socket.TCP_NODELAY), vanished, alive))
        made(self, transport)

    monkeypatch.setattr(connections.BoundedProtocol, "connection_made", connection_made)
    async with httpx2.AsyncClient() as http:
        await http.get(f"http://{address}/health")
    assert seen == [(1, 60_000, 30)]


@pytest.mark.asyncio(loop_scope="session")
async def test_headers_that_never_end(address: str) -> None:
    host, port = address.split(":")
    for begun in (b"", b"GET /health HTTP/1.1\r\nx: y\r\n", b"GET /health HTTP/1.1\r\nhost: x\r\n\r\nGET /"):
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(begun)
        async with asyncio.timeout(60):
            while await reader.read(1000):
                pass
        writer.close()


@pytest.mark.asyncio(loop_scope="session")
async def test_a_websocket_over_a_socket(address: str, caplog: pytest.LogCaptureFixture) -> None:
    url = f"ws://{address}/v1/audio/speech/stream"
    with pytest.raises(websockets.InvalidStatus) as refused:
        async with websockets.connect(url):
            pass
    assert refused.value.response.status_code == 401
    assert json.loads(refused.value.response.body)["error"]["code"] == "missing_api_key"
    assert [record for record in caplog.records if record.levelno >= logging.WARNING] == []
    protocols: Any = ["realtime", f"openai-insecure-api-key.{SECRET}"]
    async with websockets.connect(url, additional_headers={"Authorization": f"Bearer {SECRET}"}) as opened:
        await opened.send(json.dumps({"type": "session.config", "model": "tones"}))
        assert json.loads(await opened.recv())["type"] == "session.started"
    async with websockets.connect(url, subprotocols=protocols):
        pass


@pytest.mark.asyncio(loop_scope="session")
async def test_a_client_that_goes_away_aborts_its_stream(address: str, pipe: AsyncPipe) -> None:
    before = (await pipe.statistics())["coordinator"]["requests"]["aborted"]
    headers = {"authorization": f"Bearer {SECRET}"}
    body = {"model": "tones", "input": "word " * 200, "pause": 0.02, "response_format": "pcm"}
    async with (
        httpx2.AsyncClient(headers=headers) as http,
        http.stream("POST", f"http://{address}/v1/audio/speech", json=body) as answer,
    ):
        async for _ in answer.aiter_bytes():
            break
    async with asyncio.timeout(60):
        while (await pipe.statistics())["coordinator"]["requests"]["aborted"] == before:
            await asyncio.sleep(0.02)


@pytest.mark.asyncio(loop_scope="session")
async def test_a_failure_in_the_middle_cuts_the_sound_and_names_itself_in_events(address: str) -> None:
    headers = {"authorization": f"Bearer {SECRET}"}
    body = {"model": "tones", "input": "one two explode three", "response_format": "pcm", "pause": 0.1}
    async with httpx2.AsyncClient(headers=headers) as http:
        with pytest.raises(httpx2.RemoteProtocolError):
            await http.post(f"http://{address}/v1/audio/speech", json=body)
        answer = await http.post(f"http://{address}/v1/audio/speech", json={**body, "stream_format": "sse"})
    last = json.loads(answer.text.strip().split("\n")[-1].removeprefix("data: "))
    assert last["error"]["code"] == "stage_failed"
    assert last["error"]["message"].startswith("The server failed; id ")
