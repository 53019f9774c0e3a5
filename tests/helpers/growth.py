"""The growth of a pipeline's parent with the number of its requests; runs in an interpreter of its own."""

from __future__ import annotations

import gc
import sys
from pathlib import Path

import psutil
from fault_harness import Load, right_streaming, streaming

from omni_core.client import open_async
from omni_core.control import peer
from omni_core.coordinator import request_machine


async def print_growth(folder: Path) -> None:
    """Print how many small objects, and bytes of private memory, 12,000 requests add."""
    request_machine.REMEMBERED_IDS = 4_000
    peer.ASK_AFTER = 1_000
    async with open_async(streaming(folder)) as client:
        objects, nbytes = [], []
        async with Load(client, right_streaming).running() as load:
            for requests in (4_500, 12_000):
                await load.more(requests, seconds=250)
                gc.collect()
                objects.append(sys.getallocatedblocks())
                nbytes.append(psutil.Process().memory_full_info().uss)
        print(objects[1] - objects[0], nbytes[1] - nbytes[0])
