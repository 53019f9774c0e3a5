"""The runner's own machine: no other hosts, and processes with and without a fork server."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import psutil
import pytest

from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError, StartupError
from omni_core.machines import LauncherOptions, LocalLauncher, LocalMachine, Need
from omni_core.plugins import PluginRegistry
from omni_core.protocol.specs import ProcessSpec


def options(folder: Path, **settings: Any) -> LauncherOptions:
    return LauncherOptions("omni://r", folder, PipelineConfig(model_path="m", stages=[]), settings)


async def test_it_places_every_unit_here_and_has_no_other_hosts(tmp_path: Path) -> None:
    launcher = LocalLauncher(options(tmp_path))
    await launcher.acquire([Need("a"), Need("b", gpus=(0,))])
    grant = await launcher.place("a")
    assert (grant.machine, dict(grant.environment)) == (launcher.here, {})
    with pytest.raises(StartupError, match="b is to run on host 'far', and the launcher is local"):
        await launcher.acquire([Need("a"), Need("b", host="far")])
    await launcher.release()


def test_it_has_no_settings(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"launcher\.settings\.size"):
        LocalLauncher(options(tmp_path, size=1))


@pytest.mark.parametrize("has_server", [True, False])
async def test_a_process_starts_as_a_fork_or_a_fresh_interpreter(
    tmp_path: Path, has_server: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not has_server:
        monkeypatch.setattr("omni_core.services.load_plugins", lambda: PluginRegistry([]))
    machine, ended = LocalMachine(tmp_path), list[str]()
    sockets = {name: f"ipc://{tmp_path}/{name}" for name in ("p", "c")}
    spec = ProcessSpec(
        name="p", stages=[], endpoint=sockets["p"], coordinator_endpoint=sockets["c"], stage_endpoints={}
    )
    process = machine.start(spec, lambda process: ended.append(process.spec.name))
    await process.launched
    mains = ("omni_torch.processes.forks.main",) if has_server else ("omni_core.processes.main",)
    async with asyncio.timeout(20):
        while not (command := psutil.Process(process.pid).cmdline()):  # it begins a moment after the new program
            await asyncio.sleep(0.01)
    assert any(main in command for main in mains)
    process.say_stop()
    async with asyncio.timeout(20):
        await process.ended
    assert ended == ["p"]
    machine.close()
