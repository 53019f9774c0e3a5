"""More work than a pipeline can do: requests wait without using memory, are refused at admission, and expire in any
queue.
"""

from __future__ import annotations

import asyncio
import gc
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from fault_harness import Load, Watched, branching, right_branching, right_streaming, step, streaming, watched
from pipelines import make_pipeline

from omni_core.client import open_pipeline
from omni_core.config.schema import RelayConfig, StageConfig
from omni_core.errors import OverloadedError, RequestFailedError, RequestTimeoutError
from omni_core.protocol.messages import OmniRequest

MIB = 2**20


async def test_a_slow_sink_does_not_increase_memory(folder: Path) -> None:
    """400 requests of 1 MB into a stage that takes 20 ms each: the stage buffers nothing, and most of the 400 MB are
    not made before there is room for them.
    """
    config = make_pipeline(
        folder,
        StageConfig(
            name="make",
            factory="fault_stages:vector",
            process="make",
            next="sink",
            relay=RelayConfig(slot_size_mb=8, credits=2),
        ),
        StageConfig(name="sink", factory="fault_stages:slow_check_vector", process="sink", terminal=True),
    )
    async with open_pipeline(config, max_in_flight=400) as client:
        await asyncio.gather(*(client.submit(OmniRequest({"n": n, "nbytes": MIB})) for n in range(20)))
        processes = {name: psutil.Process(pid) for name, pid in client.process_ids.items()}
        before = {name: process.memory_full_info().uss for name, process in processes.items()}
        highest = dict(before)
        tasks = [asyncio.create_task(client.submit(OmniRequest({"n": n, "nbytes": MIB}))) for n in range(400)]
        while not all(task.done() for task in tasks):
            for name, process in processes.items():
                highest[name] = max(highest[name], process.memory_full_info().uss)
            await asyncio.sleep(0.1)
        answers = await asyncio.gather(*tasks)
        assert [each["sink"] for each in answers] == [{"n": n, "nbytes": MIB} for n in range(400)]
        assert highest["sink"] - before["sink"] < 8 * MIB
        assert highest["make"] - before["make"] < 100 * MIB
        await Watched(client).rest()


async def test_more_than_the_limit_is_refused_at_once_with_a_hint(folder: Path) -> None:
    async with open_pipeline(make_pipeline(folder, step("only", terminal=True)), max_in_flight=64) as client:
        slow, quick = OmniRequest({"n": 1, "sleep": {"only": 0.5}}), OmniRequest({"n": 1})
        tasks = [asyncio.create_task(client.submit(each)) for each in [slow, *[quick] * 63]]
        await asyncio.sleep(0.05)
        for _ in range(20):
            begin = time.monotonic()
            with pytest.raises(OverloadedError, match="retry after") as caught:
                await client.submit(quick)
            assert time.monotonic() - begin < 0.05
            assert 0 < caught.value.retry_after <= 60
        await asyncio.gather(*tasks)
        assert (await client.submit(quick))["only"]["n"] == 1
        assert (await client.statistics())["coordinator"]["requests"]["refused"] == 20


@pytest.mark.parametrize("stage", ["start", "work", "left", "join"])
async def test_a_deadline_holds_in_every_queue(folder: Path, stage: str) -> None:
    """Requests wait behind a slow one, in each stage in turn; those with a timeout leave when it is over."""
    async with watched(branching(folder), right_branching) as (pipeline, _):
        client = pipeline.client
        slow = asyncio.create_task(client.submit(OmniRequest({"n": 0, "sleep": {stage: 1.5}})))
        await asyncio.sleep(0.1)
        patient = [asyncio.create_task(client.submit(OmniRequest({"n": n}))) for n in range(8)]

        async def hurried(n: int) -> float:
            begin = time.monotonic()
            with pytest.raises(RequestFailedError, match=r"timeout of 0\.3 s") as caught:
                await client.submit(OmniRequest({"n": n}, timeout=0.3))
            assert caught.value.error_type == "TimeoutError"
            return time.monotonic() - begin

        seconds = await asyncio.gather(*(hurried(n) for n in range(8)))
        assert all(0.3 <= each < 0.8 for each in seconds)
        assert right_branching(0, await slow)
        assert all(right_branching(n, each) for n, each in enumerate(await asyncio.gather(*patient)))
        await pipeline.as_before()


async def test_a_deadline_holds_while_a_put_waits_for_the_pool(folder: Path) -> None:
    config = make_pipeline(
        folder,
        StageConfig(
            name="make",
            factory="fault_stages:vector_with_sleep",
            process="make",
            next="gate",
            relay=RelayConfig(slot_size_mb=2, credits=1),
        ),
        StageConfig(name="gate", factory="fault_stages:check_after_sleep", process="gate", terminal=True),
    )

    def right(n: int, answer: dict[str, Any]) -> bool:
        return bool(answer["gate"]["n"] == n)

    async with watched(config, right, {"nbytes": MIB}) as (pipeline, _):
        client = pipeline.client
        slow = asyncio.create_task(client.submit(OmniRequest({"n": 1, "nbytes": MIB, "sleep": 1.5})))
        await asyncio.sleep(0.2)
        hurried = [
            asyncio.create_task(client.submit(OmniRequest({"n": n, "nbytes": MIB}, timeout=0.3))) for n in range(10)
        ]
        begin = time.monotonic()
        for each in await asyncio.gather(*hurried, return_exceptions=True):
            assert isinstance(each, RequestFailedError)
            assert each.error_type == "TimeoutError"
        assert time.monotonic() - begin < 0.8
        assert right(1, await slow)
        await pipeline.as_before()


async def test_a_parent_does_not_grow_with_the_number_of_requests(folder: Path) -> None:
    """Runs in a separate interpreter: 20,000 requests fill every bounded record of past ones, 20,000 more add no
    memory.
    """
    here = Path(__file__).parent
    script = f"""
import asyncio, sys
sys.path[:0] = [{str(here)!r}, {str(here.parent / "end_to_end" / "runtime")!r}]
from pathlib import Path
import test_overload
asyncio.run(test_overload.print_growth(Path({str(folder)!r})))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    assert int(output) < 3 * MIB


async def print_growth(folder: Path) -> None:
    async with open_pipeline(streaming(folder)) as client:
        sizes = []
        async with Load(client, right_streaming).running() as load:
            for _ in range(2):
                await load.more(20_500)
                gc.collect()
                sizes.append(psutil.Process().memory_full_info().uss)
        print(sizes[1] - sizes[0])


async def test_a_deadline_holds_while_its_own_step_runs(folder: Path) -> None:
    async with watched(branching(folder), right_branching) as (pipeline, _):
        for stage in ("start", "left", "join"):
            async with Load(pipeline.client, right_branching).running():
                begin = time.monotonic()
                with pytest.raises(RequestFailedError, match=r"timeout of 0\.3 s"):
                    await pipeline.client.submit(OmniRequest({"n": 1, "sleep": {stage: 0.8}}, timeout=0.3))
                assert 0.3 <= time.monotonic() - begin < 0.8
        await pipeline.as_before()


async def test_a_deadline_ends_a_stream_that_is_being_read(folder: Path) -> None:
    """The client has read part of the reply; the stages stop, and messages that they still send are dropped."""
    config = make_pipeline(folder, StageConfig(name="drip", factory="fault_stages:Drip", process="drip", terminal=True))
    async with open_pipeline(config) as client:
        read, begin = [], time.monotonic()
        with pytest.raises(RequestFailedError, match=r"timeout of 0\.5 s") as caught:
            async for event in client.stream(OmniRequest({"count": 1000, "pause": 0.02}, timeout=0.5)):
                read.append(event.data)
        assert caught.value.error_type == "TimeoutError"
        assert 0.5 <= time.monotonic() - begin < 1.0
        assert read == list(range(len(read)))
        assert len(read) > 5
        begin = time.monotonic()
        assert (await client.submit(OmniRequest({"count": 3, "pause": 0.0})))["drip"] == 3
        assert time.monotonic() - begin < 1.0, "the stage still worked for the request that is over"
        await Watched(client).rest()


async def test_a_timeout_names_the_stages_that_have_the_request(folder: Path) -> None:
    async with open_pipeline(branching(folder)) as client:
        with pytest.raises(RequestTimeoutError) as caught:
            await client.submit(OmniRequest({"n": 1, "sleep": {"left": 1.0}}, timeout=0.3))
        assert "stage 'join' waits for 'left'" in str(caught.value)
        assert "stage 'left' has it queued or computes" in str(caught.value)
        assert caught.value.error_type == "TimeoutError"
