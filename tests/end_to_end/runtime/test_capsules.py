"""Requests that fail or are slow leave capsules, also when a process dies; replays in fresh processes give the same."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from pipelines import make_pipeline

from omni_capsules.capsule import load
from omni_core.cli.main import omni
from omni_core.client import open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, PluginError, RequestFailedError
from omni_core.protocol.messages import OmniRequest

pytest.importorskip("omni_capsules")
pytestmark = pytest.mark.usefixtures("importable_stages")


def pipeline(base: Path, **capsules: Any) -> PipelineConfig:
    return make_pipeline(
        base,
        StageConfig(name="start", factory="pipeline_stages:start", process="a", next="middle"),
        StageConfig(name="middle", factory="pipeline_stages:fails", process="b", next="end"),
        StageConfig(name="end", factory="pipeline_stages:end", process="b", terminal=True),
        capsules={"folder": str(base / "capsules"), "inputs": True, **capsules},
    )


def capsules(folder: Path) -> list[Path]:
    return sorted((folder / "capsules").glob("*.capsule"))


async def replayed(*arguments: object, typed: str = "") -> tuple[int, str]:
    """Run ``omni replay`` in a process of its own; return its status and what it says."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "omni_core.cli", "replay", *map(str, arguments)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate(typed.encode())
    assert process.returncode is not None
    return process.returncode, output.decode()


async def test_a_failing_request_leaves_a_capsule_whose_replay_raises_the_same(run_folder: Path) -> None:
    async with open_async(pipeline(run_folder)) as pipe:
        await pipe.submit(OmniRequest({"n": 1}))
        with pytest.raises(RequestFailedError):
            await pipe.submit(OmniRequest({"n": 2, "fail": "exception"}))
    [path] = capsules(run_folder)  # it is written before the pipeline has ended
    capsule = load(path)
    assert (capsule.reason, capsule.state, capsule.missing) == ("failed", "failed", {})
    assert capsule.error is not None
    assert capsule.error["stage"] == "middle"
    assert [record.stage for record in capsule.stages] == ["start", "middle"]
    refused = CliRunner().invoke(omni, ["replay", str(path)])
    assert "--trust" in str(refused.exception), refused.output
    code, output = await replayed(path, "--trust", "--debug", typed="p 'in ' + __name__\nq\n")
    assert code == 0, output
    assert "stage middle: failed: " in output
    assert "the same error" in output
    assert "in pipeline_stages" in output
    code, output = await replayed(path, "--trust", "--stage", "start", "--json")
    assert (code, '"equal": 1' in output, '"difference": ""' in output) == (0, True, True), output
    shown = CliRunner().invoke(omni, ["replay", str(path), "--show"])
    assert (shown.exit_code, "stage middle: process b" in shown.output) == (0, True), shown.output


async def test_a_request_whose_process_dies_leaves_what_the_process_had(run_folder: Path) -> None:
    async with open_async(pipeline(run_folder)) as pipe:
        with pytest.raises(RequestFailedError, match="ProcessDied"):
            await pipe.submit(OmniRequest({"n": 2, "fail": "death"}))
    [path] = capsules(run_folder)
    capsule = load(path)
    middle = next(record for record in capsule.stages if record.stage == "middle")
    assert [event.kind for event in middle.events] == ["payload", "taken"]
    assert middle.events[0].data is not None
    assert "b" in capsule.processes


async def test_slow_requests_leave_capsules_and_no_more_are_kept_than_allowed(run_folder: Path) -> None:
    async with open_async(pipeline(run_folder, slow=0.000001, keep=2)) as pipe:
        for n in range(4):
            await pipe.submit(OmniRequest({"n": n}), f"request {n}")
    assert [load(path).request_id for path in capsules(run_folder)] == ["request 2", "request 3"]
    capsule = load(capsules(run_folder)[0])
    assert (capsule.reason, capsule.state) == ("slow", "completed")
    assert [record.stage for record in capsule.stages] == ["start", "middle", "end"]
    assert capsule.stages[2].process == "b"


async def test_fast_requests_leave_nothing_and_without_inputs_no_content_is_written(run_folder: Path) -> None:
    async with open_async(pipeline(run_folder, slow=3600.0, inputs=False)) as pipe:
        await pipe.submit(OmniRequest({"n": 1}))
        with pytest.raises(RequestFailedError):
            await pipe.submit(OmniRequest({"n": 2, "word": "confidential", "fail": "exception"}))
        spools = [*run_folder.glob("omni-*/*.capsules")]
        assert len(spools) == 2
        assert not any(b"confidential" in path.read_bytes() for spool in spools for path in spool.iterdir())
    [path] = capsules(run_folder)
    assert b"confidential" not in path.read_bytes()
    assert all(record.events for record in load(path).stages)
    refused = CliRunner().invoke(omni, ["replay", str(path), "--trust"])
    assert "its inputs were not recorded" in str(refused.exception), refused.output


async def test_a_wrong_setting_or_a_missing_distribution_ends_the_start(
    run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match=r"capsules\.slow: must be a number above 0, is 'soon'"):
        async with open_async(pipeline(run_folder, slow="soon")):
            pass
    (run_folder / "file").touch()
    with pytest.raises(ConfigError, match=r"capsules\.folder: .*file/inner cannot be made: Not a directory"):
        async with open_async(pipeline(run_folder, folder=str(run_folder / "file/inner"))):
            pass
    monkeypatch.setitem(sys.modules, "omni_capsules.pipeline", None)
    with pytest.raises(PluginError, match=r"capsules need: pip install omni-capsules"):
        async with open_async(pipeline(run_folder)):
            pass
    assert os.listdir(run_folder) == ["file"]
