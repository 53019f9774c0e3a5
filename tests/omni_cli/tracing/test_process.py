"""The profile of one process, without the process."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

from omni_cli.tracing.process import ProcessProfile
from omni_core.protocol.messages import ProfileMessage, ProfileReport
from omni_core.protocol.specs import ProcessSpec


async def test_a_process_that_was_started_during_a_profile_answers_its_end_at_once() -> None:
    told: list[ProfileReport] = []
    outbound: Any = SimpleNamespace(tell_coordinator=told.append, recorder=None)
    spec = ProcessSpec(name="p", stages=[], endpoint="e", coordinator_endpoint="c", stage_endpoints={})
    profile = ProcessProfile(spec, outbound, dict)
    profile.handle(ProfileMessage(start=False))
    assert told == [ProfileReport("p")]
    profile.handle(ProfileMessage(start=True))
    profile.handle(ProfileMessage(start=False))
    async with asyncio.timeout(10):
        while len(told) < 3:
            await asyncio.sleep(0.001)
    assert json.loads(told[2].events) is not None
    assert outbound.recorder is None
