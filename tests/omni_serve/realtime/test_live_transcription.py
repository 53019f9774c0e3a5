"""``/v1/realtime`` over a recogniser that listens to streams, as OpenAI's client uses it; and ends of all kinds, which leave nothing."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
from attrs import evolve
from live_input_stages import HEARING, hearing_pipeline, words
from omni_serve_clients import running_server

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.encoders import pcm16
from omni_serve.settings import RealtimeLimits

pytestmark = pytest.mark.asyncio(loop_scope="session")

RATE = 24_000
DELTA, COMPLETED, FAILED = (
    f"conversation.item.input_audio_transcription.{each}" for each in ("delta", "completed", "failed")
)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def hearing() -> AsyncIterator[AsyncPipe]:
    async with open_async(hearing_pipeline(process="hear")) as pipe:
        yield pipe


@pytest.fixture(scope="module")
def app(hearing: AsyncPipe) -> Application:
    return create_app(hearing, Settings(realtime=RealtimeLimits(turn_seconds=4.0)))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def sdk(app: Application) -> AsyncIterator[openai.AsyncOpenAI]:
    async with (
        running_server(app) as address,
        openai.AsyncOpenAI(api_key="none", base_url=f"http://{address}/v1", max_retries=0) as client,
    ):
        yield client


def voice(seconds: float) -> str:
    time = np.arange(round(seconds * RATE)) / RATE
    return base64.b64encode(pcm16((0.3 * np.sin(1400 * time) * (time % 0.2 < 0.15)).astype(np.float32))).decode()


def silence(seconds: float) -> str:
    return base64.b64encode(bytes(round(seconds * RATE) * 2)).decode()


def session(prompt: str | None = None, by_hand: bool = True, language: str = "en") -> Any:
    sound: dict[str, Any] = {"transcription": {"language": language, "prompt": prompt}}
    return {"type": "transcription", "audio": {"input": sound | ({"turn_detection": None} if by_hand else {})}}


def connected(client: openai.AsyncOpenAI) -> Any:
    return client.realtime.connect(model="hear", extra_query={"intent": "transcription"})


async def until(connection: Any, *kinds: str, count: int = 1) -> list[Any]:
    found: list[Any] = []
    async with asyncio.timeout(60):
        while sum(event.type in kinds for event in found) < count:
            found.append(await connection.recv())
    return found


def deltas(events: list[Any]) -> str:
    return "".join(event.delta for event in events if event.type == DELTA)


async def nothing_is_left(pipe: AsyncPipe, app: Application) -> None:
    """Wait until no request is in the server or the pipeline."""
    server = app.state.server
    async with asyncio.timeout(30):
        while server.admission.running or server.realtime.count or server.realtime.memory.used:
            await asyncio.sleep(0.01)
        while True:
            of_stages = await pipe.statistics()
            numbers = [each.get(name, 0) for parts in of_stages.values() for each in parts.values()
                       for name in ("running", "waiting", "in_flight", "queued")]  # fmt: skip
            if not any(numbers):
                break
            await asyncio.sleep(0.01)
    assert server.metrics.live.labels("audio")._value.get() == 0


async def test_words_come_while_the_user_speaks(sdk: openai.AsyncOpenAI) -> None:
    async with connected(sdk) as connection:
        created = await connection.recv()
        assert created.session.type == "transcription"
        await connection.session.update(session=session(by_hand=False, language="de"))
        await connection.input_audio_buffer.append(audio=silence(0.5))
        await connection.input_audio_buffer.append(audio=voice(0.8))
        found = await until(connection, DELTA)
        started = next(event for event in found if event.type == "input_audio_buffer.speech_started")
        assert found[-1].item_id == started.item_id
        assert found[-1].delta.startswith("de1")
        tentative = (await until(connection, DELTA))[-1]
        assert (tentative.delta, tentative.x_omni_tentative[:1]) == ("", " ")
        await connection.input_audio_buffer.append(audio=silence(0.7))
        found += await until(connection, COMPLETED)
        done = found[-1]
        seconds = done.usage.input_tokens / 16_000
        assert deltas(found) == done.transcript == words(seconds, "de")
        stopped = next(event for event in found if event.type == "input_audio_buffer.speech_stopped")
        assert seconds == pytest.approx((stopped.audio_end_ms - started.audio_start_ms) / 1000, abs=2e-3)
        committed = next(event for event in found if event.type == "input_audio_buffer.committed")
        assert committed.item_id == started.item_id == done.item_id


async def test_turns_by_hand_begin_with_their_first_sound(sdk: openai.AsyncOpenAI) -> None:
    async with connected(sdk) as connection:
        await connection.session.update(session=session())
        for seconds in (1.0, 0.35):
            for _ in range(5):
                await connection.input_audio_buffer.append(audio=voice(seconds / 5))
            found = await until(connection, DELTA)
            await connection.input_audio_buffer.commit()
            found += await until(connection, COMPLETED)
            assert found[-1].transcript == deltas(found) == words(seconds)
            assert found[-1].usage.input_tokens == seconds * 16_000
            ids = {event.item_id for event in found if hasattr(event, "item_id")}
            assert ids == {found[-1].item_id}


async def test_a_conversation_has_the_same_where_it_is_asked_for(sdk: openai.AsyncOpenAI) -> None:
    async with sdk.realtime.connect(model="hear") as connection:
        asked = {**session(), "type": "realtime"}
        await connection.session.update(session=asked)
        await connection.input_audio_buffer.append(audio=voice(0.5))
        found = await until(connection, DELTA)
        await connection.input_audio_buffer.commit()
        found += await until(connection, COMPLETED)
        assert found[-1].transcript == deltas(found) == words(0.5)


@pytest.mark.parametrize(("prompt", "code"), [("fail", "stage_failed"), ("refuse", "invalid_value")])
async def test_a_turn_that_fails_is_told_and_the_session_goes_on(
    sdk: openai.AsyncOpenAI, prompt: str, code: str
) -> None:
    async with connected(sdk) as connection:
        await connection.session.update(session=session(prompt))
        await connection.input_audio_buffer.append(audio=voice(0.5))
        await connection.input_audio_buffer.commit()
        failed = (await until(connection, FAILED))[-1]
        assert failed.error.code == code
        assert "s of this turn had been taken)" in failed.error.message
        await connection.session.update(session=session())
        await connection.input_audio_buffer.append(audio=voice(0.5))
        await connection.input_audio_buffer.commit()
        assert (await until(connection, COMPLETED))[-1].transcript == words(0.5)


async def test_a_slow_recogniser_keeps_no_socket_waiting(sdk: openai.AsyncOpenAI, app: Application) -> None:
    """All sound is read although half a second passes for each piece; what is too much for a turn fails it."""
    before = app.state.server.metrics.overruns._value.get()
    async with connected(sdk) as connection:
        await connection.session.update(session=session("wait"))
        await until(connection, "session.updated")
        for _ in range(6):
            for _ in range(100):
                await connection.input_audio_buffer.append(audio=voice(0.03))
            await connection.input_audio_buffer.commit()
        found = await until(connection, "input_audio_buffer.committed", count=6)
        assert all(event.type != "error" for event in found)
        failed = [event for event in [*found, *await until(connection, FAILED)] if event.type == FAILED]
        assert failed[0].error.code == "overloaded"
        assert "does not keep up" in failed[0].error.message
        await connection.session.update(session=session())
        await until(connection, "session.updated")
    assert app.state.server.metrics.overruns._value.get() > before


async def test_whatever_ends_a_turn_nothing_stays(
    sdk: openai.AsyncOpenAI, hearing: AsyncPipe, app: Application
) -> None:
    """Cleared, another language, a connection that breaks."""

    async def speak(end: str) -> None:
        async with connected(sdk) as connection:
            await connection.session.update(session=session())
            await connection.input_audio_buffer.append(audio=voice(0.5))
            await until(connection, DELTA)
            if end == "clear":
                await connection.input_audio_buffer.clear()
                await until(connection, "input_audio_buffer.cleared")
                await nothing_runs(1)
            elif end == "language":
                await connection.session.update(session=session(language="de"))
                await until(connection, "session.updated", count=1)
                await connection.input_audio_buffer.commit()
                assert (await until(connection, COMPLETED))[-1].transcript == words(0.5, "de")
                await nothing_runs(1)
            elif end == "break":
                connection._connection.transport.abort()

    async def nothing_runs(sessions: int) -> None:
        async with asyncio.timeout(30):
            while app.state.server.admission.running:
                await asyncio.sleep(0.01)
        assert app.state.server.realtime.count == sessions

    for end in ("clear", "language", "break"):
        await speak(end)
        await nothing_is_left(hearing, app)


async def test_a_turn_that_goes_on_in_silence_ends_with_its_idle_session(hearing: AsyncPipe) -> None:
    app = create_app(hearing, Settings(realtime=RealtimeLimits(idle_seconds=1.0)))
    async with (
        running_server(app) as address,
        openai.AsyncOpenAI(api_key="none", base_url=f"http://{address}/v1", max_retries=0) as client,
        connected(client) as connection,
    ):
        await connection.session.update(session=session())
        await connection.input_audio_buffer.append(audio=voice(0.5))
        assert (await until(connection, "error"))[-1].error.code == "idle_timeout"
        await nothing_is_left(hearing, app)


async def test_a_killed_stage_under_many_sessions(
    sdk: openai.AsyncOpenAI, hearing: AsyncPipe, app: Application
) -> None:
    """Each turn gets its error with what was heard of it; then all sessions go on."""

    async def speak(connection: Any) -> Any:
        await connection.session.update(session=session())
        await connection.input_audio_buffer.append(audio=voice(0.5))
        await until(connection, DELTA)

    async def end(connection: Any) -> Any:
        await connection.input_audio_buffer.commit()
        return (await until(connection, FAILED, COMPLETED))[-1]

    async with asyncio.timeout(120):
        connections = [await connected(sdk).enter() for _ in range(20)]
        await asyncio.gather(*map(speak, connections))
        assert app.state.server.metrics.live.labels("audio")._value.get() == 20
        await connections[0].session.update(session=session("die"))
        await connections[0].input_audio_buffer.append(audio=voice(0.2))
        while app.state.server.admission.running:
            await asyncio.sleep(0.01)
        ends = await asyncio.gather(*map(end, connections))
        assert [each.type for each in ends] == [FAILED] * 20
        assert {each.error.code for each in ends} == {"unit_restarting"}
        assert all("(0.5 s of this turn had been taken)" in each.error.message for each in ends[1:])

        async def again(connection: Any) -> str:
            while True:
                await connection.session.update(session=session())
                await connection.input_audio_buffer.append(audio=voice(0.5))
                if (done := await end(connection)).type == COMPLETED:
                    return str(done.transcript)
                await asyncio.sleep(0.1)

        assert await asyncio.gather(*map(again, connections)) == [words(0.5)] * 20
        await asyncio.gather(*(each.close() for each in connections))
    await nothing_is_left(hearing, app)


async def test_what_a_recogniser_does_not_honour_is_told_before_a_turn(hearing: AsyncPipe) -> None:
    app = create_app(hearing, Settings())
    app.state.server.interface = evolve(HEARING, groups=[])
    async with (
        running_server(app) as address,
        openai.AsyncOpenAI(api_key="none", base_url=f"http://{address}/v1", max_retries=0) as client,
        connected(client) as connection,
    ):
        await connection.session.update(session=session())
        [updated] = [event for event in await until(connection, "session.updated") if event.type == "session.updated"]
        assert updated.x_omni_ignored == ["session.audio.input.transcription.language"]
        await connection.session.update(session=session("Ada"))
        told = (await until(connection, "error"))[-1].error
        path = "session.audio.input.transcription.prompt"
        assert (told.param, told.message) == (path, f"{path}: this pipeline does not honour it")
        await connection.input_audio_buffer.append(audio=voice(0.5))
        await connection.input_audio_buffer.commit()
        assert (await until(connection, COMPLETED, FAILED))[-1].type == COMPLETED
