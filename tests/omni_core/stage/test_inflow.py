"""Back-pressure on the streams into a stage."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from omni_core.stage.active_requests import Requests
from omni_core.stage.inflow import Inflow


async def test_a_scheduler_that_has_enough_lets_a_stage_wait_that_streams_to_it() -> None:
    told: list[bool] = []
    outbound: Any = SimpleNamespace(lock=threading.Lock(), flow=lambda *_, paused: told.append(paused))
    spec: Any = SimpleNamespace(stream_from=["mind"], part="", name="voice")
    requests = Requests()
    inflow = Inflow(spec, requests, outbound, lambda request_id: False)
    active = requests.enter("r")
    assert active is not None
    for held in (True, True, False):
        inflow.hold("r", held)
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert told == [True, False]
    inflow.hold("r", True)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    inflow.end(active)
    assert told == [True, False, True, False], "its sources go on when it ends"
    requests.end("r")
    inflow.hold("r", True)
