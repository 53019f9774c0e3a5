"""A client that goes away aborts its request in every stage, streaming or not, running or waiting."""

from __future__ import annotations

import asyncio
import random
from typing import Any

import pytest
from omni_serve_clients import Connection, request_to

from omni_core import AsyncPipe
from omni_core.protocol.messages import OmniRequest
from omni_serve import Settings, create_app
from omni_serve.app import Application

pytestmark = pytest.mark.asyncio(loop_scope="session")

LONG: dict[str, Any] = {"model": "tones", "messages": [{"role": "user", "content": "word " * 200}], "pause": 0.02}
SPOKEN = {"modalities": ["text", "audio"], "audio": {"voice": "low", "format": "pcm16"}}
SPEECH = {"model": "tones", "input": "word " * 200, "pause": 0.02}


async def counts(pipe: AsyncPipe) -> dict[str, float]:
    found: dict[str, float] = (await pipe.statistics())["coordinator"]["requests"]
    return found


def left_behind() -> list[str]:
    """Tasks of the server that still run."""
    coroutines = [repr(task.get_coro()) for task in asyncio.all_tasks()]
    return [each for each in coroutines if "streams" in each or "Session" in each or "speech_socket" in each]


async def gone(connection: Connection) -> None:
    await connection.to_app.put({"type": "http.disconnect"})
    async with asyncio.timeout(60):
        await connection.task


async def until_idle(pipe: AsyncPipe, app: Application) -> None:
    async with asyncio.timeout(60):
        while (await counts(pipe))["running"] or app.state.server.admission.running:
            await asyncio.sleep(0.02)
        while any(
            numbers.get("in_flight") for stages in (await pipe.statistics()).values() for numbers in stages.values()
        ):
            await asyncio.sleep(0.02)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/chat/completions", LONG),
        ("/v1/chat/completions", {**LONG, **SPOKEN}),
        ("/v1/chat/completions", {**LONG, "stream": True}),
        ("/v1/chat/completions", {**LONG, **SPOKEN, "stream": True}),
        ("/v1/audio/speech", SPEECH),
        ("/v1/audio/speech", {**SPEECH, "stream_format": "sse"}),
        ("/v1/responses", {"model": "tones", "input": "word " * 200, "pause": 0.02}),
        ("/v1/responses", {"model": "tones", "input": "word " * 200, "pause": 0.02, "stream": True}),
    ],
)
async def test_the_request_is_aborted(pipe: AsyncPipe, app: Application, path: str, body: dict[str, Any]) -> None:
    await until_idle(pipe, app)
    before = (await counts(pipe))["aborted"]
    cancelled = app.state.server.metrics.cancelled._value.get()
    connection = request_to(app, path, body)
    while not (await counts(pipe))["running"]:
        await asyncio.sleep(0.01)
    await gone(connection)
    assert (await counts(pipe))["aborted"] == before + 1
    assert app.state.server.metrics.cancelled._value.get() == cancelled + 1
    await until_idle(pipe, app)


async def test_a_waiting_request_leaves_the_queue(pipe: AsyncPipe) -> None:
    app = create_app(pipe, Settings(concurrent=1))
    first = request_to(app, "/v1/chat/completions", LONG)
    while not app.state.server.admission.running:
        await asyncio.sleep(0.01)
    second = request_to(app, "/v1/chat/completions", LONG)
    while not app.state.server.admission.waiting:
        await asyncio.sleep(0.01)
    await gone(second)
    assert app.state.server.admission.waiting == 0
    await gone(first)
    assert app.state.server.admission.running == 0


@pytest.mark.parametrize(("draining", "status"), [(True, 503), (False, 499)])
async def test_a_request_that_is_aborted_elsewhere(pipe: AsyncPipe, draining: bool, status: int) -> None:
    """Its client is there, and repeats what was cut because the server ends."""
    running: list[str] = []

    class Remembers:
        def __getattr__(self, name: str) -> Any:
            return getattr(pipe, name)

        def stream(self, request: OmniRequest, request_id: str) -> Any:
            running.append(request_id)
            return pipe.stream(request, request_id)

    app = create_app(Remembers(), Settings())  # type: ignore[arg-type]
    connection = request_to(app, "/v1/chat/completions", LONG)
    while not running:
        await asyncio.sleep(0.01)
    app.state.server.admission.draining = draining
    await pipe.abort(running[0])
    answer = await connection.receive()
    assert answer["status"] == status
    assert ((b"x-should-retry", b"true") in answer["headers"]) == draining
    await connection.task


async def test_disconnects_at_random_moments_leave_nothing(pipe: AsyncPipe, app: Application) -> None:
    chance = random.Random(1)

    async def one() -> None:
        body = {**LONG, "stream": chance.random() < 0.5, **(SPOKEN if chance.random() < 0.5 else {}), "pause": 0.001}
        connection = request_to(app, "/v1/chat/completions", body)
        await asyncio.sleep(chance.random() * 0.1)
        await gone(connection)

    for _ in range(25):  # 1,000 in all
        await asyncio.gather(*(one() for _ in range(40)))
    await until_idle(pipe, app)
    assert left_behind() == []
