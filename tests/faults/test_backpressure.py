"""A slow or suspended stage: its messages wait at the sender, bounded, are not lost, and never wait for ever."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path
from typing import Any

import pytest
from fault_harness import SOON, Watched
from pipelines import make_pipeline

from omni_core.client import open_async
from omni_core.config.schema import PipelineConfig, RelayConfig, StageConfig
from omni_core.protocol.messages import OmniRequest

MIB = 2**20


def torrent(folder: Path) -> PipelineConfig:
    """A stream whose consumer keeps every chunk until the last has come; 4 MiB of shared memory between them."""
    return make_pipeline(
        folder,
        StageConfig(
            name="produce",
            factory="fault_stages:Torrent",
            process="produce",
            next="consume",
            stream_to=["consume"],
            relay=RelayConfig(slot_size_mb=4, credits=1),
        ),
        StageConfig(name="consume", factory="fault_stages:Hoarder", process="consume", terminal=True),
        # Freed memory is returned to the system at once, so that leaks are visible.
        env_defaults={"MALLOC_MMAP_THRESHOLD_": "131072", "MALLOC_TRIM_THRESHOLD_": "131072"},
    )


@pytest.mark.full
@pytest.mark.parametrize("chunks", [3, 12], ids=["fits the pool", "does not"])
async def test_streams_that_keep_chunks_do_not_deadlock_on_memory(folder: Path, chunks: int) -> None:
    """Each holds shared memory and needs more; together they need more than exists, and so do the long ones alone."""
    async with open_async(torrent(folder)) as client:
        asked = [client.submit(OmniRequest({"n": n, "chunks": chunks, "nbytes": MIB})) for n in range(8)]
        answers = await asyncio.wait_for(asyncio.gather(*asked), 2 * SOON)
        assert [each["consume"] for each in answers] == [{"n": n, "chunks": chunks} for n in range(8)]
        await Watched(client).rest()


async def test_branches_that_fill_their_pools_do_not_deadlock_in_a_join(folder: Path) -> None:
    """Two branches work in opposite orders; each fills its pool with outputs that the join cannot use without the
    other's.
    """
    small = RelayConfig(slot_size_mb=2, credits=1)

    def branch(name: str) -> StageConfig:
        arguments = {"name": name, "last_first": name == "right"}
        return StageConfig(
            name=name, factory="fault_stages:ordered", factory_args=arguments, process=name, next="join", relay=small
        )

    config = make_pipeline(
        folder,
        StageConfig(name="start", factory="fault_stages:given", process="start", next=["left", "right"]),
        branch("left"),
        branch("right"),
        StageConfig(
            name="join",
            factory="fault_stages:both_arrays",
            process="join",
            terminal=True,
            wait_for=["left", "right"],
            merge_fn="fault_stages:side_by_side",
        ),
    )
    async with open_async(config) as client:
        asked = [client.submit(OmniRequest({"n": n, "count": 6, "nbytes": MIB})) for n in range(6)]
        answers = await asyncio.wait_for(asyncio.gather(*asked), 2 * SOON)
        assert [each["join"] for each in answers] == [{"n": n} for n in range(6)]
        await Watched(client).rest()


@pytest.mark.full
async def test_a_suspended_consumer_loses_no_chunk(folder: Path) -> None:
    """Many more chunks than fit into its sockets wait for it, in bounded memory, and arrive in order afterwards."""
    chunks = 50

    def right(n: int, answer: dict[str, Any]) -> bool:
        return bool(answer["consume"] == {"n": n, "chunks": chunks})

    async with open_async(torrent(folder)) as client:
        request = {"chunks": chunks, "nbytes": 60_000}
        await client.submit(OmniRequest({"n": 0, **request}))
        os.kill(client.process_ids["consume"], signal.SIGSTOP)
        try:
            asked = [asyncio.create_task(client.submit(OmniRequest({"n": n, **request}))) for n in range(64)]
            await asyncio.sleep(3.0)
            assert not any(task.done() for task in asked), [task.exception() for task in asked if task.done()][:1]
        finally:
            os.kill(client.process_ids["consume"], signal.SIGCONT)
        answers = await asyncio.wait_for(asyncio.gather(*asked), 2 * SOON)
        assert all(right(n, answer) for n, answer in enumerate(answers))
        await Watched(client).rest()
