"""Limits per minute of a key: budgets with a given clock, and what OpenAI's client reads of them."""

from __future__ import annotations

from typing import Any

import openai
import pytest
from attrs import evolve
from omni_serve_clients import http_client, socket_to
from serve_stages import RATE, tone

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.auth import KeyLimits
from omni_serve.encoders import whole
from omni_serve.errors import ApiError
from omni_serve.rate_limits import HEADERS, Budgets

LIMITS = KeyLimits(requests_per_minute=60, tokens_per_minute=600, audio_seconds_per_minute=30)
ALL = ("requests", "tokens", "audio-seconds")


def told(budgets: Budgets, now: float) -> dict[str, str]:
    return {name.decode().removeprefix("x-ratelimit-"): value.decode() for name, value in budgets.headers(now)}


def test_what_is_left_and_when_it_is_whole_again() -> None:
    budgets = Budgets.of(LIMITS)
    full = told(budgets, 100.0)
    assert full == {
        **{"limit-requests": "60", "remaining-requests": "60", "reset-requests": "0s"},
        **{"limit-tokens": "600", "remaining-tokens": "600", "reset-tokens": "0s"},
        **{"limit-audio-seconds": "30", "remaining-audio-seconds": "30", "reset-audio-seconds": "0s"},
    }
    budgets.take("requests", 1, 100.0)
    budgets.take("tokens", 300, 100.0)
    budgets.take("audio-seconds", 31.25, 100.0)  # overdrawn: known only when it was made
    assert told(budgets, 100.75) == {
        **{"limit-requests": "60", "remaining-requests": "59", "reset-requests": "250ms"},
        **{"limit-tokens": "600", "remaining-tokens": "307", "reset-tokens": "29.25s"},
        **{"limit-audio-seconds": "30", "remaining-audio-seconds": "0", "reset-audio-seconds": "1m1.75s"},
    }
    with pytest.raises(ApiError) as refused:
        budgets.check("mine", ALL, 100.75)
    assert (refused.value.status, refused.value.code) == (429, "rate_limit_exceeded")
    assert refused.value.retry_after == pytest.approx((0.875 + 0.001) * 2)  # to anything at all, not to the whole
    budgets.check("mine", ALL, 100.75 + (refused.value.retry_after or 0) + 1e-6)
    assert told(budgets, 1000.0) == full
    assert set(HEADERS) == {f"x-ratelimit-{name}" for name in full}


def test_events_of_sessions_name_requests_and_tokens_only() -> None:
    budgets = Budgets.of(LIMITS)
    budgets.take("tokens", 60, 0.0)
    assert budgets.as_event(0.0) == [
        {"name": "requests", "limit": 60, "remaining": 60, "reset_seconds": 0.0},
        {"name": "tokens", "limit": 600, "remaining": 540, "reset_seconds": 6.0},
    ]
    assert Budgets.of(KeyLimits()).as_event(0.0) == Budgets.of(KeyLimits()).headers(0.0) == []


def limited(pipe: AsyncPipe, limits: KeyLimits, **settings: Any) -> Application:
    app = create_app(pipe, Settings(keys={"mine": "the secret"}, **settings))
    ring = app.state.server.keys
    ring.keys["mine"] = evolve(ring.keys["mine"], limits=limits)
    app.state.server.admission._clock = lambda: 0.0
    return app


@pytest.mark.asyncio(loop_scope="session")
async def test_the_sdk_reads_what_is_left(pipe: AsyncPipe) -> None:
    app = limited(pipe, evolve(LIMITS, tokens_per_minute=10), cors_origins=("http://friend",))
    client = openai.AsyncOpenAI(api_key="the secret", base_url="http://test/v1", http_client=http_client(app))
    messages: Any = [{"role": "user", "content": "one two three"}]
    chat = await client.chat.completions.with_raw_response.create(model="tones", messages=messages)
    assert chat.headers["x-ratelimit-limit-requests"] == "60"
    assert chat.headers["x-ratelimit-remaining-requests"] == "59"
    assert chat.headers["x-ratelimit-reset-requests"] == "1s"
    assert chat.headers["x-ratelimit-remaining-tokens"] == "4"  # 3 + 3 of 10

    streamed = await client.audio.speech.with_raw_response.create(model="tones", voice="alloy", input="one two")
    assert streamed.headers["x-ratelimit-remaining-audio-seconds"] == "30"  # as it was when the stream began
    after = (await client.models.with_raw_response.list()).headers
    assert (after["x-ratelimit-limit-audio-seconds"], after["x-ratelimit-remaining-audio-seconds"]) == ("30", "29")

    with pytest.raises(openai.RateLimitError) as refused:
        await client.with_options(max_retries=0).chat.completions.create(model="tones", messages=messages)
    assert refused.value.code == "rate_limit_exceeded"
    headers = refused.value.response.headers
    assert (headers["x-ratelimit-remaining-tokens"], headers["x-ratelimit-reset-tokens"]) == ("0", "1m0s")
    assert headers["retry-after"] == "6"

    async with http_client(app, headers={"origin": "http://friend"}) as http:
        answer = await http.get("/v1/models", headers={"authorization": "Bearer the secret"})
        assert set(HEADERS) <= set(answer.headers["access-control-expose-headers"].split(", "))
        assert not [name for name in (await http.get("/health")).headers if name.startswith("x-ratelimit")]


@pytest.mark.asyncio(loop_scope="session")
async def test_recordings_that_are_written_down_count_as_sound(pipe: AsyncPipe) -> None:
    app = limited(pipe, KeyLimits(audio_seconds_per_minute=3))
    client = openai.AsyncOpenAI(api_key="the secret", base_url="http://test/v1", http_client=http_client(app))
    recording = whole("wav", [tone("x")] * round(2.5 * RATE / len(tone("x"))), RATE)
    sent = client.with_options(max_retries=0).audio.transcriptions
    first = await sent.with_raw_response.create(model="tones", file=("a.wav", recording))
    assert first.headers["x-ratelimit-remaining-audio-seconds"] == "0"  # of 3 s, 2.5 have been heard
    await sent.create(model="tones", file=("a.wav", recording))
    with pytest.raises(openai.RateLimitError):
        await sent.create(model="tones", file=("a.wav", recording))


@pytest.mark.asyncio(loop_scope="session")
async def test_a_realtime_session_tells_what_is_left_after_each_reply(pipe: AsyncPipe) -> None:
    app = limited(pipe, LIMITS)
    item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "one two"}]}
    async with socket_to(app, "/v1/realtime?model=tones", authorization="Bearer the secret") as socket:
        for event in ({"type": "conversation.item.create", "item": item}, {"type": "response.create"}):
            await socket.send_json(event)
        while (event := await socket.receive_json())["type"] != "rate_limits.updated":
            pass
    left = {each["name"]: each["remaining"] for each in event["rate_limits"]}
    assert left["requests"] == 59
    assert left["tokens"] < 600
