"""Pipelines in real processes: routes, fan-in, streams, failures that stay with their request, and nothing left behind."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from leftovers import Before
from three_stages import pipeline, stage, three

from omni_core.client import open_async
from omni_core.errors import (
    StartupError,
)
from omni_core.protocol.messages import OmniRequest


@pytest.fixture
def tmp_path() -> Any:
    """A short path: socket addresses have a limit, and pytest's own folders can be deep."""
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(autouse=True)
def nothing_left(tmp_path: Path) -> Any:
    """Children, shared memory and run folders of a test are gone after it."""
    before = Before()
    yield
    before.expect_nothing_new(tmp_path)


def asking(**inputs: Any) -> OmniRequest:
    return OmniRequest(inputs=inputs)


async def test_three_stages_answer(tmp_path: Path) -> None:
    async with open_async(three(tmp_path)) as client:
        answer = (await client.submit(asking(a=1, b=(1, 2))))["end"]
        pid = answer.pop("pid")
        assert answer == {"a": 1, "b": (1, 2), "inputs": None, "end": True}
        assert pid == client.process_ids["middle"]
        answers = await asyncio.gather(*(client.submit(asking(n=n)) for n in range(200)))
        assert [each["end"]["n"] for each in answers] == list(range(200))


@pytest.mark.parametrize("together", [True, False])
async def test_streams_arrive_whole_and_in_order(tmp_path: Path, together: bool) -> None:
    where = {"process": "all"} if together else {}
    config = pipeline(
        tmp_path,
        stage("produce", "Producer", next="consume", stream_to=["consume"], **where),
        stage("consume", "Consumer", terminal=True, **where),
    )
    count, size = 300, 200_000
    async with open_async(config) as client:
        expected = [(n, n % 250) for n in range(count)]
        assert (await client.submit(asking(count=count, size=size)))["consume"]["chunks"] == expected
        partial, final = [], None
        async for event in client.stream(asking(count=count, size=size)):
            if event.final:
                final = event.data
            else:
                partial.append(event.data)
        assert partial == [value for _, value in expected]
        assert final == {"chunks": expected}
        assert (await client.submit(asking(count=0)))["consume"]["chunks"] == []


@pytest.mark.parametrize(
    ("function", "expected"),
    [("fails_to_start", "no weights here"), ("dies_at_start", "my last words")],
)
async def test_a_stage_that_cannot_start_is_named(tmp_path: Path, function: str, expected: str) -> None:
    config = pipeline(tmp_path, stage("start", "start", next="bad"), stage("bad", function, terminal=True))
    with pytest.raises(StartupError, match="'bad'") as caught:
        async with open_async(config):
            pass
    assert expected in str(caught.value)


SCRIPT = """
import asyncio, sys
from pathlib import Path
from three_stages import three
from omni_core.client import open_async

async def main():
    async with open_async(three(Path({tmp!r}))) as client:
        print(*client.process_ids.values(), flush=True)
        await asyncio.sleep(60)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_children_end_with_their_parent(tmp_path: Path, how: signal.Signals) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    script = SCRIPT.format(tmp=str(folder))
    parent = subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, stderr=subprocess.DEVNULL
    )
    assert parent.stdout is not None
    pids = [int(each) for each in parent.stdout.readline().split()]
    assert len(pids) == 3
    parent.send_signal(how)
    parent.wait(30)
    gone = wait_until(lambda: not any(alive(pid) for pid in pids), 30.0)
    assert gone, [pid for pid in pids if alive(pid)]


def alive(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


async def test_an_idle_pipeline_uses_no_cpu(tmp_path: Path) -> None:
    async with open_async(three(tmp_path)) as client:
        await client.submit(asking(n=1))
        await asyncio.sleep(0.3)
        processes = [psutil.Process(), *(psutil.Process(pid) for pid in client.process_ids.values())]
        used = []
        for _ in range(4):  # on a busy machine, the time of others is sometimes counted here; what polls does so always
            before = [sum(each.cpu_times()[:2]) for each in processes]
            await asyncio.sleep(1.5)
            after = [sum(each.cpu_times()[:2]) for each in processes]
            used.append(max(b - a for a, b in zip(before, after, strict=True)))
            if used[-1] <= 0.03:
                break
        assert min(used) <= 0.03, used
