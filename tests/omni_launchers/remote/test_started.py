"""Pipelines over hosts that a launcher starts: losses, ends of the runner, and starts that fail."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from attrs import evolve
from over_hosts import SECONDS, two_hosts

from omni_cli.deploy.writing import dump_yaml
from omni_core.client import open_async
from omni_core.config.schema import EndpointsConfig, LauncherConfig, PipelineConfig
from omni_core.errors import ConfigError, StartupError
from omni_core.machines import LauncherOptions
from omni_launchers.remote.slurm import SlurmLauncher
from omni_launchers.remote.ssh import SshLauncher
from omni_testing.ours.remote import HERE, Sshd, make_srun, omni, servers


def over(name: str, folder: Path, settings: dict[str, Any], **fields: Any) -> PipelineConfig:
    """Return a pipeline whose stage ``far`` runs on host ``b`` of a launcher."""
    config = two_hosts(folder, folder, "unused", **fields)
    launcher = LauncherConfig(name, {"omni": omni(folder), **settings})
    return evolve(config, endpoints=EndpointsConfig(str(folder), HERE), hosts={}, launcher=launcher)


@asynccontextmanager
async def settings_of(launcher: str, folder: Path) -> AsyncIterator[dict[str, Any]]:
    """Run what a launcher needs around it, and yield its settings."""
    if launcher == "slurm":
        yield {"srun": make_srun(folder)}
        return
    sshd = Sshd(folder)
    try:
        yield {"ssh": sshd.client}
    finally:
        sshd.close()


async def none_is_left(folder: Path) -> None:
    """Wait for the end of the servers of host ``b``: where a connection was cut, they learn it from the other side's kernel."""
    left = []
    for pid in servers(folder, "b"):
        with suppress(psutil.NoSuchProcess):
            left.append(psutil.Process(pid))
    _, alive = await asyncio.to_thread(psutil.wait_procs, left, SECONDS)
    assert alive == []


def command_lines() -> list[str]:
    """Return the command line and the variables of every process."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, OSError):
            found += [*process.cmdline(), *process.environ().values()]
    return found


@pytest.mark.parametrize("launcher", ["ssh", "slurm"])
async def test_a_runner_that_is_killed_leaves_nothing_on_its_hosts(launcher: str, folder: Path) -> None:
    async with settings_of(launcher, folder) as settings:
        file = folder / "pipeline.yaml"
        file.write_text(dump_yaml(over(launcher, folder, settings)))
        script = (
            "import omni_core as omni, sys, time\n"
            "from omni_core.protocol.messages import OmniRequest\n"
            "with omni.open(sys.argv[1]) as pipe:\n"
            "    print('open', flush=True)\n"
            "    time.sleep(600)\n"
        )
        runner = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", script, str(file)), stdout=asyncio.subprocess.PIPE
        )
        assert runner.stdout is not None
        assert await asyncio.wait_for(runner.stdout.readline(), 2 * SECONDS) == b"open\n"
        (server,) = servers(folder, "b")
        left = [psutil.Process(server), *psutil.Process(server).children(recursive=True)]
        left += psutil.Process(runner.pid).children(recursive=True)
        assert len(left) > 4
        runner.kill()
        await runner.wait()
        _, alive = await asyncio.to_thread(psutil.wait_procs, left, SECONDS)
        assert alive == []


async def test_the_keys_are_on_no_command_line_and_in_no_variable(folder: Path) -> None:
    directory = folder / "run"
    directory.mkdir(mode=0o700)
    config = over("slurm", folder, {"srun": make_srun(folder)})
    assert config.launcher is not None
    launcher = SlurmLauncher(LauncherOptions("omni://run", directory, config, config.launcher.settings))
    try:
        await asyncio.wait_for(launcher.acquire([]), SECONDS)
        assert servers(folder, "b")
        assert not [each for each in command_lines() if launcher._keys.secret in each]
    finally:
        await launcher.release()
    await none_is_left(folder)


async def test_a_host_that_ssh_does_not_reach_is_an_error_in_its_words(folder: Path) -> None:
    async with settings_of("ssh", folder) as settings:
        config = over("ssh", folder, {**settings, "destinations": {"b": "no-such-host.invalid"}})
        with pytest.raises(
            StartupError, match=r"(?s)host 'b': its server has ended \(exit code 255\).*no-such-host.invalid"
        ):
            async with open_async(config):
                pass


async def test_a_host_without_omni_is_an_error_in_the_words_of_its_shell(folder: Path) -> None:
    async with settings_of("ssh", folder) as settings:
        config = over("ssh", folder, {**settings, "omni": "/nowhere/omni"})
        with pytest.raises(StartupError, match=r"(?s)exit code 127.*/nowhere/omni"):
            async with open_async(config):
                pass


async def test_a_node_that_slurm_does_not_have_is_an_error_in_its_words(folder: Path) -> None:
    config = over("slurm", folder, {"srun": make_srun(folder), "nodes": {"b": 3}})
    with pytest.raises(StartupError, match=r"(?s)--relative=3.*Requested node configuration is not available \(3\)"):
        async with open_async(config):
            pass


async def test_a_client_that_is_not_installed_is_an_error(folder: Path) -> None:
    with pytest.raises(StartupError, match=r"host 'b': no-such-srun cannot be started: No such file"):
        async with open_async(over("slurm", folder, {"srun": ["no-such-srun"]})):
            pass


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"destination": {}},
            r"launcher.settings.destination: this launcher has no such setting; did you mean 'destinations'",
        ),
        ({"destinations": {"bb": "x"}}, r"launcher.settings.destinations.bb: no stage runs on such a host; .*b"),
        ({"destinations": ["x"]}, r"launcher.settings: .*destinations"),
        ({"ssh": []}, r"launcher.settings: .*ssh"),
        ({"omni": 3}, r"launcher.settings: .*omni"),
        ({"silence": 0.5}, r"launcher.settings: .*silence"),
    ],
)
async def test_a_setting_that_is_wrong_is_named(settings: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(ConfigError, match=message):
        SshLauncher(LauncherOptions("omni://run", folder, over("ssh", folder, settings), settings))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"endpoints": EndpointsConfig()}, "endpoints.address: required by the launcher 'ssh'"),
        ({"endpoints": EndpointsConfig(address=HERE, key_file="run.key")}, "endpoints.key_file: no effect"),
        ({"endpoints": EndpointsConfig(accept="tcp://127.0.0.1:7555")}, "endpoints.accept: no effect"),
        ({"hosts": {"b": "tcp://127.0.0.2:7555"}}, "hosts.b: no effect with the launcher 'ssh'"),
    ],
)
async def test_a_field_without_effect_is_refused(fields: dict[str, Any], message: str, folder: Path) -> None:
    config = evolve(over("ssh", folder, {}), **fields)
    with pytest.raises(ConfigError, match=message):
        SshLauncher(LauncherOptions("omni://run", folder, config, {}))


async def test_a_longer_silence_is_that_of_ssh_too(folder: Path) -> None:
    settings = {"silence": 20.5}
    launcher = SshLauncher(LauncherOptions("omni://run", folder, over("ssh", folder, settings), settings))
    try:
        command = list(launcher.command("b"))
        assert command[command.index("--") - 1] == "ServerAliveCountMax=23"
        assert launcher._silence == 20.5
    finally:
        await launcher.release()
