"""The simulation of a pipeline under a load: requests arrive, stages make steps, messages go between processes, in one clock."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import count

from attrs import field, frozen

from omni_core.api import OmniRequest, OverloadedError, PipelineConfig
from omni_core.runtime_api import (
    BALANCES,
    Action,
    AdmittingMachine,
    Ended,
    ReplicaChoice,
    ReplicatedGroup,
    RequestMachine,
    Start,
    least_busy,
    plan,
)
from omni_planner.admission.options import policy_of
from omni_planner.clock import Clock, Gpu
from omni_planner.estimate import CLIENT, Estimate
from omni_planner.figures import played
from omni_planner.load import Arrival, Flight, Load, heard_seconds, under_way
from omni_planner.replica import Process, Replica, simulated
from omni_planner.stages import CHUNK, DONE, PAYLOAD, Output

AGAIN = 1.0
"""Seconds after which the client of a refused request of a closed loop asks the next."""

Letter = tuple[Flight, str, str, int]
"""A message under way: of what request, what, to which stage, and the frames of sound in it."""


@frozen
class Outcome:
    """The result of a simulation.

    Attributes:
        flights: the requests that count, in the order of their arrival.
        seconds: until the last one of all ended; where others come after those that count, until the first of these came. All
            shares are of them.
        stages: share of the time in which each replica of a stage makes steps, by ``stage`` or ``stage.replica``.
        gpus: share of the time in which each GPU computes, by ``gpu`` or ``host:gpu``.
        messages: share of the time that each process group sends and receives, by its name (:data:`CLIENT`: the client's process).
        window: where others come around those that count, seconds from the first one that does to the first one after them; else 0.
        kept_up: requests that ended in them, for each one that came.
        in_flight: requests in the pipeline at once, on average.
    """

    flights: list[Flight]
    seconds: float
    stages: dict[str, float] = field(factory=dict)
    gpus: dict[str, float] = field(factory=dict)
    messages: dict[str, float] = field(factory=dict)
    window: float = 0.0
    kept_up: float = 1.0
    in_flight: float = 0.0


def simulate(config: PipelineConfig, estimate: Estimate, load: Load) -> Outcome:
    """Run a load against a pipeline in simulated time.

    Args:
        config: placed.

    Raises:
        ConfigError: a request does not fit into a cache; or a setting of the config is wrong.
    """
    simulation = Simulation(config, estimate, load)
    simulation.clock.run()
    return simulation.outcome()


class Simulation:
    """A pipeline, its GPUs, and the requests of a load."""

    def __init__(self, config: PipelineConfig, estimate: Estimate, load: Load) -> None:
        self.clock = Clock()
        self._estimate, self._load, self._config = estimate, load, config
        self._client = Process(self.clock, CLIENT)
        self._processes = [self._client]
        self._replicas: dict[tuple[str, int], Replica] = {}
        self._gpus: dict[str, Gpu] = {}
        self._flights: dict[str, Flight] = {}
        self._build()
        groups = [
            ReplicatedGroup(
                name,
                [each.name for each in stages],
                balance=BALANCES.get(stages[0].balance, least_busy),
                work=lambda request: self._flights[request.inputs].expected_work(),
            )
            for name, stages in {each.group: each.stages for each in plan(config)}.items()
            if stages[0].replicas > 1
        ]
        replicas = {each.name: {number: number for number in range(each.replicas)} for each in config.stages}
        first = {each.name: each.stages[0] for each in groups}
        choice = ReplicaChoice(groups, lambda group: replicas[first[group]])
        make: Callable[..., RequestMachine] = RequestMachine
        if config.admission:
            make = partial(AdmittingMachine, policy=policy_of(config))
        terminals = config.terminal_stages
        self._machine = make(
            terminal_stages=terminals,
            terminal_stages_fn=lambda request: self._flights[request.inputs].answering(terminals),
            place=choice.place,
            left=choice.left,
            max_in_flight=config.max_in_flight,
        )
        self._timer = math.inf
        self._numbers = count()
        self._counted = range(load.around, load.around + load.total)
        self._pending = load.total
        self._shares: Outcome | None = None
        self._begin(load.arrivals(estimate))

    def _build(self) -> None:
        """Make the processes and replicas of the config."""
        processes = plan(self._config)
        for process in (each for each in processes if not each.rank):
            made = Process(self.clock, process.group)
            self._processes.append(made)
            ranks = [each for each in processes if (each.group, each.replica) == (process.group, process.replica)]
            for stage in process.stages:
                names = [
                    f"{each.host or ''}:{each.gpus[stage.name]}".lstrip(":")
                    for each in ranks
                    if stage.name in each.gpus
                ]
                gpus = [self._gpus.setdefault(name, Gpu(self.clock)) for name in names]
                kept = simulated(stage, self._estimate.stages[stage.name])
                self._replicas[stage.name, process.replica] = Replica(kept, self.clock, made, gpus, self._send)

    def _begin(self, arrivals: Sequence[Arrival]) -> None:
        """Let requests come: by themselves, or each when another one has ended."""
        self._closed = deque(each for each in arrivals if each.seconds is None)
        self._coming: Iterator[Arrival] = (each for each in arrivals if each.seconds is not None)
        self._expect_next()
        at_once, pause = self._load.in_flight or 1, self._load.pause
        if pause is not None and self._closed:
            cycles = [pause + heard_seconds(each.sample, self._estimate) for each in self._closed]
            for seconds in under_way(cycles, at_once):
                self.clock.after(seconds, self._go_on)
        else:
            for _ in range(min(at_once, len(self._closed))):
                self.clock.after(0.0, self._go_on)

    def _expect_next(self) -> None:
        for arrival in self._coming:
            self.clock.after((arrival.seconds or 0.0) - self.clock.now, partial(self._come, arrival))
            return

    def _come(self, arrival: Arrival) -> None:
        self._expect_next()
        self._submit(arrival)

    def _go_on(self) -> None:
        if self._closed:
            self._submit(self._closed.popleft())

    def _submit(self, arrival: Arrival) -> None:
        flight = Flight(str(next(self._numbers)), arrival, self.clock.now)
        self._flights[flight.name] = flight
        if int(flight.name) == self._counted.stop:
            self._shares = self._busy(self.clock.now)
        try:
            request = OmniRequest(flight.name, stream=True)
            _, actions = self._machine.submit(request, flight.name, wants_partial=True, now=self.clock.now)
        except OverloadedError:
            self._end(flight, is_refused=True)
        else:
            self._perform(actions)

    def _perform(self, actions: Iterable[Action]) -> None:
        """Carry out what the machine says, and set its timer."""
        for action in actions:
            if isinstance(action, Start):
                flight = self._flights[action.request.request_id]
                flight.placement = action.request.request.placement
                entry = next(name for name, visit in flight.sample.items() if CLIENT in visit.sources)
                self._post(self._client, CLIENT, {self._at(flight, entry).process: [(flight, PAYLOAD, entry, 0)]})
            elif isinstance(action, Ended):
                error = action.request.error
                if error is not None and not isinstance(error, OverloadedError):
                    raise error
                self._end(self._flights[action.request.request_id], is_refused=error is not None)
        due = self._machine.next_timer()
        if due is not None and due < self._timer:
            self._timer = due
            self.clock.after(due - self.clock.now, self._ring)

    def _ring(self) -> None:
        self._timer = math.inf
        self._perform(self._machine.clock(self.clock.now + 1e-9))

    def _end(self, flight: Flight, *, is_refused: bool) -> None:
        flight.ended, flight.refused = self.clock.now, is_refused
        if int(flight.name) in self._counted:
            self._pending -= 1
            if not self._pending and self._load.around:
                self.clock.halt()
        if flight.arrival.seconds is None:
            pause = self._load.pause or 0.0
            left = AGAIN if is_refused else max(0.0, played(flight.sound) - self.clock.now)
            self.clock.after((left if pause or is_refused else 0.0) + pause, self._go_on)

    def _at(self, flight: Flight, stage: str) -> Replica:
        return self._replicas[stage, flight.placement.get(stage, 0)]

    def _send(self, sender: Replica, outputs: list[Output]) -> None:
        """Send what goes to one process in one event: the last message arrives when it would, the others with it."""
        letters: dict[Process, list[Letter]] = {}
        for flight, what, targets, frames in outputs:
            for target in targets:
                process = self._client if target == CLIENT else self._at(flight, target).process
                letters.setdefault(process, []).append((flight, what, target, frames))
        self._post(sender.process, sender.stage.name, letters)

    def _post(self, sender: Process, source: str, letters: dict[Process, list[Letter]]) -> None:
        for process, each in letters.items():
            if process is sender:  # inside of a process there is no message
                self._arrive(process, source, each)
                continue
            # The end of a stream travels with what comes last.
            cost = self._estimate.device.rates.message * sum(what != DONE for _, what, _, _ in each)
            delay = max(
                self._estimate.delay(source, flight.sample, is_payload=what == PAYLOAD) for flight, what, _, _ in each
            )
            self.clock.after(sender.messages.work(cost) + delay, partial(self._receive, process, source, each, cost))

    def _receive(self, process: Process, source: str, letters: list[Letter], cost: float) -> None:
        self.clock.after(process.messages.work(cost), partial(self._arrive, process, source, letters))

    def _arrive(self, process: Process, source: str, letters: list[Letter]) -> None:
        woken: dict[Replica, None] = {}
        for flight, what, target, frames in letters:
            if process is self._client:
                self._read(flight, what, source, frames)
            else:
                replica = self._at(flight, target)
                replica.put(flight, what, source)
                woken[replica] = None
        for replica in woken:
            replica.wake()

    def _read(self, flight: Flight, what: str, stage: str, frames: int) -> None:
        """The client reads an output."""
        tracked = self._machine.attempt(flight.name)
        if tracked is None or what not in (PAYLOAD, CHUNK):
            return
        now, is_final = self.clock.now, what == PAYLOAD
        if frames:
            flight.sound.append((now, frames * self._estimate.stages[stage].frame_seconds))
        flight.events.append((now, stage, is_final))
        actions = self._machine.result(flight.name, stage, None, final=is_final, now=now)
        while tracked.events:
            self._machine.read(tracked, tracked.events.popleft(), now)
        self._perform(actions)

    def outcome(self) -> Outcome:
        """Return the result of the requests that count."""
        all_flights = list(self._flights.values())
        flights = all_flights[self._counted.start : self._counted.stop]
        if self._shares is None:
            seconds = max(each.ended or 0.0 for each in all_flights)
            lasted = sum((each.ended or 0.0) - each.arrived for each in all_flights)
            made = self._busy(seconds)
            return Outcome(
                flights, seconds, made.stages, made.gpus, made.messages, in_flight=lasted / seconds if seconds else 0.0
            )
        begun, end = flights[0].arrived, all_flights[self._counted.stop].arrived
        ended = sum(each.ended is not None and begun < each.ended <= end for each in all_flights)
        lasted = sum((each.ended or end) - each.arrived for each in flights)
        made, window = self._shares, end - begun
        return Outcome(
            flights,
            made.seconds,
            made.stages,
            made.gpus,
            made.messages,
            window,
            ended / len(flights),
            lasted / window if window else float(len(flights)),
        )

    def _busy(self, seconds: float) -> Outcome:
        """Return how busy everything was, as shares of the seconds from the beginning until now."""
        lasted = seconds or 1.0
        copies = {stage: sum(name == stage for name, _ in self._replicas) for stage, _ in self._replicas}
        stages = {
            name if copies[name] == 1 else f"{name}.{number}": each.busy / lasted
            for (name, number), each in self._replicas.items()
        }
        messages: dict[str, float] = {}
        for each in self._processes:
            messages[each.name] = max(messages.get(each.name, 0.0), each.messages.busy / lasted)
        return Outcome([], seconds, stages, {name: each.busy / lasted for name, each in self._gpus.items()}, messages)
