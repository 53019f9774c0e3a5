"""The heartbeat pings while there is work, once after it, and as long as a process must be watched."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from omni_core.processes import heartbeat
from omni_core.processes.heartbeat import Heartbeat


class Unit:
    def __init__(self) -> None:
        self.beats = self.aborts = 0
        self.life = SimpleNamespace(must_be_watched=False)

    def beat(self) -> None:
        self.beats += 1

    def request_is_over(self) -> None:
        self.aborts += 1


async def turns(count: int = 20) -> None:
    for _ in range(count):
        await asyncio.sleep(0)


async def test_it_beats_while_there_is_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "PING_SECONDS", 0.0)
    unit, work = Unit(), [False]
    units: Any = {"u": unit}
    beating = Heartbeat(units, lambda: work[0])
    await turns()
    assert unit.beats == 0

    work[0] = True
    beating.begin()
    await turns()
    assert unit.beats > 3
    work[0] = False
    await turns()
    seen = unit.beats
    await turns()
    assert unit.beats == seen, "an idle pipeline sends no pings"

    beating.request_is_over()
    await turns()
    assert (unit.aborts, unit.beats) == (1, seen + 1)

    unit.life.must_be_watched = True
    beating.request_is_over()
    await turns()
    assert unit.beats > seen + 4
    beating.close()
    seen = unit.beats
    beating.begin()
    await turns()
    assert unit.beats == seen
