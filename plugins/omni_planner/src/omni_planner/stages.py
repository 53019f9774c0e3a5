"""Stages in simulated time. Each takes messages and makes turns by the rule of its scheduler; what a turn costs is in the profile.

Here are those of functions and streams; :mod:`omni_planner.engine_stage` and :mod:`omni_planner.vocoder_stage` have those that run
schedulers of the runtime. Only the networks are missing, and the time that they take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from attrs import define, field

from omni_planner.profile import CLIENT, Costing, Seconds, StageProfile
from omni_planner.requests import Flight

PAYLOAD, CHUNK, DONE = "new_request", "stream_chunk", "stream_done"

Output = tuple[Flight, str, list[str], int]
"""A request, what is sent of it (:data:`PAYLOAD`, :data:`CHUNK`, :data:`DONE`), to whom, and the frames of sound in it."""

Step = tuple[Seconds, list[Output]]
"""Seconds of a processor and then of the device, and what is sent at their end."""

Message = tuple[Flight, str, str]
"""A message in a stage's inbox: of what request, what, and from which stage."""

Settings = dict[str, Any]


class SimulatedStage(ABC):
    """One replica of a stage.

    Attributes:
        inbox: what has come and was not taken yet. now: returns the time, in seconds. woken: 1 if its thread has waited before this
            turn, else 0.
        wait: after a turn without steps, the seconds until the next one, if no message comes before; ``None``: none.
    """

    now: Callable[[], float] = staticmethod(lambda: 0.0)
    wait: float | None = None
    woken = 0
    is_in_parts = False
    """True if the steps of a turn are parts of one step."""

    def __init__(self, name: str, profile: StageProfile, costing: Costing) -> None:
        self.name = name
        self.inbox: deque[Message] = deque()
        self._profile, self._costing = profile, costing

    @abstractmethod
    def turn(self) -> list[Step]:
        """Take messages and return the steps of a turn; none if there is nothing to do before another message comes."""

    @abstractmethod
    def drop(self, flight: Flight) -> None:
        """Forget a request that was withdrawn; what it has in the inbox is removed already."""

    def _result(self, flight: Flight) -> list[Output]:
        """Return the outputs at a request's end: the ends of its streams, and its result."""
        visit = flight.sample[self.name]
        streams = [target for target in visit.chunks if target != CLIENT]
        return [(flight, DONE, streams, 0)] * bool(streams) + [(flight, PAYLOAD, list(visit.targets), 0)]


def streamed(total: int, outputs: int, made: int) -> int:
    """Return how many of ``total`` chunks go out with output number ``made`` (from 1) of ``outputs``: spread evenly, beginning with the
    first. Where one is missing it is that of the last output, the token that ends a text or a speech.
    """
    return -(-total * made // outputs) + (-total * (made - 1) // outputs) if outputs else 0


@define
class Watch:
    """A scheduler's clock within a turn. Processors are shared, so steps take longer than they compute: by as much as
    lately.

    Attributes:
        spent: processor seconds of the turn's steps so far.
    """

    spent: float = 0.0
    _began: float = 0.0
    _stretch: float = 1.0

    @property
    def elapsed(self) -> float:
        """The seconds since the turn began."""
        return self.spent * self._stretch

    def turn(self, now: float) -> None:
        """Begin a turn. One with steps is followed by another one at their end."""
        if self.spent:
            self._stretch += 0.2 * ((now - self._began) / self.spent - self._stretch)
        self._began, self.spent = now, 0.0

    def spend(self, seconds: float) -> None:
        """Add a step."""
        self.spent += seconds


class FunctionStage(SimulatedStage):
    """One request at a time, or a batch of them. A stage that streams its result has no batches, and takes as long for each chunk.

    Args:
        settings: ``batch_size`` (or ``max_batch_size``) and ``batch_wait``, as :class:`omni_core.scheduling.simple.SimpleScheduler`
            has them.
    """

    def __init__(self, name: str, profile: StageProfile, costing: Costing, settings: Settings | None = None) -> None:
        super().__init__(name, profile, costing)
        given = settings or {}
        self._batch_size = int(given.get("batch_size") or given.get("max_batch_size") or 1)
        self._batch_wait = float(given.get("batch_wait") or 0.0)
        self._until: float | None = None

    def drop(self, flight: Flight) -> None:
        pass

    def turn(self) -> list[Step]:
        if self._batch_size > 1:
            batch = self._batch()
            if not batch:
                return []
            seconds = self._cost(batch)
            return [(seconds, [output for each in batch for output in self._result(each)])]
        while self.inbox:
            flight, what, _ = self.inbox.popleft()
            if what == PAYLOAD:
                visit = flight.sample[self.name]
                processor, device = self._cost([flight])
                parts = max([1, *visit.chunks.values()])
                share = processor / parts, device / parts
                steps = [(share, self._streamed(flight, number, parts)) for number in range(1, parts + 1)]
                steps[-1][1].extend(self._result(flight))
                return steps
        return []

    def _cost(self, batch: list[Flight]) -> Seconds:
        """Return what a batch takes. Only estimates count more than the requests."""
        visits = [each.sample[self.name] for each in batch]
        sizes = [each.prompt for each in visits]
        passes = max(1, *(each.outputs for each in visits))
        pairs = sum(size * size for size in sizes)
        return self._costing(batch[0].kind, (1, len(batch), self.woken, sum(sizes), pairs, passes))

    def _batch(self) -> list[Flight]:
        """Take the requests of a turn; none while a batch may still fill, for which the stage waits."""
        now, waiting = self.now(), sum(what == PAYLOAD for _, what, _ in self.inbox) if self._batch_wait else 0
        if 0 < waiting < self._batch_size:
            self._until = now + self._batch_wait if self._until is None else self._until
            if now < self._until:
                self.wait = self._until - now
                return []
        self.wait = self._until = None
        taken: list[Flight] = []
        while self.inbox and len(taken) < self._batch_size:
            flight, what, _ = self.inbox.popleft()
            if what == PAYLOAD:
                taken.append(flight)
        return taken

    def _streamed(self, flight: Flight, number: int, parts: int) -> list[Output]:
        """Return the chunks of part ``number`` (from 1); where the stage's positions are not known, a chunk counts as one frame."""
        visit = flight.sample[self.name]
        outputs: list[Output] = []
        for target, total in visit.chunks.items():
            before = -(-total * (number - 1) // parts)
            for made in range(before, before + streamed(total, parts, number)):
                frames = visit.prompt * (made + 1) // total - visit.prompt * made // total or 1
                outputs.append((flight, CHUNK, [target], frames if target == CLIENT else 0))
        return outputs


@define
class Inputs:
    """The messages that have come for a request of a stage that is fed by streams."""

    messages: int = 0
    chunks: int = 0
    has_payload: bool = False
    done: set[str] = field(factory=set)

    def take(self, message: Message) -> None:
        _, what, source = message
        self.messages += 1
        if what == CHUNK:
            self.chunks += 1
        elif what == PAYLOAD:
            self.has_payload = True
        else:
            self.done.add(source)

    def complete(self, flight: Flight, stage: str) -> bool:
        """Return whether the payload and the end of every stream have come."""
        if not self.has_payload:
            return False
        sources = flight.sample[stage].sources
        streams = {name for name in sources if name != CLIENT and flight.sample[name].chunks.get(stage)}
        return streams <= self.done


class StreamStage(SimulatedStage):
    """Takes all that has come at once; hands on chunks as they come."""

    def __init__(self, name: str, profile: StageProfile, costing: Costing) -> None:
        super().__init__(name, profile, costing)
        self._inputs: dict[str, Inputs] = {}

    def drop(self, flight: Flight) -> None:
        self._inputs.pop(flight.name, None)

    def turn(self) -> list[Step]:
        taken, self.inbox = self.inbox, deque()
        if not taken:
            return []
        outputs: list[Output] = []
        for message in taken:
            flight, what, _ = message
            inputs = self._inputs.get(flight.name)
            if inputs is None:
                inputs = self._inputs[flight.name] = Inputs()
            inputs.take(message)
            if what == CHUNK:
                visit = flight.sample[self.name]
                coming = sum(flight.sample[name].chunks.get(self.name, 0) for name in visit.sources if name != CLIENT)
                for target, total in visit.chunks.items():
                    outputs += [(flight, CHUNK, [target], 0)] * streamed(total, coming, inputs.chunks)
            if inputs.complete(flight, self.name):
                del self._inputs[flight.name]
                outputs += self._result(flight)
        return [(self._costing(taken[0][0].kind, (1, len(taken), self.woken)), outputs)]
