"""The simulation of a pipeline under a load: the coordinator's and the schedulers' own decisions, in simulated time."""

from __future__ import annotations

import gc
import inspect
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import count
from typing import Any

from attrs import field, frozen

from omni_core.config.placement import plan as planned_processes
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.coordinator.actions import AskWaiting, Ended, Start, Withdraw
from omni_core.coordinator.machine import RequestMachine
from omni_core.coordinator.replicas import BALANCES, ReplicaChoice, ReplicatedGroup
from omni_core.coordinator.requests import TrackedRequest
from omni_core.errors import ConfigError, OverloadedError
from omni_core.launch.running import machine_of
from omni_core.processes.unit import Unit, UnitState
from omni_core.protocol.messages import OmniRequest
from omni_core.references import load
from omni_planner.failures import Failure, check_names
from omni_planner.machine import NEVER, Clock, Process
from omni_planner.profile import CLIENT, PipelineProfile
from omni_planner.replica import Loop, OwnThread, Replica
from omni_planner.requests import Arrival, Flight
from omni_planner.stages import (
    DONE,
    PAYLOAD,
    EngineStage,
    FunctionStage,
    Output,
    Settings,
    SimulatedStage,
    StreamStage,
    VocoderStage,
)
from omni_planner.summary import Summary, played
from omni_planner.units import Restarts, SimulatedUnit, sent

Letter = tuple[Flight, str, str, int]
"""A message under way: of what request, what, to which stage, and the frames of sound in it."""


@frozen
class Outcome:
    """The result of a simulation.

    Attributes:
        flights: the requests, in the order of their arrival. seconds: until the last one ended.
        busy: processors of each machine that worked, on average. stages: share of the time that each replica of a stage
            was making a turn, by ``stage`` or ``stage.replica``. devices: share of the time that each device computed, by ``gpu`` or
            ``host:gpu``. messages: share of the time that the client's process sent and received. deaths: of units.
    """

    flights: list[Flight]
    seconds: float
    busy: list[float]
    stages: dict[str, float] = field(factory=dict)
    devices: dict[str, float] = field(factory=dict)
    messages: float = 0.0
    deaths: int = 0


class _Simulation:
    def __init__(
        self,
        config: PipelineConfig,
        profile: PipelineProfile,
        cores: int | None,
        in_flight: int | None,
        pause: float | None,
        failures: Sequence[Failure] = (),
    ) -> None:
        processes = planned_processes(config)
        self._hosts = [None, *sorted({each.host for each in processes if each.host is not None})]
        places = sorted({(each.host or "", gpu) for each in processes for gpu in each.gpus.values()})
        self.clock = Clock([cores or profile.hardware.cores] * len(self._hosts), len(places), profile.hardware.tick)
        self._devices = dict(zip(places, self.clock.devices, strict=True))
        self._config, self._profile, self._in_flight, self._pause = config, profile, in_flight, pause
        ends = (CLIENT, *(each.name for each in config.stages))
        self._transfers = {(name, kind): profile.transfer(name, kind) for name in ends for kind in profile.kinds}
        self._units: list[SimulatedUnit] = []
        self._serving: dict[tuple[str, int], tuple[SimulatedUnit, Replica]] = {}
        self._computed: dict[tuple[str, int], float] = {}
        groups: dict[str, ReplicatedGroup] = {}
        for process in processes:
            if process.rank:
                continue
            names = [each.name for each in process.stages]
            life = Unit(
                process.name, [process.name], config.restart, max(each.startup_timeout for each in process.stages)
            )
            unit = SimulatedUnit(process.name, process.replica, process.host, process.group, process.stages, life)
            unit.places = [each for each in processes if (each.group, each.replica) == (process.group, process.replica)]
            self._units.append(unit)
            self._build(unit)
            first = process.stages[0]
            if first.replicas > 1:
                group = ReplicatedGroup(process.group, names, first.affinity_key, BALANCES.get(first.balance))
                groups.setdefault(process.group, group)
        choice = ReplicaChoice(list(groups.values()), self._available)
        self._client = self._loop(None)
        terminals = [stage.name for stage in config.stages if stage.terminal]
        self._flights: dict[str, Flight] = {}
        self.machine: RequestMachine = machine_of(config)(
            terminal_stages=terminals,
            terminal_stages_fn=lambda request: [
                each for each in terminals if each in self._flights[request.inputs].sample
            ],
            place=choice.place,
            left=choice.left,
            max_in_flight=config.max_in_flight,
            retries=config.retries,
        )
        self._numbers = count()
        self._closed: deque[Arrival] = deque()
        self.flights: list[Flight] = []
        self.restarts: Restarts | None = None
        self._timer = NEVER
        if failures:
            check_names(
                failures, [each.name for each in self._units], [each for each in self._hosts if each is not None]
            )
            for each in self._units:
                if any(each.name == failure.name or each.host == failure.name for failure in failures):
                    profile.start_seconds([stage.name for stage in each.stages])
            self.restarts = Restarts(
                self.clock,
                self._units,
                self.machine,
                self._flights,
                self._perform,
                self._build,
                self._end_unit,
                self._start_unit,
            )
            self.restarts.begin(failures)

    # --- units ---------------------------------------------------------------------------------------------------------
    def _loop(self, host: str | None) -> Loop:
        if self._profile.is_estimate:
            return OwnThread(self.clock)
        return Process(self.clock.machines[self._hosts.index(host)])

    def _build(self, unit: SimulatedUnit) -> None:
        """Make the replicas of a unit."""
        unit.loop = self._loop(unit.host)
        send = self._send_together if self._profile.is_estimate else self._send
        for stage in unit.stages:
            made = self._stage(stage)
            if made is None:
                continue  # no measured request came by; one that does is an error
            devices = [
                self._devices[each.host or "", each.gpus[stage.name]] for each in unit.places if stage.name in each.gpus
            ]
            replica = Replica(made, self.clock, devices, unit.loop, send)
            unit.replicas[stage.name] = replica
            self._serving[stage.name, unit.number] = unit, replica

    def _stage(self, stage: StageConfig) -> SimulatedStage | None:
        measured = self._profile.stages.get(stage.name)
        if measured is None:
            return None
        costing, settings = measured.costing(stage), {**settings_of(stage), **measured.settings(stage)}
        if measured.kind == "function":
            return FunctionStage(stage.name, measured, costing)
        if measured.kind == "stream":
            return StreamStage(stage.name, measured, costing)
        if measured.kind == "engine":
            heard = _output_seconds(stage) if settings.get("policy") else None
            return EngineStage(stage.name, measured, costing, settings, heard)
        missing = [name for name in ("initial_chunk", "chunk") if name not in settings]
        if missing:
            raise ConfigError(
                f"stages[{stage.name}].factory_args: its chunks are not known; set {' and '.join(missing)}"
            )
        return VocoderStage(stage.name, measured, costing, settings)

    def _end_unit(self, unit: SimulatedUnit) -> None:
        for name, replica in unit.replicas.items():
            self._computed[name, unit.number] = self._computed.get((name, unit.number), 0.0) + replica.computing
            replica.kill()
        unit.replicas.clear()
        unit.loop.kill()

    def _start_unit(self, unit: SimulatedUnit, then: Callable[[], None]) -> None:
        seconds = self._profile.start_seconds([each.name for each in unit.stages])
        unit.loop = self._loop(unit.host)
        unit.loop.do(seconds, then)

    def _available(self, group: str) -> dict[int, int]:
        """Return the replicas that may be chosen, as the runner does: those that serve, else those that will, else all."""
        units = [each for each in self._units if each.group == group]
        if self.restarts is not None:
            ready = [each for each in units if each.life.state is UnitState.READY]
            units = ready or [each for each in units if each.life.state is not UnitState.FAILED] or units
        return {each.number: each.number for each in units}

    # --- requests ----------------------------------------------------------------------------------------------------
    def begin(self, arrivals: Sequence[Arrival]) -> None:
        self._closed = deque(each for each in arrivals if each.seconds is None)
        for each in arrivals:
            if each.seconds is not None:
                self.clock.after(each.seconds, partial(self._submit, each))
        begun = min(self._in_flight or 1, len(self._closed))
        cycle = (self._pause or 0.0) + max(map(self._spoken, self._closed), default=0.0)
        for number in range(begun):
            if self._pause is None:
                self._submit(self._closed.popleft())
            else:  # conversations are not in step
                self.clock.after(cycle * number / begun, self._go_on)

    def _spoken(self, arrival: Arrival) -> float:
        """Return the seconds of sound that a request is answered with."""
        chunks = [each for visit in arrival.sample.values() for each in visit.chunks.items() if each[0] != CLIENT]
        return sum(self._profile.stages[name].frame_seconds * frames for name, frames in chunks)

    def _go_on(self) -> None:
        if self._closed:
            self._submit(self._closed.popleft())

    def _submit(self, arrival: Arrival) -> None:
        flight = Flight(str(next(self._numbers)), arrival, self.clock.now)
        self.flights.append(flight)
        self._flights[flight.name] = flight
        request = OmniRequest(flight.name, stream=True, timeout=self._config.request_timeout)
        try:
            _, actions = self.machine.submit(request, flight.name, wants_partial=True, now=self.clock.now)
        except OverloadedError:
            self._refused(flight)
        else:
            self._perform(actions)

    def _refused(self, flight: Flight) -> None:
        flight.refused, flight.ended = True, self.clock.now
        if flight.arrival.seconds is None:  # its client tries something else a second later
            self.clock.after(max(1.0, self._pause or 0.0), self._go_on)

    def _perform(self, actions: Iterable[Any]) -> None:
        """Carry out what the machine says, and set its timer."""
        for action in actions:
            if isinstance(action, Start):
                self._start(action.request)
            elif isinstance(action, Ended):
                self._ended(action.request)
            elif isinstance(action, Withdraw):
                self._withdraw(action.attempt_id)
            elif isinstance(action, AskWaiting):
                self._perform(self.machine.asked(action.attempt_id, 0, self.clock.now))
        due = self.machine.next_timer()
        if due is not None and due < self._timer:
            self._timer = due
            self.clock.after(due - self.clock.now, self._ring)

    def _ring(self) -> None:
        self._timer = NEVER
        self._perform(self.machine.clock(self.clock.now + 1e-9))

    def _start(self, tracked: TrackedRequest) -> None:
        flight = self._flights[tracked.request_id]
        if tracked.attempts > 1:
            flight.attempts = tracked.attempts
            flight = Flight(
                tracked.attempt_id, flight.arrival, flight.arrived, events=flight.events, sound=flight.sound
            )
            self._flights[flight.name] = flight
        flight.placement = tracked.request.placement
        entry = next(name for name, visit in flight.sample.items() if CLIENT in visit.sources)
        message, waking = self._transfers[CLIENT, flight.arrival.kind]
        self._client.do(message, partial(self._receive, flight, PAYLOAD, CLIENT, entry), waking)

    def _withdraw(self, attempt: str) -> None:
        flight = self._flights[attempt]
        flight.is_withdrawn = True
        for name in flight.sample:
            _, replica = self._serving.get((name, flight.placement.get(name, 0)), (None, None))
            if replica is not None:
                replica.drop(flight)

    def _ended(self, tracked: TrackedRequest) -> None:
        flight = self._flights[tracked.request_id]
        if isinstance(tracked.error, OverloadedError):
            self._refused(flight)
            return
        flight.ended, flight.failed = self.clock.now, tracked.error is not None
        if self._pause is None:
            self._go_on()
        else:
            self.clock.after(max(0.0, played(flight.sound) - self.clock.now) + self._pause, self._go_on)

    # --- messages ----------------------------------------------------------------------------------------------------
    def _at(self, flight: Flight, stage: str) -> tuple[SimulatedUnit, Replica]:
        found = self._serving.get((stage, flight.placement.get(stage, 0)))
        if found is None:
            raise ConfigError(
                f"the profile has no stage {stage!r} of this pipeline; calibrate with requests that reach it"
            )
        return found

    def _send(self, sender: Replica, outputs: list[Output]) -> None:
        source, loop = sender.stage.name, sender.loop
        for flight, what, targets, frames in outputs:
            for target in targets:
                if target != CLIENT:
                    unit, replica = self._at(flight, target)
                    if unit.loop is loop:
                        if self.restarts is not None:
                            flight.reached.add(target)
                        replica.deliver(flight, what, source)
                        continue
                message, waking = self._transfers[source, flight.arrival.kind]
                # The end of a stream is no transfer of its own in a profile.
                seconds = 0.0 if what == DONE else message
                loop.do(seconds, partial(self._receive, flight, what, source, target, frames), waking)

    def _receive(self, flight: Flight, what: str, source: str, target: str, frames: int = 0) -> None:
        if target == CLIENT:
            loop, then = self._client, partial(self._heard, flight, what, source, frames)
        else:
            unit, replica = self._at(flight, target)
            if self.restarts is not None:
                send = partial(self._receive, flight, what, source, target)
                if flight.is_withdrawn or self.restarts.must_wait(unit, flight, target, send):
                    return
                sent(flight, what, source, target)
            loop, then = unit.loop, partial(replica.deliver, flight, what, source)
        delay = self._profile.delay(source, flight.sample, what == PAYLOAD)
        message, waking = self._transfers[target, flight.arrival.kind]
        self.clock.after(delay, partial(loop.do, 0.0 if what == DONE else message, then, waking))

    def _send_together(self, sender: Replica, outputs: list[Output]) -> None:
        """Send what goes to one process in one event: the last message arrives when it would, the others with it."""
        groups = dict[tuple[SimulatedUnit | None, Loop], list[Letter]]()
        for flight, what, targets, frames in outputs:
            for target in targets:
                unit = None if target == CLIENT else self._at(flight, target)[0]
                place = unit, self._client if unit is None else unit.loop
                groups.setdefault(place, []).append((flight, what, target, frames))
        for (unit, loop), letters in groups.items():
            if loop is sender.loop:
                self._arrived(unit, loop, sender.stage.name, letters)
            else:
                cost = sum(self._cost(what) for _, what, _, _ in letters)
                sender.loop.do(cost, partial(self._post, unit, sender.stage.name, letters))

    def _post(self, unit: SimulatedUnit | None, source: str, letters: list[Letter]) -> None:
        """Let messages go to a process that is another one by now if the first has died."""
        if unit is not None and self.restarts is not None:
            kept = []
            for letter in letters:
                flight, what, target, _ = letter
                again = partial(self._post, unit, source, [letter])
                if not flight.is_withdrawn and not self.restarts.must_wait(unit, flight, target, again):
                    sent(flight, what, source, target)
                    kept.append(letter)
            letters = kept
        if letters:
            loop = self._client if unit is None else unit.loop
            cost = sum(self._cost(what) for _, what, _, _ in letters)
            delay = max(self._profile.delay(source, flight.sample, what == PAYLOAD) for flight, what, _, _ in letters)
            self.clock.after(delay, partial(loop.do, cost, partial(self._arrived, unit, loop, source, letters)))

    def _arrived(self, unit: SimulatedUnit | None, loop: Loop, source: str, letters: list[Letter]) -> None:
        woken: dict[Replica, None] = {}
        for flight, what, target, frames in letters:
            if unit is None:
                self._heard(flight, what, source, frames)
            elif unit.loop is loop:
                flight.reached.add(target)
                replica = unit.replicas[target]
                replica.put(flight, what, source)
                woken[replica] = None
        for replica in woken:
            replica.wake()

    def _cost(self, what: str) -> float:
        """Return the processor seconds of a message at one end. The end of a stream is no transfer of its own in a profile."""
        return 0.0 if what == DONE else self._profile.message

    def _heard(self, flight: Flight, what: str, stage: str, frames: int) -> None:
        tracked = self.machine.attempt(flight.name)
        if tracked is None:
            return  # it has failed, or runs again
        final = what == PAYLOAD
        seconds = frames * self._profile.stages[stage].frame_seconds
        if seconds:  # a profile of before knows no seconds of frames
            flight.sound.append((self.clock.now, seconds))
        flight.events.append((self.clock.now, stage, final))
        tracked.was_read = True
        self._perform(self.machine.result(flight.name, stage, None, final=final, now=self.clock.now))

    def outcome(self) -> Outcome:
        seconds = max((each.ended or 0.0 for each in self.flights), default=0.0)
        lasted = seconds or 1.0
        shares = {}
        for (name, number), (unit, replica) in self._serving.items():
            key = name if sum(each == name for each, _ in self._serving) == 1 else f"{name}.{number}"
            before = self._computed.get((name, number), 0.0)
            shares[key] = (before + (replica.computing if unit.replicas else 0.0)) / lasted
        hosts = [each.busy / lasted for each in self.clock.machines]
        devices = {f"{host}:{gpu}".lstrip(":"): each.busy / lasted for (host, gpu), each in self._devices.items()}
        deaths = self.restarts.deaths if self.restarts is not None else 0
        return Outcome(self.flights, seconds, hosts, shares, devices, self._client.worked / lasted, deaths)


def config_of(config: PipelineConfig, stage: str) -> StageConfig:
    """Return the config of a stage."""
    return next(each for each in config.stages if each.name == stage)


def _output_seconds(stage: StageConfig) -> float | None:
    """Return ``output_seconds`` of the class of a stage's model runner, as far as its reference names one."""
    if stage.model_runner is None or ":" not in stage.model_runner:
        return None
    module, _, names = stage.model_runner.partition(":")
    found: float | None = getattr(load(f"{module}:{names.partition('.')[0]}"), "output_seconds", None)
    return found


def settings_of(stage: StageConfig) -> Settings:
    """Return a stage's ``factory_args`` over its factory's defaults."""
    defaults: Settings = {}
    if stage.factory is not None:
        parameters = inspect.signature(load(stage.factory)).parameters.values()
        defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return {**defaults, **stage.factory_args}


def simulate(
    config: PipelineConfig,
    profile: PipelineProfile,
    arrivals: Sequence[Arrival],
    *,
    in_flight: int | None = None,
    cores: int | None = None,
    pause: float | None = None,
    failures: Sequence[Failure] = (),
) -> Outcome:
    """Run a load against a pipeline in simulated time.

    Args:
        config: the placement to try: its processes, replicas, hosts and engine settings may differ from the profile's.
        arrivals: the load. in_flight: requests at once of its closed loop; or with ``pause`` conversations, whose next request comes so
            many seconds after the last one's sound has been played.
        cores: of each machine; by default as many as the profile's has. failures: deaths of units and losses of hosts.

    Raises:
        ConfigError: a request visits a stage that the profile has not measured; or a failure is of something that is not there, or the
            profile does not know how long it takes to start again.
    """
    simulation = _Simulation(config, profile, cores, in_flight, pause, failures)
    simulation.begin(arrivals)
    collects = gc.isenabled()
    gc.disable()  # what a simulation makes is in no cycle; looking for them takes a quarter of its time
    try:
        simulation.clock.run()
    finally:
        if collects:
            gc.enable()
    return simulation.outcome()


def processor_use(
    config: PipelineConfig, profile: PipelineProfile, arrivals: Sequence[Arrival], in_flight: int
) -> dict[str, tuple[int, float]]:
    """Simulate a closed loop; return what each stage's process (and :data:`CLIENT`) uses: how often the thread that sends and receives
    woke, and the processor seconds of the others. Stages have processes of their own.
    """
    simulation = _Simulation(config, profile, None, in_flight, None)
    simulation.begin(arrivals)
    simulation.clock.run()
    loops: dict[str, tuple[Loop, float]] = {CLIENT: (simulation._client, 0.0)}
    for unit in simulation._units:
        for name, replica in unit.replicas.items():
            loops[name] = unit.loop, replica.worked
    return {name: (loop.wakes, worked) for name, (loop, worked) in loops.items() if isinstance(loop, Process)}


def summarise(outcome: Outcome) -> Summary:
    """Return the figures of a simulation.

    Raises:
        ConfigError: requests wait for ever, for messages that none of the measured ones had.
    """
    stuck = sum(each.ended is None and not each.refused for each in outcome.flights)
    if stuck:
        raise ConfigError(
            f"{stuck} of {len(outcome.flights)} simulated requests never end: the profile is not of this pipeline; calibrate it anew"
        )
    ended = [each for each in outcome.flights if each.events and not each.failed]
    events = [[(when - each.arrived, stage, final) for when, stage, final in each.events] for each in ended]
    sound = [each.sound for each in ended if each.sound]
    refused, failed = (sum(getattr(each, name) for each in outcome.flights) for name in ("refused", "failed"))
    retried = sum(each.attempts > 1 and not each.failed for each in outcome.flights)
    return Summary.of(events, outcome.seconds or 1.0, refused, sound, failed, retried)
