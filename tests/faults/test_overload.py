"""More work than a pipeline can do: requests are refused at admission, and expire with the names of the stages that have them."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

import pytest
from fault_harness import SOON, branching, step, watched
from pipelines import make_pipeline

from omni_core.client import open_async
from omni_core.config.schema import RelayConfig, StageConfig
from omni_core.errors import OverloadedError, RequestFailedError, RequestTimeoutError
from omni_core.protocol.messages import OmniRequest

MIB = 2**20


async def test_more_than_the_limit_is_refused_at_once_with_a_hint(folder: Path) -> None:
    go = folder / "go"
    async with open_async(make_pipeline(folder, step("only", terminal=True)), max_in_flight=64) as client:
        slow, quick = OmniRequest({"n": 1, "held": {"only": str(go)}}), OmniRequest({"n": 1})
        tasks = [asyncio.create_task(client.submit(each)) for each in [slow, *[quick] * 63]]
        await asyncio.sleep(0.05)
        for _ in range(20):
            with pytest.raises(OverloadedError, match="retry after") as caught:
                await asyncio.wait_for(client.submit(quick), SOON)
            assert 0 < caught.value.retry_after <= 60
        assert not any(task.done() for task in tasks), "nothing that was admitted is over yet"
        go.touch()
        await asyncio.gather(*tasks)
        assert (await client.submit(quick))["only"]["n"] == 1
        assert (await client.statistics())["coordinator"]["requests"]["refused"] == 20


@pytest.mark.full
async def test_a_deadline_holds_while_a_put_waits_for_the_pool(folder: Path) -> None:
    config = make_pipeline(
        folder,
        StageConfig(
            name="make",
            factory="fault_stages:vector_that_is_held",
            process="make",
            next="gate",
            relay=RelayConfig(slot_size_mb=2, credits=1),
        ),
        StageConfig(name="gate", factory="fault_stages:check_when_let_go", process="gate", terminal=True),
    )

    def right(n: int, answer: dict[str, Any]) -> bool:
        return bool(answer["gate"]["n"] == n)

    async with watched(config, right, {"nbytes": MIB}) as (pipeline, _):
        client, go = pipeline.client, folder / "go"
        slow = asyncio.create_task(client.submit(OmniRequest({"n": 1, "nbytes": MIB, "held": str(go)})))
        await asyncio.sleep(0.2)
        hurried = [
            asyncio.create_task(client.submit(OmniRequest({"n": n, "nbytes": MIB}, timeout=0.3))) for n in range(10)
        ]
        for each in await asyncio.wait_for(asyncio.gather(*hurried, return_exceptions=True), SOON):
            assert isinstance(each, RequestFailedError)
            assert each.error_type == "TimeoutError"
        assert not slow.done()
        go.touch()
        assert right(1, await slow)
        await pipeline.as_before()


@pytest.mark.full
async def test_a_parent_does_not_grow_with_the_number_of_requests(folder: Path) -> None:
    """Runs in a separate interpreter, which remembers less of past requests: 4,000 ids in place of 20,000, and 1,000 messages to a stage in
    place of 10,000. These fill every bounded record, and 12,000 more requests add no memory, neither objects nor pages.
    """
    script = f"""
import asyncio, sys
from pathlib import Path
import growth
asyncio.run(growth.print_growth(Path({str(folder)!r})))
"""
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=asyncio.subprocess.PIPE)
    output, _ = await process.communicate()
    assert process.returncode == 0
    objects, nbytes = map(int, output.split())
    assert objects < 3_000, "a record keeps one object of every fourth request, or more"
    assert nbytes < 1.5 * MIB


async def test_a_timeout_names_the_stages_that_have_the_request(folder: Path) -> None:
    async with open_async(branching(folder)) as client:
        await client.submit(OmniRequest({"n": 0}))  # connects the stages
        go = folder / "go"
        with pytest.raises(RequestTimeoutError) as caught:
            await client.submit(OmniRequest({"n": 1, "held": {"left": str(go)}}, timeout=1.5))
        go.touch()
        assert "stage 'join' waits for 'left'" in str(caught.value)
        assert "stage 'left' has it queued or computes" in str(caught.value)
        assert caught.value.error_type == "TimeoutError"
