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

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import PipelineConfig
from omni_core.errors import (
    ConfigError,
    InvalidRequestError,
    OverloadedError,
    RequestAbortedError,
    RequestFailedError,
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


@pytest.mark.parametrize("together", [pytest.param(True, marks=pytest.mark.full), False])
async def test_three_stages_answer(tmp_path: Path, together: bool) -> None:
    async with open_async(three(tmp_path, together)) as client:
        answer = (await client.submit(asking(a=1, b=(1, 2))))["end"]
        pid = answer.pop("pid")
        assert answer == {"a": 1, "b": (1, 2), "inputs": None, "end": True}
        assert pid == client.process_ids["all" if together else "middle"]
        answers = await asyncio.gather(*(client.submit(asking(n=n)) for n in range(200)))
        assert [each["end"]["n"] for each in answers] == list(range(200))


@pytest.mark.parametrize("together", [pytest.param(True, marks=pytest.mark.full), False])
@pytest.mark.parametrize(
    ("poison", "error_type"),
    [
        ("exception", "ValueError"),
        ("exit", "SystemExit"),
        ("interrupt", "KeyboardInterrupt"),
        ("memory", "MemoryError"),
        ("recursion", "RecursionError"),
    ],
)
async def test_an_exception_in_compute_fails_only_its_request(
    tmp_path: Path, together: bool, poison: str, error_type: str
) -> None:
    async with open_async(three(tmp_path, together)) as client:
        good = [asyncio.create_task(client.submit(asking(n=n, sleep=0.002))) for n in range(20)]
        with pytest.raises(RequestFailedError) as caught:
            await client.submit(asking(poison=poison))
        assert (caught.value.stage, caught.value.error_type) == ("start", error_type)
        assert [each["end"]["n"] for each in await asyncio.gather(*good)] == list(range(20))
        assert (await client.submit(asking(n=1)))["end"]["n"] == 1


async def test_a_value_that_cannot_be_sent_is_named(tmp_path: Path) -> None:
    async with open_async(three(tmp_path)) as client:
        for poison, path in (("unsendable", r"\['here'\]"), ("namedtuple", r"\['pair'\]")):
            with pytest.raises(RequestFailedError, match=path) as caught:
                await client.submit(asking(poison=poison))
            assert (caught.value.stage, caught.value.error_type) == ("start", "CodecError")
        answer = (await client.submit(asking(poison="placeholder", x={"_tensor_placeholder": 1})))["end"]
        assert answer["_tensor_placeholder"] == "x"


def branching(tmp_path: Path, **start: Any) -> PipelineConfig:
    return pipeline(
        tmp_path,
        stage("start", "start", next=["middle", "end"], route_fn="pipeline_stages:route", **start),
        stage("middle", "middle", next="end"),
        stage("end", "end", terminal=True),
    )


async def test_routes_choose_from_next_and_bad_ones_fail_only_their_request(tmp_path: Path) -> None:
    async with open_async(branching(tmp_path)) as client:
        assert "pid" not in (await client.submit(asking(route="end")))["end"]
        assert "pid" in (await client.submit(asking(route=["middle"])))["end"]
        for bad in ("nowhere", [], None, 3, ["end", "nowhere"]):
            with pytest.raises(RequestFailedError, match="route_fn") as caught:
                await client.submit(asking(route=bad))
            assert caught.value.stage == "start"
        assert (await client.submit(asking(route="end")))["end"]["end"]


async def test_projections_shape_the_payload_and_their_errors_are_contained(tmp_path: Path) -> None:
    good = three(tmp_path, project_payload={"middle": "pipeline_stages:keep_words"})
    async with open_async(good) as client:
        answer = (await client.submit(asking(words="w", other="o")))["end"]
        assert answer["words"] == "w"
        assert "other" not in answer
        with pytest.raises(RequestFailedError, match="words"):
            await client.submit(asking(other="o"))
    async with open_async(three(tmp_path, project_payload={"middle": "pipeline_stages:broken_projection"})) as client:
        with pytest.raises(RequestFailedError, match="the projection is broken"):
            await client.submit(asking(n=1))


@pytest.mark.parametrize("together", [True, pytest.param(False, marks=pytest.mark.full)])
async def test_fan_in_waits_for_the_active_stages_only(tmp_path: Path, together: bool) -> None:
    where = {"process": "all"} if together else {}
    config = pipeline(
        tmp_path,
        stage("start", "start", next=["left", "right", "join"], route_fn="pipeline_stages:branches", **where),
        stage("left", "left", next="join", **where),
        stage("right", "right", next="join", **where),
        stage(
            "join",
            "end",
            wait_for=["start", "left", "right"],
            wait_for_fn="pipeline_stages:wait_for",
            merge_fn="pipeline_stages:merge",
            terminal=True,
            **where,
        ),
    )
    async with open_async(config) as client:
        for active in (["left", "right"], ["left"], ["right"], []):
            answer = (await client.submit(asking(value=4, route=active)))["join"]
            assert answer["from"] == ["start", *active]
            assert answer.get("left") == (5 if "left" in active else None)
            assert answer.get("right") == (40 if "right" in active else None)
        with pytest.raises(RequestFailedError, match="the merge is broken") as caught:
            await client.submit(asking(value=4, route=["left"], poison_merge=True))
        assert caught.value.stage == "join"
        many = await asyncio.gather(*(client.submit(asking(value=n, route=["left", "right"])) for n in range(50)))
        assert [each["join"]["left"] for each in many] == [n + 1 for n in range(50)]
        resting = await client.statistics()
        assert all(
            values["in_flight"] == 0 for group in resting.values() for values in group.values() if "in_flight" in values
        )


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize(
    "size", [pytest.param(0, marks=pytest.mark.full), pytest.param(100, marks=pytest.mark.full), 200_000]
)
async def test_streams_arrive_whole_and_in_order(tmp_path: Path, together: bool, size: int) -> None:
    where = {"process": "all"} if together else {}
    config = pipeline(
        tmp_path,
        stage("produce", "Producer", next="consume", stream_to=["consume"], **where),
        stage("consume", "Consumer", terminal=True, **where),
    )
    count = 300
    async with open_async(config) as client:
        expected = [(n, n % 250 if size else n) for n in range(count)]
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


async def pool_is_free(client: AsyncPipe, process: str, seconds: float = 30.0) -> bool:
    """Soon: a scheduler may hold its last payload a moment longer than the client waits for the answer."""
    end = time.monotonic() + seconds
    while (await client.statistics())[process]["relay"]["slots_in_use"]:
        if time.monotonic() > end:
            return False
        await asyncio.sleep(0.01)
    return True


async def test_large_tensors_travel_by_relay(tmp_path: Path) -> None:
    config = pipeline(tmp_path, stage("big", "big", next="total"), stage("total", "total", terminal=True))
    async with open_async(config) as client:
        for count in (1, 10_000, 3_000_000):
            answer = await client.submit(asking(count=count))
            assert answer["total"] == pytest.approx(count * (count - 1) / 2, rel=1e-6)
        answers = await asyncio.gather(*(client.submit(asking(count=1_000_000 + n)) for n in range(60)))
        assert len({each["total"] for each in answers}) == 60
        assert await pool_is_free(client, "big")


async def test_terminal_stages_fn_chooses_and_several_terminals_merge(tmp_path: Path) -> None:
    config = pipeline(
        tmp_path,
        stage("start", "start", next=["middle", "end"]),
        stage("middle", "middle", terminal=True),
        stage("end", "end", terminal=True),
        terminal_stages_fn="pipeline_stages:terminals",
    )
    async with open_async(config) as client:
        assert set(await client.submit(asking(n=1))) == {"middle", "end"}
        only = OmniRequest(inputs={"n": 1}, metadata={"terminals": ["end"]})
        assert set(await client.submit(only)) == {"end"}
        with pytest.raises(Exception, match="terminal_stages_fn"):
            await client.submit(OmniRequest(inputs={"n": 1}, metadata={"terminals": ["nowhere"]}))


@pytest.mark.full
async def test_abort_and_cancel_and_timeout_free_the_pipeline(tmp_path: Path) -> None:
    async with open_async(three(tmp_path)) as client:
        busy = asyncio.create_task(client.submit(asking(sleep=1.5), "busy"))
        queued = [asyncio.create_task(client.submit(asking(sleep=60.0), f"q{n}")) for n in range(20)]
        await asyncio.sleep(0.1)
        for name in ("busy", *(f"q{n}" for n in range(10)), "unknown"):
            await client.abort(name)
        for task in queued[10:]:
            task.cancel()
        # Each would compute for a minute, one after the other.
        outcomes = await asyncio.wait_for(asyncio.gather(busy, *queued, return_exceptions=True), 30)
        assert all(isinstance(each, RequestAbortedError | asyncio.CancelledError) for each in outcomes)
        assert (await client.submit(asking(n=1)))["end"]["n"] == 1
        with pytest.raises(InvalidRequestError, match="used before"):
            await client.submit(asking(n=1), "busy")
        with pytest.raises(RequestFailedError, match=r"timeout of 0\.1 s"):
            await client.submit(OmniRequest(inputs={"sleep": 0.5}, timeout=0.1))
        state = await client.statistics()
        resting = {name: group[name]["in_flight"] for name, group in state.items() if name in group}
        assert resting == {"start": 0, "middle": 0, "end": 0}


@pytest.mark.full
async def test_admission_is_bounded(tmp_path: Path) -> None:
    async with open_async(three(tmp_path), max_in_flight=4) as client:
        tasks = [asyncio.create_task(client.submit(asking(sleep=0.3))) for _ in range(6)]
        outcomes = await asyncio.gather(*tasks, return_exceptions=True)
        refused = [each for each in outcomes if isinstance(each, OverloadedError)]
        assert len(refused) == 2
        assert refused[0].retry_after > 0


@pytest.mark.parametrize(
    ("function", "expected"),
    [("fails_to_start", "no weights here"), ("dies_at_start", "my last words"), ("no_such_thing", "no_such_thing")],
)
async def test_a_stage_that_cannot_start_is_named(tmp_path: Path, function: str, expected: str) -> None:
    config = pipeline(tmp_path, stage("start", "start", next="bad"), stage("bad", function, terminal=True))
    with pytest.raises(StartupError, match="'bad'") as caught:
        async with open_async(config):
            pass
    assert expected in str(caught.value)


async def test_factory_arguments_are_checked(tmp_path: Path) -> None:
    config = pipeline(tmp_path, stage("only", "Producer", factory_args={"batch_sise": 3}, terminal=True))
    with pytest.raises(StartupError, match=r"stages\[only\]\.factory_args\.batch_sise"):
        async with open_async(config):
            pass


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


async def test_a_base_path_that_cannot_be_used_is_named(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 100)
    deep.mkdir()
    for base, word in ((deep, "too long"), (tmp_path / "nowhere", "nowhere")):
        with pytest.raises(ConfigError, match=word):
            async with open_async(three(base)):
                pass
