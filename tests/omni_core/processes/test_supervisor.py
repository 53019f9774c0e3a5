"""The supervisor carries out its unit's decisions; processes are replaced by objects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

import pytest

from omni_core.config.schema import RestartConfig
from omni_core.errors import StartupError
from omni_core.machines.placing import with_rendezvous
from omni_core.processes.actions import UnitState
from omni_core.processes.process import Launch, SupervisedProcess
from omni_core.processes.supervisor import Supervisor
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
        self.has_place: asyncio.Event | None = None
        self.no_place = ""
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
        self.supervisor = Supervisor(spec, restart or RestartConfig(limit=2, backoff=0.01), self, self)

    async def start(self) -> None:
        """Launch the unit; its place is there at once."""
        self.supervisor.launch()
        await asyncio.sleep(0)

    async def place(self, unit: UnitSpec, number: int) -> tuple[list[ProcessSpec], Launch]:
        if self.has_place is not None:
            await self.has_place.wait()
        if self.no_place:
            raise StartupError(self.no_place)
        return with_rendezvous(unit.processes, number), self.launch

    def waits_for(self, unit: str) -> str:
        return "host 'b'" if self.has_place is not None and not self.has_place.is_set() else ""

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
        asyncio.get_running_loop().call_soon(supervisor.settled, supervisor.life.last_death)

    def unit_is_ready(self, supervisor: Supervisor) -> None:
        self.heard.append("is ready")

    def unit_is_back(self, supervisor: Supervisor) -> None:
        self.heard.append("is back")

    def unit_failed(self, supervisor: Supervisor, reason: str) -> None:
        self.heard.append("given up")

    def ping(self, process: ProcessSpec) -> None:
        self.heard.append(f"ping {process.name}")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.002)


async def test_launch_death_restart_and_stop() -> None:
    machine = Machine()
    unit = machine.supervisor
    await machine.start()
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
    await machine.start()
    machine.supervisor.process_is_ready("p", 99)
    assert machine.supervisor.life.state is UnitState.STARTING
    machine.supervisor.process_is_ready("p", 100)
    assert machine.supervisor.life.state is UnitState.READY


async def test_a_process_elsewhere_may_be_ready_before_its_pid_is_known() -> None:
    machine = Machine(pids=False)
    await machine.start()
    machine.supervisor.process_is_ready("p", 5)
    machine.supervisor.process_is_ready("p", 6)
    assert machine.supervisor.life.state is UnitState.STARTING
    machine.launched[0].has_pid(6)
    await asyncio.sleep(0)
    assert machine.supervisor.life.state is UnitState.READY


async def test_a_dead_rank_ends_the_others() -> None:
    machine = Machine("r0", "r1")
    await machine.start()
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
    await machine.start()
    machine.launched[0].keep("my last line")
    machine.launched[0].end(3)
    with pytest.raises(StartupError, match=r"(?s)'s' could not be started: .*ended with code 3.*my last line"):
        await machine.supervisor.started
    assert machine.supervisor.life.state is UnitState.FAILED

    machine = Machine()
    await machine.start()
    machine.supervisor.start_failed(ErrorInfo("s", "ValueError", "bad"))
    with pytest.raises(StartupError, match="'s' could not be started: ValueError: bad"):
        await machine.supervisor.started

    machine = Machine("r0", "r1")
    machine.problem = OSError("no more processes")
    await machine.start()
    with pytest.raises(StartupError, match="could not be started: no more processes"):
        await machine.supervisor.started


async def test_too_many_deaths_fail_the_unit() -> None:
    machine = Machine()
    unit = machine.supervisor
    await machine.start()
    for number in range(3):
        unit.process_is_ready("p", 100 + number)
        machine.launched[number].end(1)
        await until(lambda number=number: len(machine.launched) > number + 1 or unit.life.state is UnitState.FAILED)  # type: ignore[misc]
    assert unit.life.state is UnitState.FAILED
    assert machine.heard[-3:] == ["died", "failed", "given up"]


async def test_pings() -> None:
    machine = Machine()
    await machine.start()
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
    await machine.start()
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


async def test_a_unit_without_a_place_fails_at_its_startup_timeout_and_says_what_it_waits_for() -> None:
    machine = Machine()
    machine.has_place = asyncio.Event()
    machine.supervisor.life.startup_timeout = 0.05
    await machine.start()
    with pytest.raises(StartupError, match=r"not ready within its startup_timeout of 0.05 s; it waits for host 'b'"):
        await machine.supervisor.started
    assert machine.launched == []


async def test_a_restart_waits_for_a_place_and_asks_again_after_the_back_off() -> None:
    machine = Machine()
    unit = machine.supervisor
    await machine.start()
    unit.process_is_ready("p", 100)
    machine.no_place = "no host is there"
    machine.launched[0].end(-9)
    await until(lambda: "no host is there" in unit.life.reason)
    assert unit.life.state is UnitState.RESTARTING
    machine.no_place = ""
    await until(lambda: len(machine.launched) == 2)
    unit.process_is_ready("p", 101)
    assert unit.life.state is UnitState.READY


async def test_a_restart_that_finds_no_place_in_time_says_what_it_waited_for_and_asks_again(
    caplog: pytest.LogCaptureFixture,
) -> None:
    machine = Machine()
    unit = machine.supervisor
    await machine.start()
    unit.process_is_ready("p", 100)
    machine.has_place = asyncio.Event()
    unit.life.startup_timeout = 0.05
    machine.launched[0].end(-9)
    await until(lambda: unit.life.restarts == 2)
    assert "startup_timeout" in unit.life.reason
    assert "not ready within its startup_timeout of 0.05 s; it waits for host 'b'" in caplog.text
    machine.has_place.set()
    await until(lambda: len(machine.launched) == 2)


async def test_a_restart_that_is_given_up_before_it_has_begun_is_tried_again() -> None:
    """A late message of its predecessor may end it in the same turn of the event loop."""
    machine = Machine()
    unit = machine.supervisor
    await machine.start()
    unit.process_is_ready("p", 100)
    machine.launched[0].end(-9)
    while unit.life.state is not UnitState.RESTARTING:
        await asyncio.sleep(0)
    unit._on_timer()
    unit.start_failed(ErrorInfo("s", "ValueError", "no weights", ""))
    await until(lambda: len(machine.launched) == 2)


async def test_a_launcher_that_goes_on_when_it_is_cancelled_leaves_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    machine = Machine(restart=RestartConfig(limit=100, backoff=0.01))
    unit = machine.supervisor
    await machine.start()
    unit.process_is_ready("p", 100)

    asked: list[int] = []

    async def place(wanted: UnitSpec, number: int) -> tuple[list[ProcessSpec], Launch]:
        asked.append(number)
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(60)
        return wanted.processes, machine.launch

    monkeypatch.setattr(machine, "place", place)
    unit.life.startup_timeout = 0.02
    machine.launched[0].end(-9)
    await until(lambda: len(machine.launched) > 1 and machine.launched[1].code == -9)
    await until(lambda: len(asked) > 1)  # a start that is cancelled before it has begun asks for no place
    unit.begin_stop()
    await unit.finish_stop(1.0)
    await until(lambda: len(machine.launched) > 2 and {each.code for each in machine.launched[1:]} == {-9})


async def test_a_unit_that_waits_for_a_place_can_be_stopped() -> None:
    machine = Machine()
    machine.has_place = asyncio.Event()
    await machine.start()
    machine.supervisor.begin_stop()
    await asyncio.wait_for(machine.supervisor.finish_stop(1.0), 1)
    assert machine.launched == []


async def test_an_exception_of_a_launcher_is_a_failed_start() -> None:
    machine = Machine()

    async def place(unit: UnitSpec, number: int) -> tuple[list[ProcessSpec], Launch]:
        raise KeyError("unit")

    machine.place = place  # type: ignore[method-assign]
    await machine.start()
    with pytest.raises(StartupError, match="could not be started: KeyError: 'unit'"):
        await machine.supervisor.started


@pytest.mark.parametrize("is_dead", [False, True])
async def test_a_unit_that_was_cut_off_is_replaced_unless_it_has_died(
    is_dead: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_core.processes.supervisor.CUT_SECONDS", 0.05)
    machine = Machine()
    unit = machine.supervisor
    await machine.start()
    unit.process_is_ready("p", 100)
    unit.cut("tcp://b:1: the connection has ended")
    if is_dead:
        machine.launched[0].end(-11)
    await until(lambda: len(machine.launched) == 2)
    assert ("SIGSEGV" if is_dead else "a connection to its process was cut: tcp://b:1") in unit.life.reason
    unit.process_is_ready("p", 101)
    await asyncio.sleep(0.1)
    assert unit.life.restarts == 1
    assert unit.life.serves


async def test_a_connection_to_a_process_that_is_gone_or_not_ready_does_not_count_against_the_next(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("omni_core.processes.supervisor.CUT_SECONDS", 0.05)
    machine = Machine()
    unit = machine.supervisor
    await machine.start()
    unit.process_is_ready("p", 100)
    machine.launched[0].end(-9)
    await until(lambda: len(machine.launched) == 2)
    unit.cut("tcp://b:1: no process answers there")
    unit.process_is_ready("p", 101)
    await asyncio.sleep(0.1)
    assert unit.life.restarts == 1
    assert unit.life.serves
