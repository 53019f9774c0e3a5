"""Stages in simulated time: each takes messages and makes steps by the rule of its scheduler. Here those of functions and streams;
engines and vocoders have modules of their own.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from typing import Any

from attrs import define, field

from omni_planner.estimate import CLIENT, NOTHING, Costing, Seconds
from omni_planner.load import Flight
from omni_torch.placement.work import Counts

PAYLOAD, CHUNK, DONE = "payload", "chunk", "done"

Output = tuple[Flight, str, list[str], int]
"""A request, what is sent of it (:data:`PAYLOAD`, :data:`CHUNK`, or :data:`DONE`, the end of a stream), to whom, and frames of sound."""

Step = tuple[Seconds, list[Output]]
"""Seconds of a processor and then of the device, and what is sent at their end."""

Message = tuple[Flight, str, str]
"""A message in a stage's inbox: of what request, what, and from which stage."""

Settings = dict[str, Any]
"""The ``factory_args`` of a stage, over the defaults of its factory."""


class SimulatedStage(ABC):
    """One replica of a stage.

    Attributes:
        inbox: what has come and was not taken yet.
        now: returns the time, in seconds.
        wait: after a turn without steps, the seconds until the next one, if no message comes before; ``None``: none.
    """

    now: Callable[[], float] = staticmethod(lambda: 0.0)
    wait: float | None = None

    def __init__(self, name: str, costing: Costing) -> None:
        self.name = name
        self.inbox: deque[Message] = deque()
        self._costing = costing

    @abstractmethod
    def turn(self) -> list[Step]:
        """Take messages and return the steps of a turn; none if there is nothing to do before another message comes."""

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


class FunctionStage(SimulatedStage):
    """One request at a time, or a batch of them. A stage that streams its result has no batches, and takes as long for each chunk.

    Args:
        settings: ``batch_size`` (or ``max_batch_size``) and ``batch_wait``, as :class:`omni_core.scheduling.simple.SimpleScheduler`
            has them.
    """

    def __init__(self, name: str, costing: Costing, settings: Settings) -> None:
        super().__init__(name, costing)
        self._batch_size = int(settings.get("batch_size") or settings.get("max_batch_size") or 1)
        self._batch_wait = float(settings.get("batch_wait") or 0.0)
        self._until: float | None = None

    def turn(self) -> list[Step]:
        self.inbox = deque(each for each in self.inbox if each[1] == PAYLOAD)
        if self._batch_size > 1:
            batch = self._batch()
            return [(self._cost(batch), [output for each in batch for output in self._result(each)])] if batch else []
        if not self.inbox:
            return []
        flight, _, _ = self.inbox.popleft()
        processor, device = self._cost([flight])
        parts = max([1, *flight.sample[self.name].chunks.values()])
        steps = [((processor / parts, device / parts), self._part(flight, each, parts)) for each in range(parts)]
        steps[-1][1].extend(self._result(flight))
        return steps

    def _cost(self, batch: list[Flight]) -> Seconds:
        visits = [each.sample[self.name] for each in batch]
        positions, pairs = sum(each.prompt for each in visits), sum(each.prompt**2 for each in visits)
        passes = max(1, *(each.outputs for each in visits))
        return self._costing(Counts(prompts=len(batch), positions=positions, pairs=pairs), passes, len(batch))

    def _batch(self) -> list[Flight]:
        """Take the requests of a turn; none while a batch may still fill, for which the stage waits."""
        now, waiting = self.now(), len(self.inbox) if self._batch_wait else 0
        if 0 < waiting < self._batch_size:
            self._until = now + self._batch_wait if self._until is None else self._until
            if now < self._until:
                self.wait = self._until - now
                return []
        self.wait = self._until = None
        return [self.inbox.popleft()[0] for _ in range(min(len(self.inbox), self._batch_size))]

    def _part(self, flight: Flight, number: int, parts: int) -> list[Output]:
        """Return the chunks of part ``number`` (from 0)."""
        visit = flight.sample[self.name]
        outputs: list[Output] = []
        for target, total in visit.chunks.items():
            before = -(-total * number // parts)
            for made in range(before, before + streamed(total, parts, number + 1)):
                frames = visit.prompt * (made + 1) // total - visit.prompt * made // total
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

    def are_complete(self, flight: Flight, stage: str) -> bool:
        """Return whether the payload and the end of every stream have come."""
        sources = flight.sample[stage].sources if self.has_payload else []
        streams = {name for name in sources if name != CLIENT and flight.sample[name].chunks.get(stage)}
        return self.has_payload and streams <= self.done


class StreamStage(SimulatedStage):
    """Takes all that has come at once; hands on chunks as they come."""

    def __init__(self, name: str, costing: Costing) -> None:
        super().__init__(name, costing)
        self._inputs: dict[str, Inputs] = {}

    def turn(self) -> list[Step]:
        taken, self.inbox = self.inbox, deque()
        if not taken:
            return []
        outputs: list[Output] = []
        for message in taken:
            flight, what, _ = message
            inputs = self._inputs.setdefault(flight.name, Inputs())
            inputs.take(message)
            if what == CHUNK:
                visit = flight.sample[self.name]
                coming = sum(flight.sample[name].chunks.get(self.name, 0) for name in visit.sources if name != CLIENT)
                for target, total in visit.chunks.items():
                    outputs += [(flight, CHUNK, [target], 0)] * streamed(total, coming, inputs.chunks)
            if inputs.are_complete(flight, self.name):
                del self._inputs[flight.name]
                outputs += self._result(flight)
        return [(self._costing(NOTHING, 0, len(taken)), outputs)]
