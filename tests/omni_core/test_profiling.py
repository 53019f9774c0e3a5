"""One trace of a request through every process: queue, compute and transfer in each stage, joined by arrows."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from pipelines import make_pipeline

from omni_core.client import Client, open_pipeline
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, OmniError
from omni_core.protocol.messages import OmniRequest

pytestmark = pytest.mark.usefixtures("importable_stages")


def streaming(folder: Path) -> PipelineConfig:
    return make_pipeline(
        folder,
        StageConfig(
            name="produce", factory="pipeline_stages:Producer", process="a", next="consume", stream_to=["consume"]
        ),
        StageConfig(name="consume", factory="pipeline_stages:Consumer", process="b", terminal=True),
    )


async def profiled(client: Client, path: Path, requests: list[str], **options: Any) -> list[dict[str, Any]]:
    await client.start_profile(**options)
    await asyncio.gather(*(client.submit(OmniRequest({"count": 5, "size": 0}, stream=True), name) for name in requests))
    summary = await client.stop_profile(path)
    events: list[dict[str, Any]] = json.loads(path.read_text())["traceEvents"]
    assert (summary.events, summary.dropped, summary.missing) == (len(events), 0, [])
    return events


async def test_a_trace_shows_every_phase_of_every_stage(run_folder: Path, tmp_path: Path) -> None:
    async with open_pipeline(streaming(run_folder)) as client:
        await client.submit(OmniRequest({"count": 3, "size": 0}), "before")
        events = await profiled(client, tmp_path / "trace.json", ["r1", "r2"])
        pids = client.process_ids
    assert {e["args"]["name"] for e in events if e["ph"] == "M" and e["name"] == "process_name"} == {"client", "a", "b"}
    for request in ("r1", "r2"):
        spans = [e for e in events if e["ph"] in "be" and e["id"] == request]
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
        slices = Counter(e["name"] for e in events if e["ph"] == "X" and e["args"]["request"] == request)
        assert slices == {
            "submit to produce": 1,
            "receive from client": 1,
            "send to consume": 6,
            "receive from produce": 6,
            "send to client": 6,
            "receive from consume": 1,  # the client of submit() wants no partial results
        }
    starts = {e["id"]: e for e in events if e["ph"] == "s"}
    ends = {e["id"]: e for e in events if e["ph"] == "f"}
    assert ends.keys() <= starts.keys()
    assert {e["pid"] for e in starts.values()} >= {pids["a"], pids["b"]}
    for name, end in ends.items():
        assert starts[name]["ts"] <= end["ts"]
        assert starts[name]["pid"] != end["pid"]
    assert not [e for e in events if e.get("id") == "before"]


async def test_profiles_begin_and_end_again_and_say_what_is_wrong(run_folder: Path, tmp_path: Path) -> None:
    async with open_pipeline(streaming(run_folder)) as client:
        with pytest.raises(OmniError, match="start one first"):
            await client.stop_profile(tmp_path / "none.json")
        with pytest.raises(ConfigError, match="'consum'; did you mean 'consume'"):
            await client.start_profile(torch=["consum"])
        first = await profiled(client, tmp_path / "one.json", ["x1"])
        await client.submit(OmniRequest({"count": 3, "size": 0}), "between")
        second = await profiled(client, tmp_path / "two.json", ["x2"])
        assert {e["id"] for e in first if e["ph"] == "b"} == {"x1"}
        assert {e["id"] for e in second if e["ph"] == "b"} == {"x2"}
        await client.start_profile()
        with pytest.raises(OmniError, match="running already"):
            await client.start_profile()
        with pytest.raises(OmniError, match="cannot be written"):
            await client.stop_profile(tmp_path / "no folder" / "t.json")


async def test_torch_operations_lie_on_the_same_clock(run_folder: Path, tmp_path: Path) -> None:
    config = make_pipeline(
        run_folder,
        StageConfig(name="big", factory="pipeline_stages:big", process="big", next="total"),
        StageConfig(name="total", factory="pipeline_stages:total", process="total", terminal=True),
    )
    async with open_pipeline(config) as client:
        await client.submit(OmniRequest({"count": 1000}))
        await client.start_profile(torch=["total"])
        await client.submit(OmniRequest({"count": 1_000_000}), "r")
        await client.stop_profile(tmp_path / "t.json")
        pid = client.process_ids["total"]
    events = json.loads((tmp_path / "t.json").read_text())["traceEvents"]
    (begin,) = [e["ts"] for e in events if e["ph"] == "b" and e["name"] == "total: compute"]
    (end,) = [e["ts"] for e in events if e["ph"] == "e" and e["name"] == "total: compute"]
    sums = [e for e in events if e["ph"] == "X" and e["name"] == "aten::sum"]
    assert sums
    assert {e["pid"] for e in sums} == {pid}
    assert all(begin - 1000 <= e["ts"] <= end + 1000 for e in sums)


async def test_unprofiled_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    from omni_core.runtime import profiler

    monkeypatch.setattr(profiler, "MAX_EVENTS", 10)
    recorder = profiler.Recorder("p")
    for number in range(8):
        recorder.begin(f"r{number}", "work")
        recorder.end(f"r{number}", "work")
    assert len(recorder.events) == 10
    assert recorder.dropped == 6
