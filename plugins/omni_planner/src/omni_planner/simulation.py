"""A simulated pipeline: the coordinator's own decisions for the requests of a load, in simulated time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count
from typing import Any

from attrs import evolve, field, frozen

from omni_core.config.placement import plan as planned_processes
from omni_core.config.schema import PipelineConfig
from omni_core.coordinator.actions import AskWaiting, Ended, Start, Wake, Withdraw
from omni_core.coordinator.replicas import ReplicaChoice, ReplicatedGroup
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.coordinator.requests import TrackedRequest
from omni_core.errors import ConfigError, OverloadedError
from omni_core.launch.prepare import replicated_group
from omni_core.launch.running import machine_of
from omni_core.plugins import PluginRegistry
from omni_core.processes.unit import Unit, UnitState
from omni_core.protocol.messages import OmniRequest
from omni_planner.building import simulated
from omni_planner.deliveries import Deliveries
from omni_planner.failures import Failure, check_names
from omni_planner.linux_cores import LinuxCores
from omni_planner.machine import NEVER, Clock, Cores, Process
from omni_planner.profile import CLIENT, PipelineProfile
from omni_planner.replica import Loop, OwnThread, Replica
from omni_planner.requests import Arrival, Flight, under_way
from omni_planner.stages import PAYLOAD
from omni_planner.summary import played
from omni_planner.units import Restarts, SimulatedUnit
from omni_planner.variation import slowness


@frozen
class Outcome:
    """The result of a simulation.

    Attributes:
        flights: the requests that count, in the order of their arrival. seconds: until the last one ended; where not all count, until
            the last one came that does. All shares are of them.
        busy: processors of each machine that worked, or whose turn waited for Python's lock, on average.
        stages: share of the time that each replica of a stage was making a turn, by ``stage`` or ``stage.replica``.
        devices: share of the time that each device computed, by ``gpu`` or ``host:gpu``.
        messages: share of the time that the client's process sent and received. deaths: of units.
        window: where not all requests count, seconds from the first one that does to the first one after them; else 0. kept_up:
            requests that ended in them, for each one that came. in_flight: requests in the pipeline at once, on average.
        processes: processor seconds of each process for messages and for turns, by its name (and :data:`CLIENT`), since its last start.
    """

    flights: list[Flight]
    seconds: float
    busy: list[float]
    stages: dict[str, float] = field(factory=dict)
    devices: dict[str, float] = field(factory=dict)
    messages: float = 0.0
    deaths: int = 0
    processes: dict[str, tuple[float, float]] = field(factory=dict)
    window: float = 0.0
    kept_up: float = 1.0
    in_flight: float = 0.0


class Simulation:
    """A pipeline, its machines, and the requests of a load.

    Attributes:
        clock: the simulated time. machine: the coordinator's. units: what starts and dies together. flights: the requests so far.
        restarts: of a simulation with failures.
    """

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
        hardware = profile.hardware
        kind = LinuxCores if hardware.system == "Linux" else Cores
        self.clock = Clock(
            [cores or hardware.cores] * len(self._hosts), len(places), hardware.tick, kind, slowness(profile.drift)
        )
        self._threads_apart = kind is LinuxCores
        self._devices = dict(zip(places, self.clock.devices, strict=True))
        self._config, self._profile, self._in_flight, self._pause = config, profile, in_flight, pause
        self._deliveries = Deliveries(self.clock, profile, self._loop(None), self._heard)
        self.units: list[SimulatedUnit] = []
        self._computed: dict[tuple[str, int], float] = {}
        groups: dict[str, ReplicatedGroup] = {}
        for process in processes:
            if process.rank:
                continue
            life = Unit(
                process.name, [process.name], config.restart, max(each.startup_timeout for each in process.stages)
            )
            unit = SimulatedUnit(process.name, process.replica, process.host, process.group, process.stages, life)
            unit.places = [each for each in processes if (each.group, each.replica) == (process.group, process.replica)]
            self.units.append(unit)
            self._build(unit)
            first = process.stages[0]
            if first.replicas > 1:
                alike = replicated_group(
                    process.group, [evolve(each, work_fn=None) for each in process.stages], PluginRegistry([])
                )
                groups.setdefault(process.group, evolve(alike, work=self._expected_work))
        choice = ReplicaChoice(list(groups.values()), self._available)
        terminals = [stage.name for stage in config.stages if stage.terminal]
        self._flights: dict[str, Flight] = {}
        self.machine: RequestMachine = machine_of(config)(
            terminal_stages=terminals,
            terminal_stages_fn=lambda request: self._flights[request.inputs].answering(terminals),
            place=choice.place,
            left=choice.left,
            max_in_flight=config.max_in_flight,
            retries=config.retries,
        )
        self._numbers = count()
        self._closed: deque[Arrival] = deque()
        self._coming: Iterator[tuple[float, int, Arrival]] = iter(())
        self._frame_seconds = {name: each.frame_seconds for name, each in profile.stages.items()}
        self.flights: list[Flight] = []
        self._counted = range(0)
        self._pending = 0
        self._until_then: Outcome | None = None
        self.restarts: Restarts | None = None
        self._timer = NEVER
        self._depth = self._going_on = 0
        if failures:
            check_names(
                failures, [each.name for each in self.units], [each for each in self._hosts if each is not None]
            )
            for each in self.units:
                if any(each.name == failure.name or each.host == failure.name for failure in failures):
                    profile.start_seconds([stage.name for stage in each.stages])
            self.restarts = Restarts(
                self.clock,
                self.units,
                self.machine,
                self._flights,
                self._perform,
                self._build,
                self._end_unit,
                self._start_unit,
            )
            self._deliveries.restarts = self.restarts
            self.restarts.begin(failures)

    # --- units ---------------------------------------------------------------------------------------------------------
    def _loop(self, host: str | None) -> Loop:
        if self._profile.is_estimate:
            return OwnThread(self.clock)
        return self._process(host)

    def _process(self, host: str | None) -> Process:
        return Process(self.clock.machines[self._hosts.index(host)])

    def _build(self, unit: SimulatedUnit) -> None:
        """Make the replicas of a unit."""
        unit.loop = self._loop(unit.host)
        deliveries = self._deliveries
        crowded = len({name for each in unit.places for name in each.gpus}) > 1  # several networks in one process
        send = deliveries.send_together if self._profile.is_estimate else deliveries.send
        for stage in unit.stages:
            made = simulated(stage, self._profile, unit.number)
            if made is None:
                continue  # no measured request came by; one that does is an error
            devices = [
                self._devices[each.host or "", each.gpus[stage.name]] for each in unit.places if stage.name in each.gpus
            ]
            shares = len(unit.stages) > 1
            has_thread = isinstance(unit.loop, Process) and (shares or self._threads_apart)
            thread = self._process(unit.host) if has_thread else None
            if isinstance(unit.loop, Process) and not shares:
                unit.loop.scheduler = thread
            replica = Replica(made, self.clock, devices, unit.loop, send, thread, shares, crowded)
            unit.replicas[stage.name] = replica
            self._deliveries.serving[stage.name, unit.number] = unit, replica

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
        units = [each for each in self.units if each.group == group]
        if self.restarts is not None:
            ready = [each for each in units if each.life.state is UnitState.READY]
            units = ready or [each for each in units if each.life.state is not UnitState.FAILED] or units
        return {each.number: each.number for each in units}

    # --- requests ----------------------------------------------------------------------------------------------------
    def _expected_work(self, request: OmniRequest) -> float:
        return self._flights[request.inputs].expected_work()

    def begin(self, arrivals: Sequence[Arrival], around: int = 0) -> None:
        """Let requests come. ``around``: see :func:`omni_planner.simulate.simulate`. Raises ValueError if none is left to count."""
        if around:
            self._counted = range(around, len(arrivals) - around)
            if not self._counted:
                raise ValueError(
                    f"of {len(arrivals)} requests none counts if {around} come before and {around} after those that do"
                )
            self._pending = len(self._counted)
        self._closed = deque(each for each in arrivals if each.seconds is None)
        coming = [(each.seconds, self.clock.number(), each) for each in arrivals if each.seconds is not None]
        self._coming = iter(sorted(coming, key=lambda each: each[:2]))
        self._expect_next()
        at_once = self._in_flight or 1
        if self._pause is None:
            for _ in range(min(at_once, len(self._closed))):
                self._submit(self._closed.popleft())
        elif self._closed:
            for seconds in under_way([self._pause + self._spoken(each) for each in self._closed], at_once):
                self.clock.after(seconds, self._go_on)

    def _expect_next(self) -> None:
        """Wait for the next request of the open loop: one timer at a time keeps the heap of timers small."""
        for seconds, number, arrival in self._coming:
            self.clock.at(seconds, number, partial(self._come, arrival))
            return

    def _come(self, arrival: Arrival) -> None:
        self._expect_next()
        self._submit(arrival)

    def _spoken(self, arrival: Arrival) -> float:
        """Return the seconds of sound that a request is answered with."""
        seconds = {name: each.frame_seconds for name, each in self._profile.stages.items()}
        visits = arrival.sample.items()
        streamed = sum(seconds.get(to, 0.0) * frames for _, visit in visits for to, frames in visit.chunks.items())
        chunks = ((name, visit, visit.chunks.get(CLIENT, 0)) for name, visit in visits)
        return streamed + sum(seconds[name] * (visit.prompt or count) for name, visit, count in chunks if count)

    def _go_on(self) -> None:
        if self._closed:
            self._submit(self._closed.popleft())

    def _submit(self, arrival: Arrival) -> None:
        flight = Flight(str(next(self._numbers)), arrival, self.clock.now)
        self.flights.append(flight)
        self._flights[flight.name] = flight
        if self._counted and len(self.flights) == self._counted.stop:
            self._until_then = self._shares(self.clock.now)
        request = OmniRequest(flight.name, stream=True, timeout=self._config.request_timeout)
        try:
            _, actions = self.machine.submit(request, flight.name, wants_partial=True, now=self.clock.now)
        except OverloadedError:
            self._refused(flight)
        else:
            self._perform(actions)

    def _refused(self, flight: Flight) -> None:
        flight.refused, flight.ended = True, self.clock.now
        self._count(flight)
        if flight.arrival.seconds is None:  # its client tries something else a second later
            self.clock.after(max(1.0, self._pause or 0.0), self._go_on)

    def _perform(self, actions: Iterable[Any]) -> None:
        """Carry out what the machine says, and set its timer. Clients that go on at once do so after all of it."""
        self._depth += 1
        for action in actions:
            if isinstance(action, Wake):
                continue  # its client reads at once
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
        while self._going_on and self._depth == 1:
            self._going_on -= 1
            self._go_on()
        self._depth -= 1

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
        self._deliveries.begin(flight)

    def _withdraw(self, attempt: str) -> None:
        flight = self._flights[attempt]
        flight.is_withdrawn = True
        for name in flight.sample:
            _, replica = self._deliveries.serving.get((name, flight.placement.get(name, 0)), (None, None))
            if replica is not None:
                replica.drop(flight)

    def _ended(self, tracked: TrackedRequest) -> None:
        flight = self._flights[tracked.request_id]
        if isinstance(tracked.error, OverloadedError):
            self._refused(flight)
            return
        error = tracked.error
        if isinstance(error, ConfigError) or (error is not None and hasattr(error, "__notes__")):  # where it was raised
            problem = f"a simulated request, which has no content, cannot be placed: {error}"
            raise ConfigError(f"{problem}; try another `balance`: --set STAGE.balance=least_busy") from error
        flight.ended, flight.failed = self.clock.now, tracked.error is not None
        self._count(flight)
        if self._pause is None:
            self._going_on += 1
        else:
            self.clock.after(max(0.0, played(flight.sound) - self.clock.now) + self._pause, self._go_on)

    def _count(self, flight: Flight) -> None:
        """End the simulation with the last of the requests that count."""
        if self._pending and int(flight.name) in self._counted:
            self._pending -= 1
            if not self._pending:
                self.clock.halt()

    def _heard(self, flight: Flight, what: str, stage: str, frames: int) -> None:
        tracked = self.machine.attempt(flight.name)
        if tracked is None:
            return  # it has failed, or runs again
        final, now = what == PAYLOAD, self.clock.now
        seconds = frames * self._frame_seconds[stage] if frames else 0.0
        if seconds:  # a profile of before knows no seconds of frames
            flight.sound.append((now, seconds))
        flight.events.append((now, stage, final))
        tracked.was_read = True
        self._perform(self.machine.result(flight.name, stage, None, final=final, now=now))

    @property
    def client(self) -> Loop:
        """The part of the client's process that sends and receives."""
        return self._deliveries.client

    def outcome(self) -> Outcome:
        made = self._until_then
        if made is None:
            seconds = max((each.ended or 0.0 for each in self.flights), default=0.0)
            in_flight = _seconds_in_pipeline(self.flights) / (seconds or 1.0)
            return evolve(self._shares(seconds), flights=self.flights, in_flight=in_flight)
        flights = self.flights[self._counted.start : self._counted.stop]
        begun, end = flights[0].arrived, self._arrival_after(flights)
        ended = sum(each.ended is not None and begun < each.ended <= end for each in self.flights)
        window = end - begun
        in_flight = _seconds_in_pipeline(flights) / window if window else float(len(flights))
        return evolve(made, flights=flights, window=window, kept_up=ended / len(flights), in_flight=in_flight)

    def _arrival_after(self, flights: Sequence[Flight]) -> float:
        """Return when the first request after those that count arrived: that many seconds are those of as many arrivals. If it has not
        yet, the last interval is taken to be as long as the others.
        """
        if len(self.flights) > self._counted.stop:
            return self.flights[self._counted.stop].arrived
        last, intervals = flights[-1].arrived, len(flights) - 1
        return last + (last - flights[0].arrived) / intervals if intervals else last

    def _shares(self, seconds: float) -> Outcome:
        """Return how busy everything was, as shares of the seconds from the beginning until now."""
        lasted = seconds or 1.0
        shares = {}
        for (name, number), (unit, replica) in self._deliveries.serving.items():
            key = name if sum(each == name for each, _ in self._deliveries.serving) == 1 else f"{name}.{number}"
            before = self._computed.get((name, number), 0.0)
            shares[key] = (before + (replica.computing if unit.replicas else 0.0)) / lasted
        hosts = [each.busy / lasted for each in self.clock.machines]
        devices = {f"{host}:{gpu}".lstrip(":"): each.busy / lasted for (host, gpu), each in self._devices.items()}
        deaths = self.restarts.deaths if self.restarts is not None else 0
        processes = {CLIENT: (self.client.worked, 0.0)}
        for unit in self.units:
            turns = sum(each.worked for each in unit.replicas.values())
            on_loop = sum(each.worked - each.beside for each in unit.replicas.values() if each.is_on_loop)
            processes[unit.name] = unit.loop.worked - on_loop, turns
        messages = self.client.worked / lasted
        return Outcome([], seconds, hosts, shares, devices, messages, deaths, processes)


def _seconds_in_pipeline(flights: Iterable[Flight]) -> float:
    return sum(each.ended - each.arrived for each in flights if each.ended is not None)
