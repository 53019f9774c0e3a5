"""The supervisor carries out its unit's decisions; processes are replaced by objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from omni_core.config.schema import RestartConfig
from omni_core.errors import StartupError
from omni_core.processes.process import SupervisedProcess
from omni_core.processes.supervisor import Supervisor
from omni_core.processes.unit import UnitState
from omni_core.protocol.messages import ErrorInfo
from omni_core.protocol.specs import ProcessSpec, StageSpec, UnitSpec


class Process(SupervisedProcess):
    """A process that ends when it is told to."""

    def __init__(self, spec: ProcessSpec, on_exit: Callable[[SupervisedProcess], None], pid: int) -> None:
        super().__init__(spec)
        self._on_exit = on_exit
        if pid:
            self.has_pid(pid)

    def has_pid(self, pid: int) -> None:
        self.pid = pid
        self.launched.set_result(None)

    def say_stop(self) -> None:
        self.end(0)

    def kill(self) -> None:
        self.end(-9)

    def end(self, code: int) -> None:
        if self.running:
            self.code = code
            self.ended.set_result(None)
            asyncio.get_running_loop().call_soon(self._on_exit, self)


class Machine:
    """Launches processes, and is the owner that the unit reports to."""

    def __init__(self, *ranks: str, pids: bool = True, restart: RestartConfig | None = None) -> None:
        self.launched: list[Process] = []
        self.heard: list[str] = []
        self.pids = pids
        self.problem: OSError | None = None
        processes = [
            ProcessSpec(
                name=name,
                stages=[StageSpec(name="s", factory="m:f")],
                endpoint=f"ipc:///run/{name}.sock",
                coordinator_endpoint="ipc://c",
                stage_endpoints={},
            )
            for name in ranks or ("p",)
        ]
        spec = UnitSpec(name="u", group="u", processes=processes, startup_timeout=10.0)
        self.supervisor = Supervisor(spec, restart or RestartConfig(limit=2, backoff=0.01), self, self.launch)

    def launch(self, spec: ProcessSpec, on_exit: Callable[[SupervisedProcess], None]) -> Process:
        if self.problem is not None:
            raise self.problem
        process = Process(spec, on_exit, 100 + len(self.launched) if self.pids else 0)
        self.launched.append(process)
        return process

    def unit_changed(self, supervisor: Supervisor) -> None:
        self.heard.append(supervisor.life.state.value)

    def unit_died(self, supervisor: Supervisor, reason: str) -> None:
        self.heard.append("died")

    def unit_is_ready(self, supervisor: Supervisor) -> None:
        self.heard.append("is ready")

    def unit_is_back(self, supervisor: Supervisor) -> None:
        self.heard.append("is back")

    def unit_failed(self, supervisor: Supervisor, reason: str) -> None:
        self.heard.append("given up")

    def ping(self, process: ProcessSpec) -> None:
        self.heard.append(f"ping {process.name}")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(5):
        while not condition():
            await asyncio.sleep(0.002)


async def test_launch_death_restart_and_stop() -> None:
    machine = Machine()
    unit = machine.supervisor
    unit.launch()
    unit.process_is_ready("p", 100)
    await unit.started
    assert machine.heard == ["ready", "is ready"]
    machine.heard.clear()
    machine.launched[0].end(-9)
    await until(lambda: len(machine.launched) == 2)
    unit.process_is_ready("p", 101)
    assert machine.heard == ["restarting", "died", "ready", "is ready", "is back"]
    assert unit.life.restarts == 1
    assert "SIGKILL" in unit.life.reason
    unit.begin_stop()
    await unit.finish_stop(1.0)
    assert not unit.processes[0].running
    assert unit.life.state is UnitState.STOPPED


async def test_a_late_message_of_a_predecessor_does_not_make_the_unit_ready() -> None:
    machine = Machine()
    machine.supervisor.launch()
    machine.supervisor.process_is_ready("p", 99)
    assert machine.supervisor.life.state is UnitState.STARTING
    machine.supervisor.process_is_ready("p", 100)
    assert machine.supervisor.life.state is UnitState.READY


async def test_a_process_elsewhere_may_be_ready_before_its_pid_is_known() -> None:
    machine = Machine(pids=False)
    machine.supervisor.launch()
    machine.supervisor.process_is_ready("p", 5)
    machine.supervisor.process_is_ready("p", 6)
    assert machine.supervisor.life.state is UnitState.STARTING
    machine.launched[0].has_pid(6)
    await asyncio.sleep(0)
    assert machine.supervisor.life.state is UnitState.READY


async def test_a_dead_rank_ends_the_others() -> None:
    machine = Machine("r0", "r1")
    machine.supervisor.launch()
    for process in machine.launched:
        machine.supervisor.process_is_ready(process.spec.name, process.pid)
    addresses = {each.spec.stages[0].injected["tp_rendezvous"] for each in machine.launched}
    machine.launched[1].end(-11)
    await until(lambda: len(machine.launched) == 4)
    assert [each.code for each in machine.launched[:2]] == [-9, -11]
    again = {each.spec.stages[0].injected["tp_rendezvous"] for each in machine.launched[2:]}
    assert len(addresses) == len(again) == 1
    assert addresses != again


async def test_a_start_that_fails_says_why() -> None:
    machine = Machine()
    machine.supervisor.launch()
    machine.launched[0].keep("my last line")
    machine.launched[0].end(3)
    with pytest.raises(StartupError, match=r"(?s)'s' could not be started: .*ended with code 3.*my last line"):
        await machine.supervisor.started
    assert machine.supervisor.life.state is UnitState.FAILED

    machine = Machine()
    machine.supervisor.launch()
    machine.supervisor.start_failed(ErrorInfo("s", "ValueError", "bad"))
    with pytest.raises(StartupError, match="'s' could not be started: ValueError: bad"):
        await machine.supervisor.started

    machine = Machine("r0", "r1")
    machine.problem = OSError("no more processes")
    machine.supervisor.launch()
    with pytest.raises(StartupError, match="could not be started: no more processes"):
        await machine.supervisor.started


async def test_too_many_deaths_fail_the_unit() -> None:
    machine = Machine()
    unit = machine.supervisor
    unit.launch()
    for number in range(3):
        unit.process_is_ready("p", 100 + number)
        machine.launched[number].end(1)
        await until(lambda number=number: len(machine.launched) > number + 1 or unit.life.state is UnitState.FAILED)  # type: ignore[misc]
    assert unit.life.state is UnitState.FAILED
    assert machine.heard[-3:] == ["failed", "died", "given up"]


async def test_pings() -> None:
    machine = Machine()
    machine.supervisor.launch()
    machine.supervisor.beat()
    assert machine.heard == []
    machine.supervisor.process_is_ready("p", 100)
    machine.supervisor.beat()
    machine.supervisor.beat()
    machine.supervisor.answered("p", [], {})
    machine.supervisor.beat()
    assert machine.heard == ["ready", "is ready", "ping p", "ping p"]


async def test_a_stop_that_is_cancelled_still_ends_every_process() -> None:
    machine = Machine("r0", "r1")
    machine.supervisor.launch()
    for process in machine.launched:
        machine.supervisor.process_is_ready(process.spec.name, process.pid)
        process.say_stop = lambda: None  # type: ignore[method-assign]
    machine.supervisor.begin_stop()
    stopping = asyncio.create_task(machine.supervisor.finish_stop(60.0))
    await asyncio.sleep(0)
    stopping.cancel()
    with pytest.raises(asyncio.CancelledError):
        await stopping
    assert [process.code for process in machine.launched] == [-9, -9]
