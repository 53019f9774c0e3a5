"""The poller polls while events are expected, and only then."""

from __future__ import annotations

import asyncio

from omni_relay_kit.poller import Poller


class Engine:
    """Expects three events, which come one at each look."""

    def __init__(self) -> None:
        self.looks = 0
        self.poller = Poller(self.look, lambda: self.looks % 3 != 0, eager_seconds=0.0)

    def look(self) -> bool:
        self.looks += 1
        return True

    async def rest(self) -> None:
        """Wait until the poller has ended."""
        async with asyncio.timeout(5):
            while self.poller.is_polling:
                await asyncio.sleep(0)


async def test_it_polls_until_nothing_is_expected_and_starts_again() -> None:
    engine = Engine()
    engine.poller.start()
    await engine.rest()
    assert engine.looks == 0, "nothing was expected"
    for looks in (3, 6):
        engine.looks += 1
        engine.poller.start()
        before = asyncio.all_tasks()
        engine.poller.start()
        assert asyncio.all_tasks() == before, "it polls already"
        await engine.rest()
        assert engine.looks == looks


async def test_it_ends_when_it_is_closed() -> None:
    engine = Engine()
    engine.looks = 1
    engine.poller.start()
    engine.poller.close()
    await engine.rest()
    assert engine.looks == 1
    assert not engine.poller.is_polling
