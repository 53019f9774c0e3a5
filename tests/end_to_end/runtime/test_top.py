"""``omni top`` looks at a running pipeline and leaves it as it is."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path

import psutil
import pytest
from click.testing import CliRunner
from pipelines import make_pipeline

from omni_cli.status_client import running
from omni_core.cli.main import omni
from omni_core.client import open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest


def two(folder: Path) -> PipelineConfig:
    return make_pipeline(
        folder,
        StageConfig(name="start", factory="pipeline_stages:start", process="a", next="end"),
        StageConfig(name="end", factory="pipeline_stages:end", process="b", terminal=True),
    )


async def omni_cli(*arguments: str) -> tuple[int, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "omni_core.cli", *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, "COLUMNS": "200"},
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_once_and_json(run_folder: Path) -> None:
    async with open_async(two(run_folder)) as client:
        for n in range(5):
            await client.submit(OmniRequest({"n": n}))
        (folder,) = running(run_folder)
        code, output = await omni_cli("top", str(folder), "--once")
        assert code == 0, output
        assert "5 completed" in output
        assert ["start", "a", "ready", "0"] in [line.split()[:4] for line in output.splitlines()]
        code, output = await omni_cli("top", str(folder), "--json")
        document = json.loads(output)
        assert document["health"]["b"]["pids"] == [client.process_ids["b"]]
        end = document["statistics"]["b"]["end"]
        assert (end["completed"], end["in_flight"], end["steps"], end["computed"]) == (5, 0, 5, 5)
        assert document["statistics"]["a"]["start"]["edge.end.messages"] == 5


@pytest.mark.full
async def test_watching_does_not_slow_the_pipeline_and_a_killed_watcher_leaves_nothing(run_folder: Path) -> None:
    async with open_async(two(run_folder)) as client:
        await client.submit(OmniRequest({"n": 0}))
        await client.statistics()  # from now on the parent has a connection to every process
        before = psutil.Process().num_fds()
        (folder,) = running(run_folder)
        for _ in range(3):
            watcher = await asyncio.create_subprocess_exec(
                *(sys.executable, "-m", "omni_core.cli", "top", str(folder), "--interval", "0.1"),
                stdout=asyncio.subprocess.DEVNULL,
            )
            await asyncio.sleep(1.0)
            assert watcher.returncode is None, "it goes on looking"
            watcher.kill()
            await watcher.wait()
            assert (await client.submit(OmniRequest({"n": 1})))["end"]["n"] == 1
        async with asyncio.timeout(30):
            while psutil.Process().num_fds() > before:
                await asyncio.sleep(0.05)


async def test_a_running_pipeline_is_profiled_from_outside(run_folder: Path, tmp_path: Path) -> None:
    async with open_async(two(run_folder)) as client:
        (folder,) = running(run_folder)
        out = tmp_path / "trace.json"
        recording = asyncio.create_task(omni_cli("profile", str(folder), "--seconds", "1", "--out", str(out)))
        while not recording.done():
            await client.submit(OmniRequest({"n": 1}))
        code, output = await recording
        assert code == 0, output
        events = json.loads(out.read_text())["traceEvents"]
        assert f"{len(events)} events" in output
        assert {"start: compute", "end: compute"} <= {event["name"] for event in events}
        code, output = await omni_cli("profile", str(folder), "--seconds", "0.1", "--torch", "nowhere")
        assert (code, "no stage is called 'nowhere'" in output) == (1, True)


def test_without_a_running_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    result = CliRunner().invoke(omni, ["top", "--once"])
    assert result.exit_code == 1
    assert "no pipeline runs here" in str(result.exception)
