"""Speech from text: formats, events, speed, voices, and text that arrives in pieces."""

from __future__ import annotations

import asyncio
import base64
import io
import json
from typing import Any

import av
import httpx2
import numpy as np
import openai
import pytest
import soxr
from attrs import evolve
from omni_serve_clients import http_client, socket_to
from serve_stages import PACING, RATE, READING, speaking_pipeline, tone

from omni_core import open_async
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.encoders import pcm16, wav_header, written
from omni_serve.g711 import Law, to_law
from omni_serve.streams import whole

pytestmark = pytest.mark.asyncio(loop_scope="session")

LAWS: tuple[Law, ...] = ("pcmu", "pcma")
SOUND = pcm16(np.concatenate([tone("one"), tone("two")]))


def seconds(data: bytes) -> float:
    with av.open(io.BytesIO(data)) as file:
        return sum(frame.samples for frame in file.decode(audio=0)) / float(file.streams.audio[0].rate)


def spoken(events: str) -> bytes:
    """Return the sound of events."""
    read = [json.loads(line[6:]) for line in events.split("\n") if line.startswith("data: ")]
    return b"".join(base64.b64decode(each["audio"]) for each in read if each["type"] == "speech.audio.delta")


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav"])
@pytest.mark.parametrize("speed", [1.0, 2.0])
async def test_every_format_as_sound_and_as_events(http: httpx2.AsyncClient, form: str, speed: float) -> None:
    body = {"model": "tones", "input": "one two", "response_format": form, "speed": speed}
    plain = await http.post("/v1/audio/speech", json=body)
    assert plain.status_code == 200
    assert seconds(plain.content) == pytest.approx(len(SOUND) / 2 / RATE / speed, abs=0.08)
    events = await http.post("/v1/audio/speech", json={**body, "stream_format": "sse"})
    assert events.headers["content-type"] == "text/event-stream"
    read = [json.loads(line[6:]) for line in events.text.split("\n") if line.startswith("data: ")]
    assert [each["type"] for each in read[:-1]] == ["speech.audio.delta"] * (len(read) - 1)
    streamed = spoken(events.text)
    if form == "opus":  # an Ogg stream has a random number
        assert len(streamed) == len(plain.content)
    else:
        assert streamed == plain.content
    assert read[-1] == {
        "type": "speech.audio.done",
        "usage": {"input_tokens": 2, "output_tokens": 2, "total_tokens": 4},
    }


async def test_the_last_event_says_what_the_speech_lacks(http: httpx2.AsyncClient) -> None:
    asked = {"model": "tones", "input": "cut", "response_format": "pcm", "stream_format": "sse"}
    events = await http.post("/v1/audio/speech", json=asked)
    assert json.loads(events.text.strip().split("data: ")[-1])["notices"] == ["it was cut"]


async def test_the_sdk_gets_pcm(client: openai.AsyncOpenAI) -> None:
    answer = await client.audio.speech.create(model="tts-1", voice="default", input="one two", response_format="pcm")
    assert answer.content == SOUND
    async with client.audio.speech.with_streaming_response.create(
        model="tones", voice={"id": "high"}, input="one two", response_format="pcm"
    ) as streamed:
        data = b"".join([piece async for piece in streamed.iter_bytes()])
    assert data == pcm16(np.concatenate([tone("one", "high"), tone("two", "high")]))


@pytest.mark.parametrize(
    ("form", "rate"), [("pcm", 8_000), ("pcm", 44_100), ("wav", 11_111), ("pcmu", None), ("pcma", 16_000)]
)
async def test_the_sdk_gets_any_rate_whole_in_pieces_as_events_and_by_text_in_pieces(
    client: openai.AsyncOpenAI, app: Application, form: Any, rate: int | None
) -> None:
    out = rate or 8_000
    sound = pcm16(soxr.resample(np.concatenate([tone("one"), tone("two")]), RATE, out))
    expected = {
        "pcm": sound,
        "wav": wav_header(out, None) + sound,
        **{law: to_law(np.frombuffer(sound, "<i2"), law) for law in LAWS},
    }[form]
    asked: Any = {"model": "tones", "voice": "default", "input": "one two", "response_format": form}
    asked["extra_body"] = {"sample_rate": rate}
    whole = await client.audio.speech.create(**asked)
    kind = "audio/wav" if form == "wav" else f"audio/{form};rate={out};channels=1"
    assert (whole.content == expected, whole.response.headers["content-type"]) == (True, kind)
    async with client.audio.speech.with_streaming_response.create(**asked) as streamed:
        assert b"".join([piece async for piece in streamed.iter_bytes()]) == expected
    events = await client.audio.speech.create(**asked, stream_format="sse")
    assert spoken(events.text) == expected
    async with socket_to(app, "/v1/audio/speech/stream") as socket:
        await socket.send_json(
            {"type": "session.config", "model": "tones", "response_format": form, "sample_rate": rate}
        )
        assert (await socket.receive_json())["media_type"] == kind
        await socket.send_json({"type": "input.text", "text": "one two"})
        await socket.send_json({"type": "input.done"})
        found, told = b"", {"type": ""}
        while told["type"] != "session.done":
            message = await socket.receive()
            found += message.get("bytes") or b""
            told = json.loads(message.get("text") or '{"type": ""}')
        assert found == expected


async def test_a_long_piece_does_not_hold_up_the_event_loop(http: httpx2.AsyncClient) -> None:
    """It is encoded in a thread."""
    loops = []

    class Slow:
        def write(self, samples: np.ndarray[Any, Any]) -> bytes:
            loops.append(asyncio._get_running_loop())
            return b"x"

        def finish(self) -> bytes:
            return b""

    assert await written(Slow(), np.zeros(10 * RATE, np.float32)) == b"x"
    assert await written(Slow(), np.zeros(RATE, np.float32)) == b"x"
    assert loops == [None, asyncio.get_running_loop()]


@pytest.mark.parametrize("size", [0, 1, 2**20, 3 * 2**20 + 1])
async def test_a_long_answer_is_sent_in_steps(size: int) -> None:
    """The web server copies what it sends on the event loop."""
    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    body = bytes(range(256)) * (size // 256) + bytes(size % 256)
    await whole(body, "audio/wav", {"x-more": "1"})({"type": "http"}, never, send)
    start, *parts = sent
    assert {(b"content-length", str(size).encode()), (b"x-more", b"1")} <= {*start["headers"]}
    assert b"".join(each["body"] for each in parts) == body
    assert max(len(each["body"]) for each in parts) <= 2**20
    assert [each.get("more_body", False) for each in parts] == [True] * (len(parts) - 1) + [False]
    sent.clear()
    await whole(body, "audio/wav")({"type": "http", "http_version": "1.0"}, never, send)
    assert [value for name, value in sent[0]["headers"] if name == b"content-length"] == [str(size).encode()]
    assert b"".join(each["body"] for each in sent[1:]) == body


async def never() -> Any:
    """Receive nothing."""
    await asyncio.get_running_loop().create_future()


async def test_mp3_is_the_default(client: openai.AsyncOpenAI) -> None:
    answer = await client.audio.speech.create(model="tones", voice="low", input="one")
    assert answer.response.headers["content-type"] == "audio/mpeg"
    with av.open(io.BytesIO(answer.content)) as file:
        assert file.format.name == "mp3"


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": "x" * 4097}, "input"),
        ({"input": " "}, "input"),
        ({"input": "refuse"}, "input"),
        ({"input": "unsayable"}, "input"),
        ({"speed": 5}, "speed"),
        ({"response_format": "ogg"}, "response_format"),
        ({"sample_rate": 7_999}, "sample_rate"),
        ({"sample_rate": 48_001}, "sample_rate"),
        ({"sample_rate": 8_000.5}, "sample_rate"),
        ({"sample_rate": "8000"}, "sample_rate"),
        ({"sample_rate": 44_100, "response_format": "opus"}, "sample_rate"),
        ({"stream_format": "chunks"}, "stream_format"),
        ({"voice": "alloys"}, "voice"),
        ({"voice": {"id": "voice_1"}}, "voice.id"),
        ({"instruction": "sing"}, "instruction"),
        ({"ref_audio": "a.wav"}, "ref_audio"),
    ],
)
async def test_what_is_not_honoured_is_named(http: httpx2.AsyncClient, given: dict[str, Any], param: str) -> None:
    answer = await http.post("/v1/audio/speech", json={"model": "tones", "input": "one", "voice": "low", **given})
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == param


async def test_text_in_pieces_is_spoken_sentence_by_sentence(app: Application) -> None:
    async with socket_to(app, "/v1/audio/speech/stream") as socket:
        await socket.send_json({"type": "session.config", "model": "tones", "voice": "low"})
        assert (await socket.receive_json())["type"] == "session.started"
        await socket.send_json({"type": "input.text", "text": "One tw"})
        await socket.send_json({"type": "input.text", "text": "o. And thr"})
        assert await socket.receive_json() == {
            "type": "audio.start",
            "sentence_index": 0,
            "sentence_text": "One two.",
        }  # before the text has ended
        await socket.send_json({"type": "input.text", "text": "ee"})
        await socket.send_json({"type": "input.done"})
        await socket.to_app.put({"type": "websocket.receive", "bytes": b"read no more"})
        sound, kinds = b"", []
        while not kinds or kinds[-1] != "session.done":
            message = await socket.receive()
            if message.get("bytes"):
                sound += message["bytes"]
            else:
                kinds.append(json.loads(message["text"])["type"])
        words = ["One", "two.", "And", "three"]
        assert sound == pcm16(np.concatenate([tone(word, "low") for word in words]))
        assert kinds == ["audio.done", "audio.start", "audio.done", "session.done"]


@pytest.mark.parametrize(
    ("messages", "words"),
    [
        (["{}"], "session.config"),
        (["{"], "JSON"),
        (['{"type": "session.config"}'], "model"),
        (['{"type": "session.config", "model": "x"}'], "does not exist"),
        (['{"type": "session.config", "model": "tones"}', '{"type": "input.txt"}'], "did you mean 'input.text'"),
        (['{"type": "session.config", "model": "tones"}', '{"type": "input.text", "text": 1}'], "must be text"),
        (['{"type": "session.config", "model": "tones"}', '{"type": "input.text", "text": "fail"}',
          '{"type": "input.done"}'], "The server failed; id "),
    ],
)  # fmt: skip
async def test_a_mistake_ends_the_session_with_an_error(app: Application, messages: list[str], words: str) -> None:
    async with socket_to(app, "/v1/audio/speech/stream") as socket:
        for message in messages:
            await socket.send_text(message)
        while (told := await socket.receive_json())["type"] != "error":
            pass
        assert words in told["error"]["message"]
        assert (await socket.receive())["type"] == "websocket.close"


@pytest.mark.asyncio(loop_scope="session")
async def test_null_means_not_given(http: httpx2.AsyncClient) -> None:
    nothing = dict.fromkeys(("voice", "instructions", "response_format", "speed", "stream_format", "extra_body"))
    answer = await http.post("/v1/audio/speech", json={"model": "tones", "input": "one", **nothing})
    assert (answer.status_code, answer.headers["content-type"]) == (200, "audio/mpeg")


async def test_the_speed_is_that_of_a_pipeline_that_has_one() -> None:
    async with open_async(speaking_pipeline(PACING)) as pipe:
        http = http_client(create_app(pipe, Settings()))
        asked = {"model": "tones", "input": "one", "response_format": "pcm"}
        answer = await http.post("/v1/audio/speech", json={**asked, "speed": 2.0})
        sampling = {"stage_sampling": {"speaker": {"speed": 4.0}}}
        other = await http.post("/v1/audio/speech", json={**asked, **sampling})
        both = await http.post("/v1/audio/speech", json={**asked, "speed": 2.0, **sampling})
    assert answer.content == pcm16(tone("one")[: len(tone("one")) // 2])
    assert other.content == pcm16(tone("one")[: len(tone("one")) // 4])
    assert both.status_code == 400
    assert both.json()["error"]["param"] == "speed"


async def test_instructions_that_a_voice_does_not_read_are_named() -> None:
    async with open_async(speaking_pipeline(evolve(READING, speech_system=False))) as pipe:
        http = http_client(app := create_app(pipe, Settings()))
        asked = {"model": "tones", "input": "history", "instructions": "whisper", "response_format": "pcm"}
        answer = await http.post("/v1/audio/speech", json=asked)
        async with socket_to(app, "/v1/audio/speech/stream") as socket:
            await socket.send_json({"type": "session.config", "model": "tones", "instructions": "whisper"})
            told = (await socket.receive_json())["x_omni_ignored"]
    assert (answer.content, answer.headers["x-omni-ignored"], told) == (b"", "instructions", ["instructions"])


async def test_a_pipeline_that_also_answers_speaks_the_text_as_it_is() -> None:
    async with open_async(speaking_pipeline(READING)) as pipe:
        http = http_client(app := create_app(pipe, Settings()))
        client = openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0)
        assert (await client.models.retrieve("tones")).capabilities["speech"] == "direct"

        async def spoken(text: str, **more: Any) -> bytes:
            asked: Any = {"model": "tones", "voice": "low", "input": text, "response_format": "pcm", **more}
            return (await client.audio.speech.create(**asked)).content

        assert await spoken("one two") == pcm16(np.concatenate([tone("one", "low"), tone("two", "low")]))
        assert await spoken("implode") == pcm16(
            tone("implode", "low")
        )  # the stage that writes would fail: it is not asked
        assert await spoken("history", instructions="whisper") == pcm16(tone("system=whisper", "low"))
        # Plain parameters are those of the stage that speaks: nobody else is asked.
        params = {"speaker": {"seed": 3, "temperature": 0.5}, "writer": {"seed": 3}}
        told = json.dumps({"params": params, "metadata": {"speaker": "low"}}, sort_keys=True)
        assert await spoken("params", extra_body={"temperature": 0.5, "seed": 3}) == pcm16(tone(told, "low"))
        for more, param in (
            ({"extra_body": {"stop": "x"}}, "stop"),
            (
                {"extra_body": {"temperature": 1, "stage_sampling": {"speaker": {"temperature": 0}}}},
                "stage_sampling.speaker.temperature",
            ),
            ({"extra_body": {"temperature": "hot"}}, "temperature"),
            (
                {"extra_body": {"stage_sampling": {"speaker": {"temperature": "hot"}}}},
                "stage_sampling.speaker.temperature",
            ),
        ):
            with pytest.raises(openai.BadRequestError) as raised:
                await spoken("one", **more)
            assert raised.value.param == param
        with pytest.raises(openai.BadRequestError) as raised:
            await spoken("refuse", instructions="whisper")
        assert raised.value.param == "instructions"  # messages[0] is what says how
        async with socket_to(app, "/v1/audio/speech/stream") as socket:
            await socket.send_json({"type": "session.config", "model": "tones", "voice": "low"})
            await socket.send_json({"type": "input.text", "text": "One two. Three"})
            await socket.send_json({"type": "input.done"})
            found, told = b"", ""
            while told != "session.done":
                message = await socket.receive()
                found += message.get("bytes") or b""
                told = json.loads(message.get("text") or '{"type": ""}')["type"]
            assert found == pcm16(np.concatenate([tone(word, "low") for word in ("One", "two.", "Three")]))
