"""The limit of asynchronous tests of the suites."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from omni_testing import driving
from omni_testing.driving import driven, started


@asynccontextmanager
async def opening() -> AsyncIterator[str]:
    await asyncio.sleep(0.3)
    yield "client"


class Tests:
    @driven
    async def start(self) -> None:
        async with started(opening()) as client:
            assert client == "client"

    @driven
    async def wait(self) -> None:
        async with started(opening()):
            await asyncio.Event().wait()

    @driven
    async def fail(self) -> None:
        raise TimeoutError("of the test")


def test_the_start_of_a_pipeline_does_not_count_and_the_rest_does(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(driving, "LIMIT_SECONDS", 0.1)
    Tests().start()
    with pytest.raises(AssertionError, match=r"^not done within 0\.1 s \(the start of a pipeline aside\)$"):
        Tests().wait()
    with pytest.raises(TimeoutError, match="of the test"):
        Tests().fail()


def test_a_time_limit_of_the_test_itself_is_its_own() -> None:
    @driven
    async def impatient(self: object) -> None:
        await asyncio.wait_for(asyncio.Event().wait(), 0.01)

    with pytest.raises(TimeoutError):
        impatient(None)
