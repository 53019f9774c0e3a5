"""One host as the launcher sees it, without a network: opened, lost, opened again, closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import attrs
import pytest

from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.errors import ConfigError, StartupError
from omni_core.machines import LauncherOptions
from omni_core.processes.process import SupervisedProcess
from omni_core.protocol import registry
from omni_core.protocol.specs import ProcessSpec
from omni_launchers.hosts import host as host_module
from omni_launchers.hosts import messages
from omni_launchers.hosts.curve import CurveKeys
from omni_launchers.hosts.host import Host, RemoteMachine
from omni_launchers.hosts.joining import Joining
from omni_launchers.hosts.launcher import HostsLauncher
from omni_launchers.hosts.messages import (
    CloseRun,
    EndProcess,
    LaunchProcess,
    OpenRun,
    ProcessEnded,
    ProcessStarted,
    ProcessWrote,
    RunClosed,
    RunOpened,
)
from omni_launchers.hosts.server import HostServer
from omni_launchers.hosts.versions import installed

MESSAGES = [each for each in vars(messages).values() if isinstance(each, type) and attrs.has(each)]
SPEC = ProcessSpec(name="p", stages=[], endpoint="omni://r/p", coordinator_endpoint="omni://r", stage_endpoints={})


class Control:
    """Records what is sent, and may answer."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.at: list[str] = []
        self.answer: Callable[[Any], None] = lambda message: None

    def send(self, endpoint: str, message: Any) -> None:
        self.sent.append(message)
        self.answer(message)

    tell = send

    def drop(self, endpoint: str) -> None:
        pass

    def peer_is_up(self, endpoint: str, address: str) -> None:
        self.at.append(address)


def made(address: str | None = "tcp://b:1") -> tuple[Host, Control]:
    control = Control()
    host = Host("omni://r", "b", control, "tcp://a:1", {}, "", address, "is it there?")  # type: ignore[arg-type]
    return host, control


async def opened() -> tuple[Host, RemoteMachine, Control]:
    host, control = made()
    control.answer = lambda message: host.handle(RunOpened(message.run, "/there", "b"))
    machine = await host.machine()
    control.answer = lambda message: None
    assert isinstance(control.sent.pop(), OpenRun)
    return host, machine, control


@pytest.mark.parametrize("message", MESSAGES, ids=lambda message: message.__name__)
def test_a_message_is_registered(message: type) -> None:
    assert message in registry.names


async def test_a_process_is_started_reports_and_ends() -> None:
    host, machine, control = await opened()
    ended: list[SupervisedProcess] = []
    process = machine.start(SPEC, ended.append)
    launch = control.sent.pop()
    assert isinstance(launch, LaunchProcess)
    host.handle(ProcessStarted("an older session", launch.number, 1, "tcp://b:7"))
    assert not process.launched.done()
    host.handle(ProcessStarted(machine.session, launch.number, 77, "tcp://b:9"))
    assert (process.pid, process.address) == (77, "tcp://b:9")
    host.handle(ProcessWrote(machine.session, launch.number, "a line"))
    process.kill()
    assert control.sent.pop() == EndProcess(machine.session, launch.number, kill=True)
    host.handle(ProcessEnded(machine.session, launch.number, -9))
    assert ended == [process]
    assert "on host 'b'" in process.reason
    assert "a line" in process.last_lines


async def test_a_lost_host_ends_its_processes_and_is_opened_again_by_the_next_launch(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(host_module, "FIRST_PAUSE", 0.001)
    host, machine, control = await opened()
    ended: list[SupervisedProcess] = []
    process = machine.start(SPEC, ended.append)
    host.lost("the connection has ended")
    assert ended == [process]
    assert process.reason == "its host 'b' is gone: the connection has ended"
    assert host.problem == "the connection has ended"
    with pytest.raises(OSError, match="host 'b' is gone"):
        machine.start(SPEC, ended.append)
    control.sent.clear()
    attempts: list[str] = []

    def answer(message: Any) -> None:
        attempts.append(message.run)
        if len(attempts) < 3:
            host.lost("no process answers there")
        else:
            host.handle(RunOpened(message.run, "/there again", "b"))

    control.answer = answer
    again, same = await asyncio.wait_for(asyncio.gather(host.machine(), host.machine()), 60)
    assert again is same
    assert again.directory == "/there again"
    assert len(set(attempts)) == 3, "a session for each attempt"
    assert host.problem == ""


async def test_an_answer_to_an_older_attempt_is_not_taken_for_that_to_the_last() -> None:
    """A host that was frozen answers everything that it finds; what it made for the older attempt is ended by the newer."""
    host, control = made()
    first = asyncio.ensure_future(host.machine())
    await asyncio.sleep(0)
    first.cancel()
    second = asyncio.ensure_future(host.machine())
    await asyncio.sleep(0.01)
    older, newer = (message.run for message in control.sent)
    host.handle(RunOpened(older, "/older", "b"))
    await asyncio.sleep(0.01)
    assert not second.done()
    host.handle(RunOpened(newer, "/newer", "b"))
    assert (await asyncio.wait_for(second, 60)).directory == "/newer"


async def test_a_host_that_is_lost_right_after_its_answer_is_opened_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "FIRST_PAUSE", 0.001)
    host, control = made()
    attempts: list[str] = []

    def answer(message: Any) -> None:
        attempts.append(message.run)
        host.handle(RunOpened(message.run, f"/{len(attempts)}", "b"))
        if len(attempts) == 1:
            host.lost("the connection has ended")

    control.answer = answer
    assert (await asyncio.wait_for(host.machine(), 60)).directory == "/2"


async def test_a_host_that_does_not_end_a_process_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """It may have lost the run, and would never say that the process is over."""
    monkeypatch.setattr(host_module, "KILL_SECONDS", 0.01)
    host, machine, _ = await opened()
    ended: list[SupervisedProcess] = []
    process = machine.start(SPEC, ended.append)
    process.kill()
    await asyncio.wait_for(process.ended, 60)
    assert ended == [process]
    assert not host.is_open
    assert "it has not ended a process within" in process.reason


async def test_a_host_that_refuses_the_run_is_an_error() -> None:
    host, control = made()
    control.answer = lambda message: host.handle(RunOpened(message.run, problem="another version"))
    with pytest.raises(StartupError, match=r"hosts\.b: another version"):
        await host.machine()


async def test_a_host_that_joins_is_waited_for() -> None:
    host, control = made(None)
    control.answer = lambda message: host.handle(RunOpened(message.run, "/there", "b"))
    waiting = asyncio.ensure_future(host.machine())
    await asyncio.sleep(0.01)
    assert control.sent == []
    host.is_at("tcp://b:5")
    assert (await asyncio.wait_for(waiting, 60)).directory == "/there"
    assert control.at == ["tcp://b:5"]


async def test_closing_waits_for_the_hosts_acknowledgement() -> None:
    host, machine, control = await opened()
    closing = host.close()
    assert closing is not None
    assert control.sent == [CloseRun(machine.session)]
    assert not closing.done()
    host.handle(RunClosed(machine.session))
    await asyncio.wait_for(closing, 60)


async def test_closing_does_not_wait_for_a_host_that_is_lost() -> None:
    host, _, control = await opened()
    closing = host.close()
    assert closing is not None
    host.lost("gone")
    await asyncio.wait_for(closing, 60)
    assert host.close() is None
    assert len(control.sent) == 1


async def test_a_server_acknowledges_the_end_of_a_run_and_of_an_older_session(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HostServer("tcp://127.0.0.1:0", CurveKeys.new())
    told: list[Any] = []
    monkeypatch.setattr(server.control, "tell", lambda run, message: told.append(message))
    for session in ("r~1~b", "r~2~b", "r~1~b"):  # the last one late, by an older connection
        server._on_message(OpenRun(session, "omni://r", "b", "tcp://127.0.0.1:2", installed()))
    assert list(server._runs) == ["r~2~b"]
    server._on_message(CloseRun("r~2~b"))
    server._on_message(CloseRun("r~2~b"))
    assert [type(each) for each in told] == [RunOpened, RunOpened, RunClosed]
    await server.close()


async def test_a_server_refuses_a_run_of_another_version(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HostServer("tcp://127.0.0.1:0", CurveKeys.new())
    told: list[Any] = []
    monkeypatch.setattr(server.control, "tell", lambda run, message: told.append(message))
    server._on_message(OpenRun("r~1~b", "omni://r", "b", "tcp://127.0.0.1:2", installed() | {"omni-core": "0.0.1"}))
    assert "omni-core" in told[0].problem
    assert "make them equal" in told[0].problem
    assert not server._runs
    await server.close()


async def test_a_server_refuses_another_config_than_the_one_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    server = HostServer("tcp://127.0.0.1:0", CurveKeys.new())
    server.digest = "0a"
    told: list[Any] = []
    monkeypatch.setattr(server.control, "tell", lambda run, message: told.append(message))
    for session, digest in (("r~1~b", "0b"), ("r~2~b", "0a")):
        server._on_message(OpenRun(session, "omni://r", "b", "tcp://127.0.0.1:2", installed(), digest))
    assert "the digest 0a only, not 0b" in told[0].problem
    assert not told[1].problem
    await server.close()


async def launcher_of(folder: Path, stages: Sequence[StageConfig], endpoints: EndpointsConfig) -> HostsLauncher:
    config = PipelineConfig(model_path="none", stages=list(stages), endpoints=endpoints)
    return HostsLauncher(LauncherOptions("omni://r", folder, config))


FAR = StageConfig(name="far", factory="m:f", process="far", terminal=True, host="b")


async def test_a_host_of_another_version_may_not_join(
    folder: Path, key_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    launcher = await launcher_of(folder, [FAR], EndpointsConfig(None, None, str(key_file), "tcp://127.0.0.1:0"))
    here = installed()
    monkeypatch.setattr("omni_launchers.hosts.versions.installed", lambda: here | {"omni-core": "0.0.1"})
    server = HostServer("tcp://127.0.0.2:0", CurveKeys.read(key_file))
    joining = Joining(server, launcher.address, "b")
    try:
        with pytest.raises(StartupError) as refused:
            await asyncio.wait_for(joining.refused, 60)
        wanted = f"omni-core {here['omni-core']} is installed there, and 0.0.1 here; make them equal"
        assert str(refused.value) == f"{launcher.address} refuses this host: {wanted}"
        assert launcher._hosts["b"].address is None
    finally:
        joining.close()
        await server.close()
        await launcher.release()


@pytest.mark.parametrize("accept", ["tcp://0.0.0.0:0", "tcp://[::]:0", "tcp://0:0"])
async def test_hosts_cannot_join_at_an_address_of_every_interface(accept: str, folder: Path, key_file: Path) -> None:
    """The hosts are told to connect to it."""
    for address in (None, "127.0.0.1"):
        with pytest.raises(ConfigError, match="name one address of this one"):
            await launcher_of(folder, [FAR], EndpointsConfig(None, address, str(key_file), accept))
