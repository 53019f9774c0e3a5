"""``/v1/realtime`` as OpenAI's client uses it, and clients that go away or misbehave."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
import soxr
import websockets
from omni_serve_clients import http_client, running_server, socket_to
from PIL import Image
from serve_stages import RATE, tone

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.encoders import pcm16
from omni_serve.settings import RealtimeLimits

pytestmark = pytest.mark.asyncio(loop_scope="session")

SECRET = "the secret of realtime"
MANUAL: Any = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
TEXT: Any = {"type": "realtime", "output_modalities": ["text"]}


@pytest.fixture(scope="module")
def spoken(pipe: AsyncPipe) -> Application:
    limits = RealtimeLimits(sessions_per_key=3, idle_seconds=5)
    return create_app(pipe, Settings(keys={"mine": SECRET}, realtime=limits))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address(spoken: Application) -> AsyncIterator[str]:
    async with running_server(spoken) as address:
        yield address


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sdk(address: str) -> AsyncIterator[openai.AsyncOpenAI]:
    async with openai.AsyncOpenAI(api_key=SECRET, base_url=f"http://{address}/v1", max_retries=0) as client:
        yield client


def voice(seconds: float) -> str:
    time = np.arange(int(seconds * RATE)) / RATE
    return base64.b64encode(pcm16((0.3 * np.sin(1400 * time) * (time % 0.2 < 0.15)).astype(np.float32))).decode()


def silence(seconds: float) -> str:
    return base64.b64encode(bytes(int(seconds * RATE) * 2)).decode()


def user(text: str) -> Any:
    return {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}


async def until(connection: Any, *kinds: str) -> list[Any]:
    """Return the events until one of a kind."""
    found: list[Any] = []
    async with asyncio.timeout(60):
        while not found or found[-1].type not in kinds:
            found.append(await connection.recv())
    return found


def sound_of(events: list[Any]) -> bytes:
    return b"".join(base64.b64decode(event.delta) for event in events if event.type == "response.output_audio.delta")


async def nothing_runs(app: Application) -> None:
    async with asyncio.timeout(60):
        while app.state.server.admission.running or app.state.server.realtime.count:
            await asyncio.sleep(0.01)


@pytest.mark.parametrize(("heard", "wanted"), [(48_000, 8_000), (11_025, 16_000)])
async def test_both_directions_have_any_rate(sdk: openai.AsyncOpenAI, heard: int, wanted: int) -> None:
    async with sdk.realtime.connect(model="tones") as connection:
        await connection.recv()
        sound: Any = {
            "input": {"format": {"type": "audio/pcm", "rate": heard}, "turn_detection": None},
            "output": {"format": {"type": "audio/pcm", "rate": wanted}},
        }
        await connection.session.update(session={"type": "realtime", "audio": sound})
        shown = (await connection.recv()).session.audio
        assert (shown.input.format.rate, shown.output.format.rate) == (heard, wanted)
        for _ in range(4):
            await connection.input_audio_buffer.append(audio=base64.b64encode(bytes(heard // 4 * 2)).decode())
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        found = await until(connection, "response.done")
        said = found[-1].response.output[0].content[0].transcript
        assert int(said.removeprefix("audio:")) == pytest.approx(44 + 2 * 16_000, abs=8)  # a second of WAV at 16 kHz
        assert (
            np.abs(
                np.frombuffer(sound_of(found), "<i2")
                - np.frombuffer(pcm16(soxr.resample(tone(said), RATE, wanted)), "<i2")
            ).max()
            <= 1
        )


async def test_text_is_answered_in_speech_and_in_text(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.realtime.connect(model="tones") as connection:
        created = await connection.recv()
        assert created.type == "session.created"
        assert created.session.model == "tones"
        await connection.conversation.item.create(item=user("one two"))
        await connection.response.create()
        found = await until(connection, "response.done")
        assert sound_of(found) == pcm16(np.concatenate([tone("one"), tone("two")]))
        done = found[-1].response
        assert done.status == "completed"
        assert done.output[0].content[0].transcript == "one two"
        assert done.usage.total_tokens == 4
        kinds = [event.type for event in found]
        expected = [
            "conversation.item.added", "conversation.item.done", "response.created", "response.output_item.added",
            "conversation.item.added", "response.content_part.added", "response.output_audio.done",
            "response.output_audio_transcript.done", "response.content_part.done", "conversation.item.done",
            "response.output_item.done", "response.done",
        ]  # fmt: skip
        assert [kind for kind in kinds if not kind.endswith(".delta")] == expected
        await connection.session.update(session=TEXT)
        assert (await connection.recv()).type == "session.updated"
        await connection.conversation.item.create(item=user("history"))
        await connection.response.create()
        found = await until(connection, "response.done")
        texts = [event.delta for event in found if event.type == "response.output_text.delta"]
        assert "".join(texts) == "user=one two assistant=one two"


async def test_turns_by_voice_and_by_hand(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.realtime.connect(model="tones") as connection:
        await connection.recv()
        for sound in (silence(0.4), voice(0.8), silence(0.4), silence(0.4)):
            await connection.input_audio_buffer.append(audio=sound)
        found = await until(connection, "response.done")
        assert [event.type for event in found][:3] == [
            "input_audio_buffer.speech_started",
            "input_audio_buffer.speech_stopped",
            "input_audio_buffer.committed",
        ]
        seconds = (found[1].audio_end_ms - found[0].audio_start_ms) / 1000
        name, size = found[-1].response.output[0].content[0].transcript.split(":")
        assert name == "audio"
        assert (int(size) - 44) / 32_000 == pytest.approx(seconds, abs=0.002)
        await connection.session.update(session=MANUAL)
        await connection.recv()
        await connection.input_audio_buffer.append(audio=voice(0.5))
        await connection.input_audio_buffer.commit()
        await connection.response.create()
        found = await until(connection, "response.done")
        assert sound_of(found)


async def test_barge_in(sdk: openai.AsyncOpenAI, spoken: Application) -> None:
    async with sdk.realtime.connect(model="tones") as connection:
        await connection.recv()
        await connection.session.update(session={"type": "realtime", "pause": 0.05})  # type: ignore[typeddict-unknown-key]
        await connection.conversation.item.create(item=user("word " * 300))
        await connection.response.create()
        found = await until(connection, "response.output_audio.delta")
        item = found[-1].item_id
        await connection.input_audio_buffer.append(audio=silence(0.3))
        await connection.input_audio_buffer.append(audio=voice(0.4))
        found = await until(connection, "response.done")
        assert "input_audio_buffer.speech_started" in [event.type for event in found]
        done = found[-1].response
        assert (done.status, done.status_details.reason) == ("cancelled", "turn_detected")
        assert done.output[0].status == "incomplete"
        async with asyncio.timeout(60):
            while spoken.state.server.admission.running:
                await asyncio.sleep(0.01)
        await connection.conversation.item.truncate(item_id=item, content_index=0, audio_end_ms=20)
        truncated = await connection.recv()
        assert (truncated.type, truncated.audio_end_ms) == ("conversation.item.truncated", 20)
        await connection.conversation.item.retrieve(item_id=item)
        assert not (await connection.recv()).item.content[0].transcript


async def test_the_sdk_gets_the_words_beside_their_sound(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.realtime.connect(model="tones") as connection:
        await connection.recv()
        output: Any = {"timestamps": "word", "speed": 0.5}
        await connection.session.update(session={"type": "realtime", "audio": {"output": output}})
        shown = (await connection.recv()).session.audio.output  # type: ignore[union-attr]
        assert shown.timestamps == "word"
        await connection.conversation.item.create(item=user("one late two"))
        await connection.response.create()
        events = await until(connection, "response.done")
    told = [each for each in events if each.type == "response.output_audio.words"]
    words = [word for each in told for word in each.words]
    ends = np.cumsum([len(tone(word)) for word in ("one", "late", "two")]) / RATE / 0.5
    assert [(each["word"], each["end"]) for each in words] == [
        (word, round(float(end), 3)) for word, end in zip(("one", "late", "two"), ends, strict=True)
    ]
    assert len(sound_of(events)) / 2 / RATE == pytest.approx(words[-1]["end"], abs=0.01)
    assert {(each.item_id, each.content_index) for each in told} == {
        (each.item_id, each.content_index) for each in events if each.type == "response.output_audio.delta"
    }


async def test_a_transcript_an_image_and_a_tool(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.realtime.connect(model="tones") as connection:
        await connection.recv()
        tool: Any = {"type": "function", "name": "look", "description": "Look.", "parameters": {"type": "object"}}
        sound: Any = {"input": {"turn_detection": None, "transcription": {"language": "en"}}}
        await connection.session.update(session={**TEXT, "audio": sound, "tools": [tool]})
        await connection.recv()
        await connection.input_audio_buffer.append(audio=voice(0.3))
        await connection.input_audio_buffer.commit()
        found = await until(connection, "conversation.item.input_audio_transcription.completed")
        assert found[-1].transcript.startswith("Write down")
        picture = io.BytesIO()
        Image.new("RGB", (4, 4)).save(picture, "png")
        url = "data:image/png;base64," + base64.b64encode(picture.getvalue()).decode()
        item = user("see")
        item["content"].append({"type": "input_image", "image_url": url})
        await connection.conversation.item.create(item=item)
        await connection.response.create()
        found = await until(connection, "response.done")
        call = next(event for event in found if event.type == "response.function_call_arguments.done")
        assert json.loads(call.arguments) == {"text": "see"}
        assert [each.type for each in found[-1].response.output] == ["message", "function_call"]
        item["content"][1] = {"type": "input_image", "image_url": "data:image/png;base64,AAAA"}
        await connection.conversation.item.create(item=item)
        assert (await connection.recv()).error.param == "item.content[1]"


async def test_short_lived_keys(sdk: openai.AsyncOpenAI, address: str) -> None:
    made = await sdk.realtime.client_secrets.create(
        expires_after={"anchor": "created_at", "seconds": 60}, session={**TEXT, "instructions": "Be kind."}
    )
    assert made.session.type == "realtime"
    protocols: Any = ["realtime", f"openai-insecure-api-key.{made.value}"]
    async with websockets.connect(f"ws://{address}/v1/realtime", subprotocols=protocols) as socket:
        assert socket.subprotocol == "realtime"
        session = json.loads(await socket.recv())["session"]
        assert (session["instructions"], session["output_modalities"]) == ("Be kind.", ["text"])
    with pytest.raises(openai.PermissionDeniedError):
        async with openai.AsyncOpenAI(api_key=made.value, base_url=f"http://{address}/v1", max_retries=0) as other:
            await other.realtime.client_secrets.create()
    with pytest.raises(openai.BadRequestError) as refused:
        await sdk.realtime.client_secrets.create(session={"type": "realtime", "voice": "x"})  # type: ignore[typeddict-unknown-key]
    assert "audio.output.voice" in str(refused.value)


async def test_what_comes_wrong_is_answered(spoken: Application) -> None:
    async with socket_to(spoken, "/v1/realtime", authorization=f"Bearer {SECRET}") as socket:
        await socket.receive_json()
        for text in ("{", "[]", '"x"', "{}"):
            await socket.send_text(text)
            assert (await socket.receive_json())["type"] == "error"
        await socket.to_app.put({"type": "websocket.receive", "bytes": b"x"})
        assert (await socket.receive_json())["error"]["code"] == "invalid_json"
        await socket.send_json({"type": "session.update", "session": {"type": "realtime", "nonsense": 1}})
        updated = await socket.receive_json()
        assert (updated["type"], updated["x_omni_ignored"]) == ("session.updated", ["session.nonsense"])
        assert "nonsense" not in updated["session"]
        await socket.send_json({"type": "conversation.item.create", "item": user("fail")})
        await socket.send_json({"type": "response.create"})
        for _ in range(4):
            event = await socket.receive_json()
        assert event["response"]["status"] == "failed"


async def test_sessions_are_bounded(spoken: Application) -> None:
    headers = {"authorization": f"Bearer {SECRET}"}
    async with (
        socket_to(spoken, "/v1/realtime", **headers),
        socket_to(spoken, "/v1/realtime", **headers),
        socket_to(spoken, "/v1/realtime", **headers),
        socket_to(spoken, "/v1/realtime", **headers) as fourth,
    ):
        assert (await fourth.receive_json())["error"]["code"] == "concurrent_sessions_exceeded"
        assert (await fourth.receive())["type"] == "websocket.close"
    await nothing_runs(spoken)


async def test_clients_of_the_beta_api_are_told(spoken: Application) -> None:
    headers = {"authorization": f"Bearer {SECRET}", "openai_beta": "realtime=v1"}
    async with socket_to(spoken, "/v1/realtime", **headers) as socket:
        assert "response.output_audio.delta" in (await socket.receive_json())["error"]["message"]


async def test_what_is_kept_with_a_short_lived_key_is_bounded(spoken: Application) -> None:
    session = {"type": "realtime", "instructions": "x" * 70_000}
    async with http_client(spoken, headers={"authorization": f"Bearer {SECRET}"}) as http:
        answer = await http.post("/v1/realtime/client_secrets", json={"session": session})
    assert (answer.status_code, answer.json()["error"]["code"]) == (413, "session_too_large")


async def test_a_silent_client_is_let_go(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(realtime=RealtimeLimits(idle_seconds=0.05)))
    async with socket_to(app, "/v1/realtime") as socket:
        await socket.receive_json()
        assert (await socket.receive_json())["error"]["code"] == "idle_timeout"
    async with http_client(app) as http:
        assert (await http.post("/v1/realtime/client_secrets", json={})).status_code == 200
