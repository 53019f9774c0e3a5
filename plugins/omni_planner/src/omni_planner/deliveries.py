"""The messages of a simulation: what the processes of both ends spend on each, and the time in between."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from omni_core.errors import ConfigError
from omni_planner.machine import Action, Clock
from omni_planner.profile import CLIENT, PipelineProfile
from omni_planner.replica import Loop, OwnThread, Replica
from omni_planner.requests import Flight
from omni_planner.stages import DONE, PAYLOAD, Output
from omni_planner.units import Restarts, SimulatedUnit, sent

Letter = tuple[Flight, str, str, int]
"""A message under way: of what request, what, to which stage, and the frames of sound in it."""

Heard = Callable[[Flight, str, str, int], None]
"""Called with what a client reads: the request, what, of which stage, and the frames of sound in it."""


class Deliveries:
    """Takes what stages send to where it goes.

    Attributes:
        client: the process of the client. serving: the replicas by stage and number, with their units. restarts: of a pipeline that can
            fail.
    """

    def __init__(self, clock: Clock, profile: PipelineProfile, client: Loop, heard: Heard) -> None:
        self.clock, self._profile, self.client, self._heard = clock, profile, client, heard
        self.serving: dict[tuple[str, int], tuple[SimulatedUnit, Replica]] = {}
        self.restarts: Restarts | None = None
        ends = (CLIENT, *profile.stages)
        self._transfers = {name: {kind: profile.transfer(name, kind) for kind in profile.kinds} for name in ends}

    def begin(self, flight: Flight) -> None:
        """Send a request to its first stage."""
        entry = next(name for name, visit in flight.sample.items() if CLIENT in visit.sources)
        message, waking = self._transfers[CLIENT][flight.kind]
        self.client.do(message, partial(self._receive, flight, PAYLOAD, CLIENT, entry), waking)

    def at(self, flight: Flight, stage: str) -> tuple[SimulatedUnit, Replica]:
        found = self.serving.get((stage, flight.placement.get(stage, 0)))
        if found is None:
            raise ConfigError(
                f"the profile has no stage {stage!r} of this pipeline; calibrate with requests that reach it"
            )
        return found

    def send(self, sender: Replica, outputs: list[Output]) -> None:
        source, loop, restarts = sender.stage.name, sender.loop, self.restarts
        transfers, clock, latency = self._transfers, self.clock, self._profile.latency
        for flight, what, targets, frames in outputs:
            kind = flight.kind
            message, waking = transfers[source][kind]
            for target in targets:
                then: Action
                if target == CLIENT:
                    to, then = self.client, partial(self._heard, flight, what, source, frames)
                else:
                    unit, replica = self.at(flight, target)
                    to = unit.loop
                    if to is loop:
                        if restarts is not None:
                            flight.reached.add(target)
                        replica.deliver(flight, what, source)
                        continue
                    then = partial(replica.deliver, flight, what, source)
                # The end of a stream is no transfer of its own in a profile.
                is_free = what == DONE
                if restarts is None:  # what follows is known now
                    theirs, their_waking = transfers[target][kind]
                    then = partial(clock.after, latency, partial(to.do, 0.0 if is_free else theirs, then, their_waking))
                else:
                    then = partial(self._receive, flight, what, source, target, frames)
                loop.do(0.0 if is_free else message, then, waking)

    def _receive(self, flight: Flight, what: str, source: str, target: str, frames: int = 0) -> None:
        if target == CLIENT:
            loop, then = self.client, partial(self._heard, flight, what, source, frames)
        else:
            unit, replica = self.at(flight, target)
            if self.restarts is not None:
                send = partial(self._receive, flight, what, source, target)
                if flight.is_withdrawn or self.restarts.must_wait(unit, flight, target, send):
                    return
                sent(flight, what, source, target)
            loop, then = unit.loop, partial(replica.deliver, flight, what, source)
        profile = self._profile
        delay = profile.delay(source, flight.sample, what == PAYLOAD) if profile.is_estimate else profile.latency
        message, waking = self._transfers[target][flight.kind]
        self.clock.after(delay, partial(loop.do, 0.0 if what == DONE else message, then, waking))

    def send_together(self, sender: Replica, outputs: list[Output]) -> None:
        """Send what goes to one process in one event: the last message arrives when it would, the others with it."""
        client, serving, source, own = self.client, self.serving, sender.stage.name, sender.loop
        assert isinstance(own, OwnThread)
        groups: dict[Loop, tuple[SimulatedUnit | None, list[Letter]]] = {}
        for flight, what, targets, frames in outputs:
            for target in targets:
                unit, loop = None, client
                if target != CLIENT:
                    found = serving.get((target, flight.placement.get(target, 0))) or self.at(flight, target)
                    unit, loop = found[0], found[0].loop
                group = groups.get(loop)
                if group is None:
                    groups[loop] = unit, [(flight, what, target, frames)]
                else:
                    group[1].append((flight, what, target, frames))
        for loop, (unit, letters) in groups.items():
            if loop is own:
                self._arrived(unit, loop, source, letters)
            elif self.restarts is None:  # what follows is known now
                cost = self._cost(letters)
                then = partial(loop.do, cost, partial(self._arrived, unit, loop, source, letters))
                self.clock.after(own.charge(cost) + self._delay(source, letters), then)
            else:
                own.do(self._cost(letters), partial(self._post, unit, source, letters))

    def _delay(self, source: str, letters: list[Letter]) -> float:
        """Return the seconds between the ends of messages: only payloads, of which few are in a step, have bytes that take time."""
        delays = [self._profile.delay(source, each[0].sample, True) for each in letters if each[1] == PAYLOAD]
        return max([self._profile.latency, *delays])

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
            loop = self.client if unit is None else unit.loop
            then = partial(loop.do, self._cost(letters), partial(self._arrived, unit, loop, source, letters))
            self.clock.after(self._delay(source, letters), then)

    def _arrived(self, unit: SimulatedUnit | None, loop: Loop, source: str, letters: list[Letter]) -> None:
        if unit is None:
            for flight, what, _, frames in letters:
                self._heard(flight, what, source, frames)
            return
        if unit.loop is not loop:
            return
        woken: dict[Replica, None] = {}
        can_fail, replicas = self.restarts is not None, unit.replicas
        for flight, what, target, _ in letters:
            if can_fail:
                flight.reached.add(target)
            replica = replicas[target]
            replica.put(flight, what, source)
            woken[replica] = None
        for replica in woken:
            replica.wake()

    def _cost(self, letters: list[Letter]) -> float:
        """Return the processor seconds of messages at one end. The end of a stream is no transfer of its own in a profile."""
        return self._profile.message * (len(letters) - [each[1] for each in letters].count(DONE))
