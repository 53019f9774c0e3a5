"""Place the processes of a run and their addresses: the launch specs of a unit, completed for its machine."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from pathlib import PurePath, PurePosixPath

from attrs import define, evolve

from omni_core.config.addresses import join_address
from omni_core.config.placement import PlannedProcess, parse_bytes
from omni_core.machines.launcher import Grant, Launcher, Need, RunMachine
from omni_core.processes.process import Launch, SupervisedProcess
from omni_core.protocol.specs import ProcessSpec, RelaySpec, StageSpec, UnitSpec


def endpoint_of(run: str, process: str) -> str:
    """The endpoint of a process of a run."""
    return f"{run}/{process}"


def needs(planned: Sequence[PlannedProcess]) -> list[Need]:
    """Return the need of each unit of a plan; one for each host of a unit on several."""
    places: dict[str, list[PlannedProcess]] = {}
    for process in planned:
        places.setdefault(process.place, []).append(process)
    return [_need(place, processes) for place, processes in places.items()]


def _need(place: str, processes: list[PlannedProcess]) -> Need:
    stages, count = processes[0].stages, len(processes)
    cpus = [stage.cpus for stage in stages if stage.cpus is not None]
    memory = [parse_bytes(stage.memory) for stage in stages if stage.memory is not None]
    return Need(
        place,
        tuple(stage.name for stage in stages),
        count,
        tuple(process.gpu for process in processes if process.gpu is not None),
        processes[0].host,
        sum(cpus) * count if cpus else None,
        sum(memory) * count if memory else None,
        stages[0].labels,
    )


@define
class _Place:
    """The place of a process: its machine and, from its launch on, itself."""

    machine: RunMachine
    process: SupervisedProcess | None = None


class Placing:
    """Places the units of a run, and knows where each of its processes is.

    Args:
        before_launch: called before processes are started; what it raises is the reason that they are not.
        run: the endpoint of the coordinator.
        address: that by which other machines reach it, if there may be any.
        units: those of the start; further ones are added. Their order numbers their sockets.
    """

    def __init__(
        self,
        launcher: Launcher,
        run: str,
        units: Sequence[UnitSpec],
        address: str = "",
        before_launch: Callable[[], None] = lambda: None,
    ) -> None:
        self._launcher = launcher
        self._before_launch = before_launch
        self._run = run
        self._coordinator = address
        self._next_number = count()
        self._numbers: dict[str, int] = {}
        self._places: dict[str, _Place] = {}
        for unit in units:
            self.add(unit)

    def add(self, unit: UnitSpec) -> None:
        """Number the processes of a unit that is to be placed."""
        for process in unit.processes:
            self._numbers[process.endpoint] = next(self._next_number)

    def remove(self, unit: UnitSpec) -> None:
        """Forget a unit that has ended for good."""
        for process in unit.processes:
            del self._numbers[process.endpoint]
            self._places.pop(process.endpoint, None)

    async def place(self, unit: UnitSpec, number: int) -> tuple[list[ProcessSpec], Launch]:
        """Return the specs for the ``number``-th launch of a unit, and what starts them on the machine that it got.

        Raises:
            StartupError: it has none now.
        """
        self._before_launch()
        found = {place: await self._launcher.place(place) for place in unit.places}
        grants = [found[process.place or unit.name] for process in unit.processes]
        for process, grant in zip(unit.processes, grants, strict=True):
            self._places[process.endpoint] = _Place(grant.machine)
        specs = [self._placed(process, grant) for process, grant in zip(unit.processes, grants, strict=True)]
        first, meeting = grants[0].machine, ""
        if len({grant.machine.name for grant in grants}) > 1:
            meeting = join_address(first.host, await first.free_port())
        return with_rendezvous(specs, number, meeting), self._launch

    def waits_for(self, unit: UnitSpec) -> str:
        """Return what a unit that has no place waits for."""
        return " and ".join(filter(None, map(self._launcher.waits_for, unit.places)))

    def machine(self, endpoint: str) -> int:
        """Return a number of the machine of a process: 0 for the runner's."""
        here = self._launcher.here.name
        others = dict.fromkeys(each.machine.name for each in self._places.values() if each.machine.name != here)
        return [here, *others].index(self._places[endpoint].machine.name)

    def address(self, endpoint: str, of: str | None = None) -> str:
        """The address of a process, as the process at the endpoint ``of`` reaches it (``None``: the runner); empty: not known yet."""
        return self._address(endpoint, self._launcher.here if of is None else self._places[of].machine)

    def _address(self, endpoint: str, seen_from: RunMachine) -> str:
        place = self._places.get(endpoint)
        if place is None:
            return ""
        if place.machine.name == seen_from.name:
            return f"ipc://{place.machine.directory}/{self._numbers[endpoint]}.sock"
        return place.process.address if place.process is not None and place.process.running else ""

    def _placed(self, process: ProcessSpec, grant: Grant) -> ProcessSpec:
        machine = grant.machine
        found = {endpoint: self._address(endpoint, machine) for endpoint in self._numbers}
        addresses = {endpoint: address for endpoint, address in found.items() if address}
        is_near = machine.name == self._launcher.here.name
        addresses[self._run] = coordinator_address(self._launcher.here) if is_near else self._coordinator
        return evolve(
            process,
            stages=[_on_device(stage, grant) for stage in process.stages],
            addresses=addresses,
            relays=_relays(process.relays, grant),
            spare_relays=_relays(process.spare_relays, grant),
            own_env={**process.own_env, **grant.environment},
        )

    def _launch(self, spec: ProcessSpec, on_exit: Callable[[SupervisedProcess], None]) -> SupervisedProcess:
        place = self._places[spec.endpoint]
        place.process = place.machine.start(spec, on_exit)
        return place.process


def coordinator_address(here: RunMachine) -> str:
    """The address of the coordinator on its own machine."""
    return f"ipc://{here.directory}/coordinator.sock"


def _relays(specs: dict[str, RelaySpec], grant: Grant) -> dict[str, RelaySpec]:
    """The relays' specs with the options that depend on the machine."""
    machine = grant.machine
    place = {"namespace": PurePath(machine.directory).name, "directory": machine.directory, "host": machine.host}
    return {
        name: RelaySpec(spec.target, spec.options | place | {"device": _device(spec.options["device"], grant)})
        for name, spec in specs.items()
    }


def _on_device(stage: StageSpec, grant: Grant) -> StageSpec:
    if stage.gpu is None:
        return stage
    device = _device(stage.injected["device"], grant)
    return evolve(stage, gpu=grant.devices.get(stage.gpu, stage.gpu), injected={**stage.injected, "device": device})


def _device(device: str, grant: Grant) -> str:
    """A device of the pipeline, such as ``cuda:2``, as a process knows it."""
    kind, _, number = device.partition(":")
    return f"{kind}:{grant.devices.get(int(number), number)}" if number.isdecimal() else device


def with_rendezvous(processes: list[ProcessSpec], number: int, address: str = "") -> list[ProcessSpec]:
    """Return the ranks' specs with the address where they meet. Without one, it is a file in the run's private folder there, new for the
    ``number``-th launch: not a TCP store, which any process can reach.
    """
    if len(processes) == 1:
        return processes
    first = processes[0]
    socket = PurePosixPath(first.addresses.get(first.endpoint, first.endpoint).removeprefix("ipc://"))
    address = address or f"file://{socket.with_suffix(f'.ranks{number}')}"

    def placed(stage: StageSpec) -> StageSpec:
        return evolve(stage, injected={**stage.injected, "tp_rendezvous": address})

    return [evolve(process, stages=[placed(stage) for stage in process.stages]) for process in processes]
