"""The times of the words of speech: in JSON, in a header, in events, over the socket, at any speed."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import av
import httpx2
import numpy as np
import openai
import pytest
from attrs import evolve
from omni_serve_clients import http_client, socket_to
from serve_stages import INTERFACE, PACING, RATE, speaking_pipeline, tone

from omni_core import AsyncPipe, open_async
from omni_core.api import WORD_TIMES, Word
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.encoders import pcm16
from omni_serve.errors import ApiError
from omni_serve.word_times import ask_for_words, scaled

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXT = "one late three"


def times(text: str, speed: float = 1.0) -> list[dict[str, Any]]:
    """Return the words as they must be told: each tone is a word."""
    found, at = [], 0
    for word in text.split():
        end = at + len(tone(word))
        found.append({"word": word, "start": round(at / RATE / speed, 3), "end": round(end / RATE / speed, 3)})
        at = end
    return found


@pytest.mark.parametrize(("speed", "form"), [(1.0, "wav"), (2.0, "wav"), (0.5, "mp3")])
async def test_the_sdk_gets_sound_and_words_in_json(client: openai.AsyncOpenAI, speed: float, form: Any) -> None:
    given: dict[str, Any] = {"model": "tones", "voice": "low", "input": TEXT, "response_format": form, "speed": speed}
    answer = await client.audio.speech.create(**given, extra_body={"timestamps": "word"})
    assert answer.response.headers["content-type"] == "application/json"
    told = answer.response.json()
    assert told["words"] == times(TEXT, speed)
    assert told["duration"] == told["words"][-1]["end"]
    assert (told["format"], told["usage"]["output_tokens"]) == (form, 3)
    assert told["media_type"].startswith("audio/")
    plain = await client.audio.speech.create(**given)
    sound = base64.b64decode(told["audio"])
    if form == "wav":  # its header says how long it is; that of a stream does not
        assert sound[44:] == plain.content[44:]
    with av.open(io.BytesIO(sound)) as file:
        heard = sum(frame.samples for frame in file.decode(audio=0)) / RATE
    assert heard == pytest.approx(told["duration"], abs=0.08)


async def test_the_sdk_reads_words_as_events(client: openai.AsyncOpenAI) -> None:
    given: dict[str, Any] = {"model": "tones", "voice": "low", "input": "one late three late", "response_format": "pcm"}
    async with client.audio.speech.with_streaming_response.create(
        **given, stream_format="sse", speed=2.0, extra_body={"timestamps": "word"}
    ) as answer:
        lines = [line async for line in answer.iter_lines()]
    events = [json.loads(line[6:]) for line in lines if line.startswith("data: ")]
    assert [word for each in events for word in each.get("words", [])] == times(given["input"], 2.0)
    kinds = [each["type"].rpartition(".")[2] for each in events]
    assert kinds[-1] == "done"
    assert kinds.count("words") == 3, "one, late and three together, and the last by the result"
    assert kinds.index("words") < len(kinds) - 1 - kinds[::-1].index("delta"), "they wait for the end"
    async with client.audio.speech.with_streaming_response.create(**given, stream_format="sse", speed=2.0) as plain:
        silent = [json.loads(line[6:]) async for line in plain.iter_lines() if line.startswith("data: ")]
    assert [each for each in events if each["type"] != "speech.audio.words"] == silent


@pytest.mark.parametrize("text", [TEXT, "word " * 200])
async def test_word_timestamps_has_them_in_a_header(http: httpx2.AsyncClient, text: str) -> None:
    asked = {"model": "tones", "input": text.strip(), "response_format": "pcm"}
    answer = await http.post("/v1/audio/speech", json={**asked, "word_timestamps": True})
    assert answer.content == (await http.post("/v1/audio/speech", json=asked)).content
    if text == TEXT:
        wanted = [
            {"word": each["word"], "start_ms": round(each["start"] * 1000), "end_ms": round(each["end"] * 1000)}
            for each in times(TEXT)
        ]
        assert json.loads(answer.headers["x-word-timestamps"]) == wanted
    else:
        assert int(answer.headers["x-word-timestamps-omitted"]) > 4096
        assert "x-word-timestamps" not in answer.headers


@pytest.mark.parametrize("asked", [{"timestamps": "word"}, {"word_timestamps": True}])
async def test_over_the_socket_each_sentence_has_its_words(app: Application, asked: dict[str, Any]) -> None:
    async with socket_to(app, "/v1/audio/speech/stream") as socket:
        await socket.send_json({"type": "session.config", "model": "tones", "voice": "low", **asked})
        await socket.send_json({"type": "input.text", "text": "One two. And late."})
        await socket.send_json({"type": "input.done"})
        told: list[dict[str, Any]] = []
        while not told or told[-1]["type"] != "session.done":
            told.append(await socket.receive_json())
    chunks = [each for each in told if each["type"] == "audio.chunk"]
    plain = pcm16(np.concatenate([tone(word, "low") for word in ("One", "two.", "And", "late.")]))
    assert b"".join(base64.b64decode(each["audio_b64"]) for each in chunks) == plain
    for index, sentence in enumerate(("One two.", "And late.")):
        own = [each for each in chunks if each["sentence_index"] == index]
        assert [each["chunk_id"] for each in own] == [*range(len(own))]
        words = [word for each in own for word in each["timestamps"] or []]
        wanted = [(each["word"], round(each["start"] * 1000), round(each["end"] * 1000)) for each in times(sentence)]
        assert [(each["word"], each["start_ms"], each["end_ms"]) for each in words] == wanted


async def test_the_times_of_a_pipeline_that_paces_itself_are_its_own() -> None:
    async with open_async(speaking_pipeline(PACING)) as pipe:
        http = http_client(create_app(pipe, Settings()))
        asked = {"model": "tones", "input": "one two", "timestamps": "word", "speed": 2.0}
        words = (await http.post("/v1/audio/speech", json=asked)).json()["words"]
    half = len(tone("one")) // 2 / RATE
    assert [(each["start"], each["end"]) for each in words] == [
        (0, round(half, 3)),
        (round(half, 3), round(2 * half, 3)),
    ]


async def test_who_asks_a_pipeline_that_does_not_know_them_is_refused(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings())
    app.state.server.interface = evolve(INTERFACE, word_times=False)
    http = http_client(app)
    for field, value in (("timestamps", "word"), ("word_timestamps", True)):
        answer = await http.post("/v1/audio/speech", json={"model": "tones", "input": "one", field: value})
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, field)
        assert "does not know when its words are heard" in answer.json()["error"]["message"]
    for nothing in ({"timestamps": "none"}, {"timestamps": None, "word_timestamps": None}, {"word_timestamps": False}):
        assert (
            await http.post("/v1/audio/speech", json={"model": "tones", "input": "one", **nothing})
        ).status_code == 200
    answer = await http.post("/v1/audio/speech", json={"model": "tones", "input": "one", "timestamps": "char"})
    assert answer.json()["error"]["param"] == "timestamps"


async def test_only_pipelines_to_which_they_are_work_are_asked() -> None:
    params: dict[str, Any] = {}
    ask_for_words(evolve(INTERFACE, params=[]), params, "timestamps")
    assert params == {}
    ask_for_words(evolve(INTERFACE, params=[WORD_TIMES]), params, "timestamps")
    assert params == {"timestamps": "word"}
    with pytest.raises(ApiError):
        ask_for_words(evolve(INTERFACE, word_times=False), params, "timestamps")
    assert scaled([Word("a", 1.0, 2.0)], 2.0) == [Word("a", 0.5, 1.0)]
