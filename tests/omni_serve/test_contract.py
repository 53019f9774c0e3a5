"""The contract with OpenAI's clients: every answer, whole and streamed, is what the official SDK's types say, and no more."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import numpy as np
import pytest
import pytest_asyncio
from image_stages import drawing_pipeline
from omni_serve_clients import http_client, socket_to
from openai.types import ImageEditStreamEvent, ImageGenStreamEvent, ImagesResponse, Model, live
from openai.types.audio import (
    Transcription,
    TranscriptionStreamEvent,
    TranscriptionVerbose,
    Voice,
    VoiceConsent,
    VoiceConsentDeleted,
    VoiceDeleted,
)
from openai.types.beta.realtime import TranscriptionSessionUpdatedEvent
from openai.types.chat import ChatCompletion, ChatCompletionChunk
from openai.types.realtime import ClientSecretCreateResponse, RealtimeServerEvent
from openai.types.responses import Response, ResponseStreamEvent
from openai.types.shared import ErrorObject
from recogniser import recogniser, recording
from sdk_types import differences
from serve_stages import RATE

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.encoders import pcm16, whole

pytestmark = pytest.mark.asyncio(loop_scope="session")

DIFFERENCES = {
    # OpenAI's API sends these too; the SDK's types lack them.
    "Response.store",
    "ResponseFunctionCallArgumentsDoneEvent.name",
    "TranscriptionVerbose.task",
    *(f"RealtimeSessionCreateRequest.{name}" for name in ("id", "object", "expires_at")),
    *(f"RealtimeTranscriptionSessionCreateRequest.{name}" for name in ("id", "object", "expires_at")),
    "session.client_secret: Field required",  # of the beta API, where a session is made by a request
    # Ours, listed in docs/serving.md.
    "Model.capabilities",
    "Model.root",
    "Image.seed",
    "ImageGenCompletedEvent.seed",
    "ImageEditCompletedEvent.seed",
    "TranscriptionSegment.speaker",
    "TranscriptionSegment.confidence",
    "TranscriptionWord.speaker",
    "TranscriptionWord.confidence",
    "SessionUpdatedEvent.x_omni_ignored",
}
"""The differences that are meant."""

WORDS = (0.3 * np.sin(np.arange(RATE) / 10) * (np.arange(RATE) % 4800 < 3600)).astype(np.float32)
TURN = base64.b64encode(pcm16(np.concatenate([WORDS, np.zeros(RATE, np.float32)]))).decode()
LOOK: dict[str, Any] = {"name": "look", "parameters": {"type": "object", "properties": {}}, "strict": False}
CHAT: dict[str, Any] = {"model": "tones", "messages": [{"role": "user", "content": "one two"}]}
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "low", "format": "pcm16"}}
CALLED = {"tools": [{"type": "function", "function": LOOK}]}
ASKED: dict[str, Any] = {"model": "tones", "input": "one two"}


def check(text: str | bytes, kind: Any) -> None:
    assert differences(text, kind) - DIFFERENCES == set(), text


def data_of(answer: httpx2.Response) -> list[str]:
    """The data of a stream of events, the last one of a chat left out."""
    assert answer.status_code == 200, answer.text
    lines = [line.removeprefix("data: ") for line in answer.text.splitlines() if line.startswith("data: ")]
    assert lines
    return [line for line in lines if line != "[DONE]"]


async def test_the_comparison_finds_what_is_missing_wrong_and_further() -> None:
    model: dict[str, Any] = {"id": "a", "object": "model", "created": 1, "owned_by": "b"}
    assert differences(json.dumps(model), Model) == set()
    assert differences(json.dumps({**model, "size": 1}), Model) == {"Model.size"}
    for name, value in (("created", None), ("created", "1"), ("object", "models")):
        assert differences(json.dumps({**model, name: value}), Model)
    del model["owned_by"]
    assert differences(json.dumps(model), Model) == {"owned_by: Field required"}


@pytest.mark.parametrize(
    "given", [{}, SPOKEN, CALLED, {"max_tokens": 1}, {**CALLED, "tool_choice": "required"}], ids=str
)
async def test_chats(http: httpx2.AsyncClient, given: dict[str, Any]) -> None:
    check((await http.post("/v1/chat/completions", json={**CHAT, **given})).content, ChatCompletion)
    streamed = {"stream": True, "stream_options": {"include_usage": True}}
    for each in data_of(await http.post("/v1/chat/completions", json={**CHAT, **given, **streamed})):
        data = json.loads(each)
        for choice in data["choices"]:
            choice["delta"].pop("audio", None)  # the SDK's types do not know it, its helper for streams does
        check(json.dumps(data), ChatCompletionChunk)


@pytest.mark.parametrize(
    "given",
    [
        {},
        {"tools": [{"type": "function", **LOOK}]},
        {"max_output_tokens": 1, "instructions": "Be brief.", "temperature": 0.5, "metadata": {"a": "b"}},
        {"tools": [{"type": "function", **LOOK}], "tool_choice": {"type": "function", "name": "look"}},
        {"tools": [{"type": "function", "name": "look"}], "parallel_tool_calls": False},
    ],
    ids=str,
)
async def test_responses(http: httpx2.AsyncClient, given: dict[str, Any]) -> None:
    check((await http.post("/v1/responses", json={**ASKED, **given})).content, Response)
    for each in data_of(await http.post("/v1/responses", json={**ASKED, **given, "stream": True})):
        check(each, ResponseStreamEvent)


async def test_a_response_that_is_cut_or_fails(http: httpx2.AsyncClient) -> None:
    cut = (await http.post("/v1/responses", json={**ASKED, "max_output_tokens": 1})).json()
    assert (cut["status"], cut["output"][0]["status"]) == ("incomplete", "incomplete")
    events = data_of(
        await http.post("/v1/responses", json={**ASKED, "input": "one implode", "pause": 0.1, "stream": True})
    )
    for each in events:
        check(each, ResponseStreamEvent)
    assert json.loads(events[-1])["type"] == "response.failed"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def counting(pipe: AsyncPipe) -> AsyncIterator[httpx2.AsyncClient]:
    """A recogniser that knows times."""
    async with open_async(recogniser()) as opened:
        yield http_client(create_app(opened, Settings()))


@pytest.mark.parametrize("model", ["tones", "count"])
async def test_transcripts(http: httpx2.AsyncClient, counting: httpx2.AsyncClient, model: str) -> None:
    client = http if model == "tones" else counting
    files = {"file": ("a.wav", recording(0.45))}

    async def ask(**fields: Any) -> httpx2.Response:
        answer = await client.post("/v1/audio/transcriptions", data={"model": model, **fields}, files=files)
        assert answer.status_code == 200, answer.text
        return answer

    check((await ask()).content, Transcription)
    verbose = (await ask(response_format="verbose_json")).content
    check(verbose, TranscriptionVerbose)
    for each in data_of(await ask(stream="true")):
        check(each, TranscriptionStreamEvent)
    if model == "count":
        times = {"timestamp_granularities[]": ["word", "segment"], "diarize": "true"}
        check((await ask(response_format="verbose_json", **times)).content, TranscriptionVerbose)


async def test_images(pipe: AsyncPipe) -> None:
    async with open_async(drawing_pipeline()) as drawing, http_client(create_app(drawing, Settings())) as http:
        check((await http.post("/v1/images/generations", json={"prompt": "x", "n": 2})).content, ImagesResponse)
        streamed = {"prompt": "x", "stream": True, "partial_images": 2}
        for each in data_of(await http.post("/v1/images/generations", json=streamed)):
            check(each, ImageGenStreamEvent)
        image = base64.b64decode(
            (await http.post("/v1/images/generations", json={"prompt": "x"})).json()["data"][0]["b64_json"]
        )
        files = {"image": ("a.png", image)}
        check((await http.post("/v1/images/edits", data={"prompt": "x"}, files=files)).content, ImagesResponse)
        fields = {"prompt": "x", "stream": "true", "partial_images": "1"}
        for each in data_of(await http.post("/v1/images/edits", data=fields, files=files)):
            check(each, ImageEditStreamEvent)


async def test_models(http: httpx2.AsyncClient) -> None:
    answer = (await http.get("/v1/models")).json()
    assert answer.keys() == {"object", "data"}
    for each in answer["data"]:
        check(json.dumps(each), Model)
        check((await http.get(f"/v1/models/{each['id']}")).content, Model)


async def test_voices(http: httpx2.AsyncClient) -> None:
    sound = whole("wav", [WORDS], RATE)
    consent = await http.post(
        "/v1/audio/voice_consents", data={"name": "yes", "language": "en-US"}, files={"recording": ("c.wav", sound)}
    )
    check(consent.content, VoiceConsent)
    identity = consent.json()["id"]
    fields = {"name": "Contract", "text": "x", "consent": identity}
    voice = await http.post("/v1/audio/voices", data=fields, files={"audio_sample": ("a.wav", sound)})
    check(voice.content, Voice)
    check((await http.get(f"/v1/audio/voices/{voice.json()['id']}")).content, Voice)
    for each in (await http.get("/v1/audio/voice_consents")).json()["data"]:
        check(json.dumps(each), VoiceConsent)
    check((await http.post(f"/v1/audio/voice_consents/{identity}", json={"name": "no"})).content, VoiceConsent)
    check((await http.delete(f"/v1/audio/voices/{voice.json()['id']}")).content, VoiceDeleted)
    check((await http.delete(f"/v1/audio/voice_consents/{identity}")).content, VoiceConsentDeleted)


@pytest.mark.parametrize(
    "given", [{"model": "x"}, {"n": 0}, {"messages": "x"}, {"messages": [{"role": "user", "content": "fail"}]}], ids=str
)
async def test_errors(http: httpx2.AsyncClient, given: dict[str, Any]) -> None:
    answer = (await http.post("/v1/chat/completions", json={**CHAT, **given})).json()
    assert answer.keys() == {"error"}
    check(json.dumps(answer["error"]), ErrorObject)


async def test_client_secrets(http: httpx2.AsyncClient) -> None:
    for kind in ("realtime", "transcription"):
        answer = await http.post("/v1/realtime/client_secrets", json={"session": {"type": kind}})
        check(answer.content, ClientSecretCreateResponse)


SESSION: dict[str, Any] = {
    "type": "realtime",
    "tools": [{"type": "function", "name": "look"}],
    "audio": {"input": {"transcription": {"language": "en"}}, "output": {"voice": "low"}},
}
SAY = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one two"}]}


@pytest.mark.parametrize(
    ("steps", "last"),
    [
        ([{"type": "session.update", "session": SESSION}, {"type": "input_audio_buffer.append", "audio": TURN}],
         {"response.done", "conversation.item.input_audio_transcription.completed"}),
        ([{"type": "session.update", "session": {"type": "realtime", "output_modalities": ["text"], "max_output_tokens": 1}},
          {"type": "conversation.item.create", "item": SAY}, {"type": "response.create"}], {"response.done"}),
        ([{"type": "conversation.item.create", "item": {**SAY, "content": [{"type": "input_text", "text": "fail"}]}},
          {"type": "response.create"}], {"response.done"}),
        ([{"type": "session.update", "session": {"type": "realtime", "voice": "x", "tracing": "auto"}}], {"error"}),
        ([{"type": "session.update", "session": {"type": "realtime", "tracing": "auto"}}], {"session.updated"}),
        ([{"type": "session.update", "session": {"type": "transcription"}},
          {"type": "input_audio_buffer.append", "audio": TURN}], {"conversation.item.input_audio_transcription.completed"}),
        ([{"type": "session.update", "session": {"type": "realtime", "audio": {"input": {"turn_detection": None}}}},
          {"type": "input_audio_buffer.append", "audio": TURN}, {"type": "input_audio_buffer.commit"},
          {"type": "conversation.item.create", "item": {**SAY, "id": "mine"}},
          {"type": "conversation.item.retrieve", "item_id": "mine"}, {"type": "conversation.item.delete", "item_id": "mine"},
          {"type": "input_audio_buffer.clear"}], {"input_audio_buffer.cleared"}),
    ],
    ids=["spoken", "text", "failed", "refused", "ignored", "transcription", "by hand"],
)  # fmt: skip
async def test_sessions(app: Application, steps: list[dict[str, Any]], last: set[str]) -> None:
    async with socket_to(app, "/v1/realtime") as socket:
        for step in steps:
            await socket.send_json(step)
        left = set(last)
        while left:
            text = (await socket.receive())["text"]
            check(text, RealtimeServerEvent)
            left.discard(json.loads(text)["type"])


async def test_a_transcription_session_of_the_beta_api(app: Application) -> None:
    async with socket_to(app, "/v1/realtime") as socket:
        await socket.receive_json()
        await socket.send_json({"type": "transcription_session.update", "session": {"input_audio_format": "g711_ulaw"}})
        check((await socket.receive())["text"], TranscriptionSessionUpdatedEvent)


async def test_live_sessions(app: Application) -> None:
    async with socket_to(app, "/v1/live/sessions") as socket:
        await socket.send_json({"type": "session.start", "session": {"model": "tones"}})
        await socket.send_json({"type": "session.input_audio.append", "audio": TURN})
        kinds: set[str] = set()
        while "session.usage.updated" not in kinds:
            text = (await socket.receive())["text"]
            check(text, live.ServerEvent)
            kinds.add(json.loads(text)["type"])
        await socket.send_json({"type": "session.close"})
        while "session.closed" not in kinds:
            text = (await socket.receive())["text"]
            check(text, live.ServerEvent)
            kinds.add(json.loads(text)["type"])
