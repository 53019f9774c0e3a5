"""The pace of an engine whose outputs somebody listens to: what a step may hold so that running requests stay in time."""

from __future__ import annotations

import math

from attrs import define, field

from omni_core.api import ARRequest
from omni_torch.loop.step_cost import StepCost
from omni_torch.vocoder.deadlines import DeadlinePolicy

LOAD = 0.9
"""The share of the time that decodes may take by prediction, before another request is begun."""

FULL = 0.9
"""A batch is full if it computes this share of the rows per second that any larger one would."""

AHEAD = 1.0
"""Seconds of output in hand from which on a request is left out of full batches while another one is late."""

LEAST = 16
"""The fewest positions of a prompt that are worth a step, unless it has fewer left."""


def _cost() -> StepCost:
    return StepCost(2)


@define
class Pace:
    """Says how many decodes, and how many positions of prompts, a step may hold.

    Predictions come from the steps that were made (:meth:`computed`). Where decodes cannot be in time at all, or a larger batch costs
    hardly more, nothing is held back: it would help nobody.

    Attributes:
        policy: the requests' deadlines.
        seconds: of sound, or of reading, in one output.
        patience: seconds without service after which a request's priority rises by one.
        spared: positions that prompts may still take in the step being planned.
    """

    policy: DeadlinePolicy
    seconds: float
    patience: float = 30.0
    spared: float = math.inf
    _cost: StepCost = field(factory=_cost)
    _decodes: int = 0

    def limit(self, decodes: list[ARRequest], now: float) -> list[ARRequest]:
        """Return the decodes of a step, in the order given, and note what they can spare for prompts."""
        moments = {each.request_id: self.policy.due(each.request_id, now) for each in decodes}
        earliest = min(moments.values(), default=math.inf)
        if earliest < now:
            late = [each for each in decodes if moments[each.request_id] < now + AHEAD]
            others = [each for each in decodes if moments[each.request_id] >= now + AHEAD]
            room = self._full() - len(late)
            decodes = late + others[: len(others) if room == math.inf else max(0, math.ceil(room))]
        self._decodes = len(decodes)
        alone = self._cost.seconds(len(decodes), 0)
        position = self._cost.coefficients()[2]
        can_keep_up = alone <= LOAD * self.seconds
        self.spared = (
            max(0.0, (earliest - now - alone) / position) if decodes and position and can_keep_up else math.inf
        )
        return decodes

    def spare(self, request_id: str, positions: int, now: float, *, begins: bool) -> int:
        """Return how many of so many positions of a prompt the step being planned may hold, and count them.

        ``begins``: it has not been running.
        """
        if self.policy.may_wait(request_id, now):
            if begins and self._is_full():
                return 0
            if self.spared < min(positions, LEAST):
                return 0
            positions = min(positions, int(min(self.spared, positions)))
        self.spared -= positions
        self._decodes += begins
        return positions

    def _is_full(self) -> bool:
        """Return whether one more decode would make all of them late without computing more a second."""
        after = self._decodes + 1
        return self._decodes > 0 and after > self._full() and self._cost.seconds(after, 0) > LOAD * self.seconds

    def computed(self, decodes: int, positions: int, seconds: float) -> None:
        """Learn from a step."""
        self._cost.observe([decodes, positions], seconds)

    def emitted(self, request_id: str, now: float) -> None:
        """Take in that a request has an output."""
        self.policy.emitted(request_id, self.seconds, now)

    def _full(self) -> float:
        """Return the number of decodes of a full batch; infinity if every further one is free."""
        step, decode, _ = self._cost.coefficients()
        return FULL / (1 - FULL) * step / decode if decode else math.inf
