"""The arrivals of requests: at random, in bursts, or as they were recorded."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import accumulate, islice
from typing import Protocol

from attrs import frozen

from omni_core.errors import ConfigError
from omni_planner.profile import Sample
from omni_planner.requests import Arrival


class Pattern(Protocol):
    """The times between arrivals of an open loop."""

    def gaps(self, rate: float, generator: random.Random) -> Iterator[float]:
        """Yield seconds between arrivals for ever, of which there are ``rate`` a second on average."""


@frozen
class Poisson:
    """Arrivals that do not depend on each other."""

    def gaps(self, rate: float, generator: random.Random) -> Iterator[float]:
        while True:
            yield generator.expovariate(rate)

    def __str__(self) -> str:
        return ""


@frozen
class Gamma:
    """Times between arrivals that vary more, or less, than at random.

    Attributes:
        variation: their standard deviation over their mean: 1 is :class:`Poisson`, 3 is bursty, 0.3 nearly regular.
    """

    variation: float

    def gaps(self, rate: float, generator: random.Random) -> Iterator[float]:
        shape = 1.0 / self.variation**2
        while True:
            yield generator.gammavariate(shape, 1.0 / (rate * shape))

    def __str__(self) -> str:
        return f" with a coefficient of variation of {self.variation:g}"


@frozen
class Bursts:
    """Phases with requests at random and phases without any, whose lengths are drawn from exponential distributions.

    Attributes:
        on, off: mean seconds of a phase.
    """

    on: float
    off: float

    def gaps(self, rate: float, generator: random.Random) -> Iterator[float]:
        inside = rate * (self.on + self.off) / self.on
        left = generator.expovariate(1.0 / self.on)
        while True:
            gap, pause = generator.expovariate(inside), 0.0
            while gap > left:  # the rest of a gap goes on in the next phase: without memory, as arrivals at random are
                gap -= left
                pause += left + generator.expovariate(1.0 / self.off)
                left = generator.expovariate(1.0 / self.on)
            left -= gap
            yield pause + gap

    def __str__(self) -> str:
        return f" in bursts of {self.on:g} s with pauses of {self.off:g} s"


def pattern_of(text: str) -> Pattern:
    """Parse ``poisson``, ``gamma:VARIATION`` or ``bursts:ON,OFF``.

    Raises:
        ConfigError: it is none of them.
    """
    name, _, rest = text.partition(":")
    try:
        numbers = [float(each) for each in rest.split(",")] if rest else []
        if all(0 < each < float("inf") for each in numbers):
            if name == "poisson" and not numbers:
                return Poisson()
            if name == "gamma" and len(numbers) == 1:
                return Gamma(*numbers)
            if name == "bursts" and len(numbers) == 2:
                return Bursts(*numbers)
    except ValueError:
        pass
    raise ConfigError(
        f"arrivals {text!r}: must be poisson, gamma:VARIATION (such as gamma:3) or bursts:ON,OFF in seconds (such as bursts:2,8)"
    )


def open_loop(
    requests: Iterator[tuple[str, Sample]], rate: float, seconds: float, seed: int, pattern: Pattern | None = None
) -> list[Arrival]:
    """Return requests that come by themselves, ``rate`` a second on average, for so many seconds."""
    # Not the numbers of `draw`: the kind of a request would follow from the time since the last one.
    gaps = (pattern or Poisson()).gaps(rate, random.Random(f"arrivals {seed}"))
    arrivals: list[Arrival] = []
    for now in accumulate(gaps):
        if now >= seconds:
            return arrivals
        arrivals.append(Arrival(now, *next(requests)))
    return arrivals


def amid_others(
    requests: Iterator[tuple[str, Sample]], rate: float, total: int, around: int, seed: int, pattern: Pattern
) -> list[Arrival]:
    """Return ``total`` requests that come by themselves with ``around`` before and after them.

    The times of all are stretched so that the ``total`` come at just the rate: of few hundred it would be off by a tenth by chance.
    """
    gaps = pattern.gaps(rate, random.Random(f"arrivals {seed}"))
    times = list(islice(accumulate(gaps), total + 2 * around))
    stretch = total / rate / (times[around + total - 1] - (times[around - 1] if around else 0.0))
    return [Arrival(each * stretch, *next(requests)) for each in times]
