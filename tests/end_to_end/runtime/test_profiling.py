"""One trace of a request through every process: queue, compute and transfer in each stage, joined by arrows.

``imported`` reads traces by the rules of Perfetto's importer, which silently drops events that break them.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from pipelines import make_pipeline

from omni_cli.tracing import recorder as recording
from omni_cli.tracing.torch_profiler import torch_events
from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, OmniError
from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import IncomingMessage, MessageQueue

Event = dict[str, Any]


class Arrows(NamedTuple):
    """Flows that were imported, by (id, category, name): each one's first slice, and the slices it leads to."""

    starts: dict[tuple[int, str, str], Event]
    ends: dict[tuple[int, str, str], list[Event]]


def nanoseconds(microseconds: float) -> int:
    return round(microseconds * 1e3)


def flow_key(event: Event) -> tuple[int, str, str]:
    """A flow's identity: numbers are as they are, strings are hexadecimal."""
    number = event["id"] if isinstance(event["id"], int) else int(event["id"], 16)
    assert 0 <= number < 1 << 64
    return number, event["cat"], event["name"]


def imported(events: Iterable[Event]) -> Arrows:
    """Fails if an event would be dropped or truncated: slices of a thread and spans of a track nest, and flows have
    slices to bind to.
    """
    threads, tracks = defaultdict[Any, list[Event]](list), defaultdict[Any, list[str]](list)
    arrows = Arrows({}, defaultdict(list))
    for event in sorted((e for e in events if e["ph"] != "M"), key=lambda e: nanoseconds(e["ts"])):
        assert isinstance(event["pid"], int)
        assert isinstance(event["tid"], int)
        now, stack = nanoseconds(event["ts"]), threads[event["pid"], event["tid"]]
        while stack and nanoseconds(stack[-1]["ts"]) + nanoseconds(stack[-1]["dur"]) < now + (event["ph"] == "X"):
            stack.pop()
        if event["ph"] == "X":
            end = now + nanoseconds(event["dur"])
            assert end > now
            assert not stack or end <= nanoseconds(stack[-1]["ts"]) + nanoseconds(stack[-1]["dur"]), (stack[-1], event)
            stack.append(event)
        elif event["ph"] == "s":
            assert flow_key(event) not in arrows.starts
            arrows.starts[flow_key(event)] = stack[-1]
        elif event["ph"] == "f":
            assert event["bp"] == "e"
            assert flow_key(event) in arrows.starts
            arrows.ends[flow_key(event)].append(stack[-1])
        elif event["ph"] == "i":
            assert event["name"] == "processor time"
        else:
            track = tracks[event["cat"], event["pid"], event["id2"]["local"]]
            if event["ph"] == "b":
                track.append(event["name"])
            elif event["ph"] == "e":
                assert track.pop() == event["name"]
            else:
                assert event["ph"] == "n"
    assert not any(tracks.values())
    return arrows


def streaming(folder: Path) -> PipelineConfig:
    return make_pipeline(
        folder,
        StageConfig(
            name="produce", factory="pipeline_stages:Producer", process="a", next="consume", stream_to=["consume"]
        ),
        StageConfig(name="consume", factory="pipeline_stages:Consumer", process="b", terminal=True),
    )


async def profiled(client: AsyncPipe, path: Path, requests: list[str], **options: Any) -> list[Event]:
    await client.start_profile(**options)
    # One after another: a turn that waits for work as the profile begins is no part of it, and might take all that come together.
    for name in requests:
        await client.submit(OmniRequest({"count": 5, "size": 0}, stream=True), name)
    summary = await client.stop_profile(path)
    events: list[Event] = json.loads(path.read_text())["traceEvents"]
    assert (summary.events, summary.dropped, summary.missing) == (len(events), 0, [])
    return events


async def test_a_trace_shows_every_phase_of_every_stage(run_folder: Path, tmp_path: Path) -> None:
    async with open_async(streaming(run_folder)) as client:
        await client.submit(OmniRequest({"count": 3, "size": 0}), "before")
        events = await profiled(client, tmp_path / "trace.json", ["r1", "r2"])
        pids = client.process_ids
    assert {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"} == {"client", "a", "b"}
    for request in ("r1", "r2"):
        spans = [e for e in events if e["ph"] in "be" and e["args"]["request"] == request]
        opened = Counter(e["name"] for e in spans if e["ph"] == "b")
        names = [
            "produce",
            "produce: queue",
            "produce: compute",
            "consume",
            "consume: queue",
            "consume: compute",
            "request",
        ]
        assert opened == Counter(e["name"] for e in spans if e["ph"] == "e") == Counter(names)
        at = {(e["ph"], e["name"]): e["ts"] for e in spans}
        for stage in ("produce", "consume"):
            order = [
                at["b", stage],
                at["b", f"{stage}: queue"],
                at["e", f"{stage}: queue"],
                at["b", f"{stage}: compute"],
            ]
            assert order == sorted(order)
            assert at["b", f"{stage}: compute"] <= at["e", f"{stage}: compute"] <= at["e", stage]
        assert at["b", "request"] <= at["b", "produce"] <= at["e", "consume: compute"] <= at["e", "request"]
        slices = Counter(e["name"] for e in events if e["ph"] == "X" and e["args"].get("request") == request)
        assert slices == {
            "submit to produce": 1,
            "receive from client": 1,
            "send to consume": 6,
            "receive from produce": 6,
            "send to client": 6,
            "receive from consume": 1,  # the client of submit() wants no partial results
        }
    turns = [e for e in events if e.get("cat") == "turn"]
    assert {(e["pid"], e["name"]) for e in turns} <= {(pids["a"], "produce: turn"), (pids["b"], "consume: turn")}
    assert sum(e["args"]["taken"] for e in turns) > 0
    arrows = imported(events)
    assert {e["pid"] for e in arrows.starts.values()} >= {pids["a"], pids["b"]}
    for key, ends in arrows.ends.items():
        assert [end["args"]["flow"] for end in ends] == [arrows.starts[key]["args"]["flow"]]
        assert ends[0]["pid"] != arrows.starts[key]["pid"]
    # The client of submit() wants no partial results.
    unread = {start["args"]["flow"] for key, start in arrows.starts.items() if key not in arrows.ends}
    assert unread == {f"{request}/consume/client/{number}" for request in ("r1", "r2") for number in range(5)}
    assert not [e for e in events if e.get("args", {}).get("request") == "before"]


@pytest.mark.full
async def test_profiles_can_be_repeated_and_misuse_is_an_error(run_folder: Path, tmp_path: Path) -> None:
    async with open_async(streaming(run_folder)) as client:
        with pytest.raises(OmniError, match="start one first"):
            await client.stop_profile(tmp_path / "none.json")
        with pytest.raises(ConfigError, match="'consum'; did you mean 'consume'"):
            await client.start_profile(torch=["consum"])
        first = await profiled(client, tmp_path / "one.json", ["x1"])
        await client.submit(OmniRequest({"count": 3, "size": 0}), "between")
        second = await profiled(client, tmp_path / "two.json", ["x2"])
        assert {e["args"]["request"] for e in first if e["ph"] == "b"} == {"x1"}
        assert {e["args"]["request"] for e in second if e["ph"] == "b"} == {"x2"}
        await client.start_profile()
        with pytest.raises(OmniError, match="running already"):
            await client.start_profile()
        with pytest.raises(OmniError, match="cannot be written"):
            await client.stop_profile(tmp_path / "no folder" / "t.json")


@pytest.mark.full
async def test_torch_operations_use_the_same_clock(run_folder: Path, tmp_path: Path) -> None:
    config = make_pipeline(
        run_folder,
        StageConfig(name="big", factory="pipeline_stages:big", process="big", next="total"),
        StageConfig(name="total", factory="pipeline_stages:total", process="total", terminal=True),
    )
    async with open_async(config) as client:
        await client.submit(OmniRequest({"count": 1000}))
        await client.start_profile(torch=["big", "total"])
        await client.submit(OmniRequest({"count": 1_000_000}), "r")
        await client.stop_profile(tmp_path / "t.json")
        pid = client.process_ids["total"]
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    (begin,) = [e["ts"] for e in events if e["ph"] == "b" and e["name"] == "total: compute"]
    (end,) = [e["ts"] for e in events if e["ph"] == "e" and e["name"] == "total: compute"]
    operations = [e for e in events if e.get("cat") == "torch,cpu_op"]
    imported(operations)
    imported(e for e in events if e.get("cat") != "torch,cpu_op")
    sums = [e for e in operations if e["name"] == "aten::sum"]
    assert sums
    assert {e["pid"] for e in sums} == {pid}
    slack = 1e5  # each process compares the clocks when it begins; another clock would be off by hours
    assert all(begin - slack <= e["ts"] <= end + slack for e in sums)


def kineto(pid: int) -> list[Event]:
    """An event of a process that launches a kernel, in kineto's format: the device and its stream replace process and
    thread.
    """
    cpu, device = {"pid": pid, "tid": pid}, {"pid": 1, "tid": 7}
    return [
        {"ph": "X", "cat": "cpu_op", "name": "aten::relu", **cpu, "ts": 4391375892680.572, "dur": 33.821},
        {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", **cpu, "ts": 4391375892690.117, "dur": 24.276},
        {"ph": "s", "id": 9, "cat": "ac2g", "name": "ac2g", **cpu, "ts": 4391375892690.117},
        {"ph": "X", "cat": "kernel", "name": "relu", **device, "ts": 4391375892700.001 + pid / 10, "dur": 8.5},
        {"ph": "f", "id": 9, "cat": "ac2g", "name": "ac2g", **device, "ts": 4391375892700.001 + pid / 10, "bp": "e"},
        {
            "ph": "X",
            "cat": "Trace",
            "name": "PyTorch Profiler",
            "pid": "Spans",
            "tid": "Profiler",
            "ts": 0.1,
            "dur": 9.9,
        },
        {"ph": "i", "s": "g", "name": "Record Window End", "pid": "", "tid": "", "ts": 4391375901972.162},
        {"ph": "M", "name": "process_name", "pid": 1, "tid": 0, "args": {"name": "python"}},
    ]


def test_two_processes_may_use_one_device() -> None:
    shift = 1_790_857_026_000_000_000 - 1_790_861_000_000_000_123
    parts = {pid: torch_events(kineto(pid), pid, shift) for pid in (1, 20)}
    arrows = imported([*parts[1], *parts[20]])
    assert arrows.starts.keys() == arrows.ends.keys()
    assert Counter(start["pid"] for start in arrows.starts.values()) == {1: 1, 20: 1}
    for key, (end,) in arrows.ends.items():
        assert (arrows.starts[key]["name"], end["name"]) == ("cudaLaunchKernel", "relu")
        assert end["pid"] == arrows.starts[key]["pid"]
    for pid, part in parts.items():
        (name,) = [e for e in part if e["ph"] == "M"]
        (kernel,) = [e for e in part if e.get("cat") == "torch,kernel" and e["ph"] == "X"]
        assert (name["pid"], name["tid"], name["args"]["name"]) == (pid, kernel["tid"], "device 1 stream 7")
        (launch,) = [e for e in part if e["name"] == "cudaLaunchKernel"]
        assert nanoseconds(launch["ts"]) == 4_391_375_892_690_117 + shift


def test_short_slices_do_not_overlap(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = recording.Recorder("p")
    clock = iter(range(1_000, 100_000, 100))
    monkeypatch.setattr(time, "monotonic_ns", lambda: next(clock))
    for number in range(3):
        begin = time.monotonic_ns()
        recorder.slice("send", begin, "r", ("a", "b", number), starts=True)
    assert len(imported(recorder.finish()).starts) == 3


def test_stages_of_one_process_may_work_on_a_request_at_once() -> None:
    recorder = recording.Recorder("p")
    stages = [recorder.attach(name, MessageQueue[IncomingMessage]()) for name in ("produce", "consume")]
    for stage in stages:
        stage.inbox("put", [IncomingMessage("r", "new_request")])
        stage.inbox("take", [IncomingMessage("r", "new_request")])
    for stage in stages:
        stage.ended("r")
    imported(recorder.finish())


def test_open_slices_are_closed_innermost_first_at_the_end() -> None:
    recorder = recording.Recorder("p")
    for name in ("stage", "stage: queue"):
        recorder.begin("r", name, "stage")
    events = recorder.finish()
    imported(events)
    assert [e["name"] for e in events if e["ph"] == "e" and e["args"]["unfinished"]] == ["stage: queue", "stage"]


def test_memory_is_bounded_and_kept_events_are_complete(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recording, "MAX_EVENTS", 10)
    recorder = recording.Recorder("p")
    for number in range(4):
        recorder.begin(f"r{number}", "request")
        recorder.begin(f"r{number}", "work")
    for number in range(4):
        recorder.end(f"r{number}", "work")
        recorder.end(f"r{number}", "request")
    recorder.slice("send", 0, "r0", ("a", "b", None), starts=True)
    assert len(recorder.events) == 10
    assert recorder.dropped == 8
    imported(recorder.finish())


def test_the_events_of_another_machine_are_shifted_and_numbered() -> None:
    ahead = recording.clock_ahead(1_000, (51_000, 51_500), 2_500)
    assert ahead == 49_500, "half of what the messages took is to each side"
    events = [{"ph": "X", "pid": 7, "tid": 9, "ts": 52.0}, {"ph": "M", "pid": 7, "tid": "name"}]
    data = json.dumps(events).encode()
    assert recording.ProfilePart(data).read() == events
    there = recording.ProfilePart(data, 2, ahead).read()
    assert there == [
        {"ph": "X", "pid": 7 + (2 << 22), "tid": 9 + (2 << 22), "ts": 2.5},
        {"ph": "M", "pid": 7 + (2 << 22), "tid": "name"},
    ]
