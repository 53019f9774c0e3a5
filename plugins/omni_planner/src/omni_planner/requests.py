"""A simulated request on its way through the stages, and the load that a simulation gets."""

from __future__ import annotations

import random
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence

from attrs import define, field, frozen

from omni_planner.profile import CLIENT, Sample


@frozen
class Arrival:
    """A request that comes at ``seconds``; ``None``: as soon as another one of the closed loop has ended."""

    seconds: float | None
    kind: str
    sample: Sample


@define(eq=False)
class Flight:
    """One attempt of a simulated request; all that is written down of the request is in its first one.

    Attributes:
        name: of the attempt. placement: stage name to replica, for replicated stages. events: ``(seconds, stage, final)`` of what its
            client read. arrived, ended: seconds. refused: it was not admitted. failed: a process died that held it. attempts: how often it
            was run. sound: when sound came, and how many seconds of it.
        reached: of a pipeline that can fail, the stages that something of it was sent to. came: what has come of a stage's outputs to
            another one, ``(from, to)``, as bits of :mod:`omni_core.stage.requests`. is_withdrawn: nobody works for it any more.
    """

    name: str
    arrival: Arrival
    arrived: float
    placement: Mapping[str, int] = field(factory=dict)
    events: list[tuple[float, str, bool]] = field(factory=list)
    ended: float | None = None
    refused: bool = False
    failed: bool = False
    attempts: int = 1
    sound: list[tuple[float, float]] = field(factory=list)
    reached: set[str] = field(factory=set)
    came: dict[tuple[str, str], int] = field(factory=dict)
    is_withdrawn: bool = False
    sample: Sample = field(init=False)
    """Its visits, by stage."""
    kind: str = field(init=False)

    def __attrs_post_init__(self) -> None:
        self.sample, self.kind = self.arrival.sample, self.arrival.kind

    def expected_work(self) -> float:
        """Return what ``balance: cost`` counts: the prompt of its first engine, as it has no text, whose characters the runtime counts."""
        return 1.0 + next((each.prompt for each in self.sample.values() if each.outputs), 0)

    def answering(self, stages: Iterable[str]) -> list[str]:
        """Return those of the stages whose result goes to its client."""
        return [each for each in stages if each in self.sample and CLIENT in self.sample[each].targets]


def draw(kinds: Mapping[str, Sequence[Sample]], mix: Mapping[str, float], seed: int) -> Iterator[tuple[str, Sample]]:
    """Yield measured requests for ever: kinds by their weights in ``mix``, and one of each kind's samples in turn."""
    generator, names = random.Random(seed), list(mix)
    turns = dict.fromkeys(names, 0)
    while True:
        [kind] = generator.choices(names, [mix[name] for name in names])
        samples = kinds[kind]
        yield kind, samples[turns[kind] % len(samples)]
        turns[kind] += 1


def under_way(cycles: Sequence[float], conversations: int) -> list[float]:
    """Return when each of so many conversations asks next, if all have been under way for long: seconds, each drawn by itself.

    A moment falls into a cycle the more often the longer it is, so the time that is left has the distribution
    ``P(left <= x) = mean(min(cycle, x)) / mean(cycle)``, and requests come at their steady rate from the first second on.

    Args:
        cycles: seconds between two requests of a conversation, one of which is as likely as another.
    """
    generator, rising, lasted = random.Random("conversations"), sorted(cycles), [0.0]
    for number, cycle in enumerate(rising):  # the sums of min(cycle, x) at each x of `rising`
        shorter = rising[number - 1] if number else 0.0
        lasted.append(lasted[-1] + (cycle - shorter) * (len(rising) - number))
    found: list[float] = []
    for _ in range(conversations):
        drawn = generator.random() * lasted[-1]
        number = bisect_right(lasted, drawn) - 1
        if number >= len(rising):
            number = len(rising) - 1
        shorter = rising[number - 1] if number else 0.0
        found.append(shorter + (drawn - lasted[number]) / (len(rising) - number))
    return found


def closed_loop(requests: Iterator[tuple[str, Sample]], total: int) -> list[Arrival]:
    """Return requests of which a fixed number is under way at once."""
    return [Arrival(None, *next(requests)) for _ in range(total)]
