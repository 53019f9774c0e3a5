"""The load of a simulation: which requests come, and when."""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate

from attrs import define, evolve, field, frozen

from omni_planner.estimate import CLIENT, Estimate, Sample


@frozen
class Load:
    """The load of a plan.

    Attributes:
        mix: weights of the kinds of request.
        total: requests that count.
        around: so many more before them, and after them, that keep the pipeline as busy as it is for long.
        rate: requests a second.
        variation: standard deviation of the times between them over the mean; 1: at random.
        in_flight: or requests at once, or with ``pause`` (seconds) conversations.
    """

    mix: Mapping[str, float]
    total: int
    rate: float | None = None
    in_flight: int | None = None
    pause: float | None = None
    seed: int = 0
    variation: float = 1.0
    around: int = 0

    @property
    def is_closed(self) -> bool:
        """Return whether so many requests are always under way."""
        return self.rate is None and self.pause is None

    def arrivals(self, estimate: Estimate) -> list[Arrival]:
        """Return the requests. Those that count come at just the rate: of few hundred it would be off by a tenth by chance."""
        requests, count = draw(estimate.kinds, self.mix, self.seed), self.total + 2 * self.around
        if self.rate is None:
            return [Arrival(None, *next(requests)) for _ in range(count)]
        # Not the numbers of `draw`: the kind of a request would follow from the time since the last one.
        generator, shape = random.Random(f"arrivals {self.seed}"), 1.0 / self.variation**2
        gaps = (generator.gammavariate(shape, 1.0 / shape) for _ in range(count))
        times = list(accumulate(gaps))
        first = times[self.around - 1] if self.around else 0.0
        stretch = self.total / self.rate / (times[self.around + self.total - 1] - first)
        return [Arrival(each * stretch, *next(requests)) for each in times]

    def per_second(self, estimate: Estimate, alone: float) -> float:
        """Return the requests a second. ``alone``: seconds that one takes, at least."""
        if self.rate is not None:
            return self.rate
        if self.pause is None:
            return (self.in_flight or 1) / alone
        total = sum(self.mix.values())
        spoken = sum(
            weight / total * heard_seconds(sample, estimate) / len(estimate.kinds[kind])
            for kind, weight in self.mix.items()
            for sample in estimate.kinds[kind]
        )
        return (self.in_flight or 1) / (max(alone, spoken) + self.pause)

    def scaled(self, share: float) -> Load:
        """Return the part of the load that one of several equal pipelines gets."""
        if self.rate is not None:
            return evolve(self, rate=self.rate * share)
        return evolve(self, in_flight=max(1, round((self.in_flight or 1) * share)))

    def __str__(self) -> str:
        mixed = ", ".join(f"{name} {weight / sum(self.mix.values()):.0%}" for name, weight in self.mix.items())
        if self.rate is not None:
            return f"{self.rate:g} requests a second ({mixed})"
        if self.pause is not None:
            return f"{self.in_flight} conversations, {self.pause:g} s between an answer and the next question ({mixed})"
        return f"{self.in_flight} requests at once ({mixed})"


@frozen
class Arrival:
    """A request that comes at ``seconds``; ``None``: as soon as another one of the closed loop has ended."""

    seconds: float | None
    kind: str
    sample: Sample


def draw(kinds: Mapping[str, Sequence[Sample]], mix: Mapping[str, float], seed: int) -> Iterator[tuple[str, Sample]]:
    """Yield requests for ever: kinds by their weights in ``mix``, and the samples of each kind in turn."""
    generator, names = random.Random(seed), list(mix)
    turns = dict.fromkeys(names, 0)
    while True:
        [kind] = generator.choices(names, [mix[name] for name in names])
        samples = kinds[kind]
        yield kind, samples[turns[kind] % len(samples)]
        turns[kind] += 1


def heard_seconds(sample: Sample, estimate: Estimate) -> float:
    """Return the seconds of sound that a request is answered with."""
    return sum(estimate.stages[name].frame_seconds * visit.prompt for name, visit in sample.items())


@define(eq=False)
class Flight:
    """A request on its way.

    Attributes:
        name: its number.
        arrived, ended: seconds.
        refused: it was not admitted.
        placement: stage to replica, of replicated stages.
        events: ``(seconds, stage, final)`` of what its client read.
        sound: when sound came, and how many seconds of it.
    """

    name: str
    arrival: Arrival
    arrived: float
    ended: float | None = None
    refused: bool = False
    placement: Mapping[str, int] = field(factory=dict)
    events: list[tuple[float, str, bool]] = field(factory=list)
    sound: list[tuple[float, float]] = field(factory=list)
    sample: Sample = field(init=False)
    """Its visits, by stage."""

    def __attrs_post_init__(self) -> None:
        self.sample = self.arrival.sample

    def expected_work(self) -> float:
        """Return what ``balance: cost`` counts: the prompt of its first engine, as it has no text, whose characters the runtime counts."""
        return 1.0 + next((each.prompt for each in self.sample.values() if each.outputs), 0)

    def answering(self, stages: Sequence[str]) -> list[str]:
        """Return those of the stages whose result goes to its client."""
        return [each for each in stages if each in self.sample and CLIENT in self.sample[each].targets]


def under_way(cycles: Sequence[float], conversations: int) -> list[float]:
    """Return when each of so many conversations asks next, if all have been under way for long, in seconds.

    A moment falls into a cycle the more often the longer it is, so the cycle is drawn by its length, and the moment within it at random.

    Args:
        cycles: seconds between two requests of a conversation, one of which is as likely as another.
    """
    generator = random.Random("conversations")
    if not any(cycles):
        return [0.0] * conversations
    return [generator.random() * each for each in generator.choices(cycles, cycles, k=conversations)]
