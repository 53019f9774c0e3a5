"""Clients of a world that send the input of a request while they read its outputs."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import TYPE_CHECKING

from omni_core.api import OmniError
from omni_core.runtime_api import ANSWER_SECONDS
from omni_testing.world import judge

if TYPE_CHECKING:
    from omni_testing.world.simulation import Client, World


async def converse(world: World, client: Client, sends: int) -> None:
    """Open a request, read its outputs, and send so many chunks at the same time."""
    client.opened = world.coordinator.open(client.request, client.name, client.chunk_timeout)
    client.sending = world.parent.create_task(_send(world, client, sends))
    async with client.opened:
        async for event in client.opened:
            judge.event(world, client, event)
            if client.pace:
                await asyncio.sleep(client.pace)


async def _send(world: World, client: Client, sends: int) -> None:
    await asyncio.sleep(world.inputs.choice((0.0, 0.0, 0.3)))
    client.has_sent = True
    pace = world.inputs.choice((0.0, 0.0, 0.01, 0.1))
    with suppress(OmniError):  # its reader gets it too
        for number in range(sends):
            await client.opened.send({"number": number})
            client.sent_at.append(world.parent.time())
            judge.sent(world, client)
            if client.chunk_timeout is not None:
                seconds = client.chunk_timeout + ANSWER_SECONDS + judge.TURNS
                world.parent.call_later(seconds, judge.in_time, world, client, number)
            await asyncio.sleep(pace)
        await client.opened.finish()
