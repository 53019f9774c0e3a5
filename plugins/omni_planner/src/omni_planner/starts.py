"""Measurements of a machine and of its processes that no trace has: the slice of a thread, and how long a process takes to start."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import statistics
import subprocess
import sys
import time

from omni_core.client import AsyncPipe
from omni_core.errors import OmniError
from omni_planner.machine import TICK

START_SECONDS = 600.0
"""Seconds that a process has to serve again."""

_BURN = """
import json, os, time
os.sched_setaffinity(0, {%d})
slices, begin = [], time.perf_counter()
last, end = begin, begin + 0.4
while last < end:
    now = time.perf_counter()
    if now - last > 5e-4:
        slices.append(last - begin)
        begin = now
    last = now
print(json.dumps(slices[1:]))
"""


def measured_tick() -> float:
    """Return the seconds after which a running thread loses its processor to one that waits, from two threads on one processor.

    :data:`~omni_planner.machine.TICK` where a system does not let threads be bound to a processor, or where they do not take turns.
    """
    if not hasattr(os, "sched_getaffinity"):
        return TICK
    script = _BURN % min(os.sched_getaffinity(0))
    burners = [subprocess.Popen([sys.executable, "-I", "-S", "-c", script], stdout=subprocess.PIPE) for _ in range(2)]
    slices = [each for burner in burners for each in json.loads(burner.communicate()[0] or b"[]")]
    return round(statistics.quantiles(slices, n=4)[2], 4) if len(slices) > 10 else TICK


async def measured_starts(pipe: AsyncPipe) -> dict[str, float]:
    """End every process of a pipeline once, and return by stage the seconds until it served again.

    Raises:
        OmniError: one does not serve again.
    """
    starts: dict[str, float] = {}
    for unit, before in pipe.health().items():
        begin = time.monotonic()
        for pid in before["pids"]:
            os.kill(pid, signal.SIGKILL)
        while (now := pipe.health()[unit])["state"] != "ready" or now["restarts"] == before["restarts"]:
            if now["state"] == "failed" or time.monotonic() - begin > START_SECONDS:
                raise OmniError(f"{unit} does not serve again: {now['reason'] or now['state']}")
            await asyncio.sleep(0.005)
        starts.update(dict.fromkeys(before["stages"], time.monotonic() - begin))
    return starts
