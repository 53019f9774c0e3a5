"""Recordings written down by a prompt of the pipeline's own."""

from __future__ import annotations

from typing import Any

import httpx2
import openai
import pytest
from attrs import evolve
from omni_serve_clients import http_client
from serve_stages import INTERFACE, RATE, tone

from omni_core import AsyncPipe
from omni_core.errors import RequestTooLargeError
from omni_serve import Settings, create_app
from omni_serve.encoders import whole
from omni_serve.errors import ApiError, api_error, placed
from omni_serve.settings import Limits

pytestmark = pytest.mark.asyncio(loop_scope="session")

RECORDING = whole("wav", [tone("x")], RATE)
TEXT = f"Write down what is said. audio:{len(RECORDING)}"


async def test_the_sdk_gets_the_text(client: openai.AsyncOpenAI) -> None:
    answer = await client.audio.transcriptions.create(model="tones", file=("a.wav", RECORDING))
    assert answer.text == TEXT
    assert answer.usage is not None
    assert answer.usage.type == "tokens"
    plain = await client.audio.transcriptions.create(model="tones", file=("a.wav", RECORDING), response_format="text")
    assert plain == TEXT + "\n"


async def test_the_verbose_form_has_the_seconds_and_no_invented_times(client: openai.AsyncOpenAI) -> None:
    answer = await client.audio.transcriptions.create(
        model="tones", file=("a.wav", RECORDING), response_format="verbose_json", language="en"
    )
    assert answer.text.startswith("Write down what is said.")
    assert (answer.language, answer.duration) == ("en", pytest.approx(len(tone("x")) / RATE, abs=1e-3))
    assert answer.segments is None


async def test_the_text_is_streamed(client: openai.AsyncOpenAI) -> None:
    stream = await client.audio.transcriptions.create(model="tones", file=("a.wav", RECORDING), stream=True)
    events = [each async for each in stream]
    assert "".join(each.delta for each in events if each.type == "transcript.text.delta") == TEXT
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == TEXT


async def test_language_and_style_are_told(client: openai.AsyncOpenAI) -> None:
    answer = await client.audio.transcriptions.create(
        model="tones", file=("a.wav", RECORDING), language="de", prompt="Straße"
    )
    assert "The language is: de." in answer.text
    assert "Straße" in answer.text


@pytest.mark.parametrize(
    ("data", "file", "param"),
    [
        ({"model": "tones", "response_format": "srt"}, RECORDING, "response_format"),
        ({"model": "tones", "timestamp_granularities[]": "word"}, RECORDING, "timestamp_granularities[]"),
        ({"model": "tones", "temperature": "warm"}, RECORDING, "temperature"),
        ({"model": "tones"}, b"not a sound", "file"),
        ({"model": "tones"}, b"", "file"),
        ({}, RECORDING, "model"),
    ],
)
async def test_mistakes_are_named(http: httpx2.AsyncClient, data: dict[str, Any], file: bytes, param: str) -> None:
    answer = await http.post("/v1/audio/transcriptions", data=data, files={"file": ("a.wav", file)})
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_the_pipeline_s_errors_name_the_file() -> None:
    refused = RequestTooLargeError("messages[0].content[0] (audio): 61.0 s are over the limit of 60 s")
    with pytest.raises(ApiError) as caught, placed({"messages[0].content[0]": "file"}):
        raise api_error(refused)
    assert (caught.value.param, caught.value.status) == ("file", 413)
    assert caught.value.message == "file (audio): 61.0 s are over the limit of 60 s"


async def test_limits_and_pipelines_that_cannot(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(limits=Limits(audio_seconds=0.05, recording_seconds=0.05)))
    files, data = {"file": ("a.wav", RECORDING)}, {"model": "tones"}
    async with http_client(app) as http:
        answer = await http.post("/v1/audio/transcriptions", data=data, files=files)
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "media_too_large")
        app.state.server.interface = evolve(INTERFACE, prompts={})
        answer = await http.post("/v1/audio/transcriptions", data=data, files=files)
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_operation")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"stream": "1"}, "stream: must be true or false"),
        ({"stream": "true", "response_format": "text"}, "stream: events"),
    ],
)
async def test_a_stream_that_is_not_offered_is_refused(
    client: openai.AsyncOpenAI, given: dict[str, str], message: str
) -> None:
    with pytest.raises(openai.BadRequestError, match=message):
        await client.post(
            "/audio/transcriptions",
            cast_to=httpx2.Response,
            body={"model": "tones", **given},
            files=[("file", ("a.wav", RECORDING))],
            options={"headers": {"content-type": "multipart/form-data"}},
        )
