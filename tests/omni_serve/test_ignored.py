"""A request with fields that no pipeline reads is answered, and they are named in ``x-omni-ignored`` and once in the log."""

from __future__ import annotations

import base64
import io
import logging
from contextvars import copy_context
from typing import Any

import httpx2
import pytest
from omni_serve_clients import socket_to
from PIL import Image
from serve_stages import RATE, tone

from omni_serve import ignored
from omni_serve.app import Application
from omni_serve.encoders import whole
from omni_serve.errors import ApiError

on_the_loop = pytest.mark.asyncio(loop_scope="session")

_picture = io.BytesIO()
Image.new("RGB", (4, 4)).save(_picture, "png")
PICTURE = "data:image/png;base64," + base64.b64encode(_picture.getvalue()).decode()
LOOK = {"name": "look", "parameters": {"type": "object", "properties": {}}}
CHAT, RESPONSES, SPEECH = "/v1/chat/completions", "/v1/responses", "/v1/audio/speech"


def said(content: Any, **fields: Any) -> dict[str, Any]:
    """A chat of one message."""
    return {"messages": [{"role": "user", "content": content, **fields}]}


@on_the_loop
@pytest.mark.parametrize(
    ("path", "given", "names"),
    [
        (CHAT, said("one", name="bob"), "messages[].name"),
        (CHAT, said([{"type": "text", "text": "one", "cache_control": {}}]), "messages[].content[].cache_control"),
        (CHAT, {"prediction": {"type": "content"}, "tracing": "auto"}, "prediction, tracing"),
        (CHAT, {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
         "stream_options.continuous_usage_stats"),
        (CHAT, {"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        (CHAT, {"frequency_penalty": 0.5, "presence_penalty": 0, "service_tier": "flex"}, "frequency_penalty, service_tier"),
        (CHAT, {"reasoning_effort": "high", "verbosity": "low", "store": True}, "reasoning_effort, verbosity, store"),
        (CHAT, {"ignore_eos": True, "min_new_tokens": 3, "models": ["a"]}, "ignore_eos, min_new_tokens, models"),
        (CHAT, {"mm_processor_kwargs": {"fps": 1}}, "mm_processor_kwargs.fps"),
        (CHAT, {"n": 1, "user": "me", "metadata": {"a": "b"}, "temperature": None, "frobnicate": None}, None),
        (CHAT, {"parallel_tool_calls": False}, "parallel_tool_calls"),
        (CHAT, {"": 1, "top_a": 0.5, "speed": 2}, "?, top_a, speed"),
        (CHAT, {"tools": [{"type": "function", "function": LOOK, "cache_control": {}}]}, "tools[].cache_control"),
        (CHAT, {"tools": [{"type": "function", "function": {**LOOK, "strict": True, "parameters": {
            "type": "object", "properties": {"at": {"type": "string", "format": "date"}}}}}]},
         "tools[].function.parameters.properties.at.format"),
        (CHAT, {"modalities": ["text", "audio"], "audio": {"voice": "alloy", "format": "wav", "rate": 1}},
         "audio.rate, audio.voice"),
        (RESPONSES, {"include": ["reasoning.encrypted_content"]}, "include.reasoning.encrypted_content"),
        (RESPONSES, {"text": {"format": {"type": "text"}, "verbosity": "low"}, "store": True}, "text.verbosity"),
        (RESPONSES, {"reasoning": {"effort": "high", "summary": "auto"}}, "reasoning.effort, reasoning.summary"),
        (RESPONSES, {"input": [{"type": "reasoning", "id": "x", "summary": []}, {"role": "user", "content": "one", "mood": 1}]},
         "input[], input[].mood"),
        (RESPONSES, {"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        (SPEECH, {"instructions": "calmly"}, "instructions"),
        (SPEECH, {"voice": "shimmer"}, "voice"),
        (SPEECH, {"voice": "Alloy"}, "voice"),
        (SPEECH, {"language": "de"}, "language"),
        ("/v1/realtime/client_secrets", {"session": {"type": "realtime"}, "expires_after": {"seconds": 60, "x": 1}, "y": 1},
         "expires_after.x, y"),
    ],
)  # fmt: skip
async def test_it_is_answered_and_named(http: httpx2.AsyncClient, path: str, given: dict[str, Any], names: str) -> None:
    usual: dict[str, Any] = {
        CHAT: {"model": "tones", **said("one")},
        RESPONSES: {"model": "tones", "input": "one"},
        SPEECH: {"model": "tones", "input": "one", "voice": "low"},
    }.get(path, {})
    answer = await http.post(path, json={**usual, **given})
    assert answer.status_code == 200, answer.text
    assert answer.headers.get("x-omni-ignored") == names


@on_the_loop
async def test_fields_of_forms(http: httpx2.AsyncClient) -> None:
    files = {"file": ("a.wav", whole("wav", [tone("x")], RATE))}
    given = {"model": "tones", "known_speaker_names[]": "agent", "timestamp_granularities[]": "segment"}
    answer = await http.post("/v1/audio/transcriptions", data={**given, "response_format": "verbose_json"}, files=files)
    assert answer.status_code == 200, answer.text
    assert answer.headers["x-omni-ignored"] == "known_speaker_names, timestamp_granularities[]"
    answer = await http.post("/v1/audio/transcriptions", data={"model": "tones", "include[]": "logprobs"}, files=files)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, "include[]")


@on_the_loop
@pytest.mark.parametrize("detail", ["low", "original", "auto", None])
async def test_the_detail_of_a_picture(http: httpx2.AsyncClient, detail: str | None) -> None:

    chat = said([{"type": "image_url", "image_url": {"url": PICTURE, "detail": detail}}])
    answer = await http.post(CHAT, json={"model": "tones", **chat})
    assert answer.status_code == 200, answer.text
    assert ("x-omni-ignored" in answer.headers) is (detail in ("low", "original"))


@on_the_loop
@pytest.mark.parametrize("role", ["system", "developer", "assistant"])
async def test_a_chat_may_end_with_any_role(http: httpx2.AsyncClient, role: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": role, "content": "history"}]
    answer = await http.post(CHAT, json={"model": "tones", "messages": messages})
    assert answer.json()["choices"][0]["message"]["content"] == "user=a"


@on_the_loop
async def test_bounds_of_several_names_hold_together(http: httpx2.AsyncClient) -> None:
    for first, second in ((1, 2), (2, 1), (1, 1)):
        body = {"model": "tones", **said("one two three"), "max_tokens": first, "max_completion_tokens": second}
        answer = (await http.post(CHAT, json=body)).json()
        assert answer["choices"][0]["message"]["content"] == "one"


@on_the_loop
@pytest.mark.parametrize(
    ("path", "first", "name"),
    [
        ("/v1/audio/speech/stream", {"type": "session.config", "model": "tones", "mood": "glad"}, "mood"),
        ("/v1/live/sessions", {"type": "session.start", "session": {"model": "tones", "mood": "glad"}}, "session.mood"),
    ],
)
async def test_sockets_name_it_in_the_first_event(
    app: Application, path: str, first: dict[str, Any], name: str
) -> None:
    async with socket_to(app, path) as socket:
        await socket.send_json(first)
        event = await socket.receive_json()
        assert (event["type"], event["x_omni_ignored"]) == ("session.started", [name])


def test_names_are_logged_once_and_stay_plain(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ignored, "_logged", set())
    with caplog.at_level(logging.WARNING):
        for index in range(3):
            names = ignored.collect()
            ignored.check_fields({"a\r\nb: ü": 1}, (), f"items[{index}]")
    assert list(names) == ["items[].a??b???"]
    assert len(caplog.records) == 1


def test_thousands_of_names_cost_no_more_than_a_few() -> None:
    def given() -> int:
        names = ignored.collect()
        fields = {f"field_{index}": 1 for index in range(40_000)}
        ignored.check_fields(fields, [f"known_{index}" for index in range(1000)])
        return len(names)

    assert copy_context().run(given) == ignored.MOST


@on_the_loop
@pytest.mark.parametrize(
    ("path", "name", "meant"),
    [
        (CHAT, "response_fromat", "response_format"),
        (CHAT, "logprob", "logprobs"),
        (CHAT, "max_output_token", "max_output_tokens"),
        (CHAT, "frequency_penality", "frequency_penalty"),
        (CHAT, "stage_samplings", "stage_sampling"),
        (CHAT, "mm_procesor_kwargs", "mm_processor_kwargs"),
        (RESPONSES, "instruction", "instructions"),
        (RESPONSES, "inputs", "input"),
        (RESPONSES, "extra_bdy", "extra_body"),
        (RESPONSES, "text", "text.format"),
    ],
)
async def test_a_misspelt_name_is_refused(http: httpx2.AsyncClient, path: str, name: str, meant: str) -> None:
    usual = said("one") if path == CHAT else {"input": "one"}
    answer = await http.post(path, json={"model": "tones", **usual, name: {"formta": 1}})
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["message"].endswith(f"there is no such field; did you mean {meant!r}?")


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        *(("temprature", "temperature"), ("TEMPERATURE", "temperature"), (" temperature ", "temperature")),
        *(("top-p", "top_p"), ("top p", "top_p"), ("topP", "top_p"), ("maxTokens", "max_tokens")),
        *(("modle", "model"), ("langauge", "language"), ("inpt", "input")),
    ],
)
def test_what_is_misspelt_is_refused(name: str, meant: str) -> None:
    known = ["temperature", "top_p", "top_k", "max_tokens", "model", "language", "input"]
    with pytest.raises(ApiError, match=f"did you mean '{meant}'"):
        ignored.check_fields({name: 1}, known)
