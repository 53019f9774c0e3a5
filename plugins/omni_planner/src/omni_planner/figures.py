"""The figures of a load: first outputs, gaps in the sound, completion; and objectives for them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from math import floor

from attrs import frozen

from omni_core.api import ConfigError, Interface, did_you_mean
from omni_planner.estimate import Estimate
from omni_planner.load import Flight

FIGURES = {
    "ttft": "first text",
    "ttfa": "first sound",
    "gap": "seconds without sound while it plays",
    "done": "completion",
}
"""The figures that may be limited, by the name of ``--slo``."""

Sound = Sequence[tuple[float, float]]
"""The sound of a request: at what time each piece of it came, and how many seconds it lasts."""


def played(sound: Sound) -> float:
    """Return when a client that begins to play at the first sound has played all; 0 without any."""
    end = 0.0
    for when, seconds in sound:
        end = max(end, when) + seconds
    return end


def late_seconds(sound: Sound) -> float:
    """Return for how long a client that begins to play at the first sound has none, until the last has come."""
    late = played(sound) - sum(seconds for _, seconds in sound) - sound[0][0] if sound else 0.0
    return late if late > 1e-6 else 0.0  # the rounding of the sums


@frozen
class Quantiles:
    """Seconds that half of the requests took at most, and 95 of 100."""

    p50: float
    p95: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Quantiles:
        """Return those of a sample."""
        ordered = sorted(values)

        def at(share: float) -> float:
            place = share * (len(ordered) - 1)
            before = floor(place)
            after = min(before + 1, len(ordered) - 1)
            return ordered[before] + (place - before) * (ordered[after] - ordered[before])

        return cls(at(0.5), at(0.95))


def first_outputs(flights: Iterable[Flight]) -> dict[str, Quantiles]:
    """Return the times to the first output of each terminal stage, by its name."""
    found: dict[str, list[float]] = {}
    for flight in flights:
        first: dict[str, float] = {}
        for when, stage, _ in flight.events:
            first.setdefault(stage, when - flight.arrived)
        for stage, seconds in first.items():
            found.setdefault(stage, []).append(seconds)
    return {stage: Quantiles.of(values) for stage, values in found.items()}


def figures_of(
    flights: Sequence[Flight], estimate: Estimate, interface: Interface | None = None
) -> dict[str, Quantiles]:
    """Return the figures of the requests that ended, by their names in :data:`FIGURES`.

    Args:
        interface: of the pipeline; one that answers in no text has no first text.
    """
    ended = [each for each in flights if each.ended is not None and not each.refused]
    found: dict[str, Quantiles] = {}
    for stage, first in first_outputs(ended).items():
        if estimate.stages[stage].frame_seconds > 0:
            found.setdefault("ttfa", first)
        elif interface is None or "text" in interface.outputs:
            found.setdefault("ttft", first)
    heard = [late_seconds(each.sound) for each in ended if each.sound]
    if heard:
        found["gap"] = Quantiles.of(heard)
    if ended:
        found["done"] = Quantiles.of((each.ended or 0.0) - each.arrived for each in ended)
    return found


@frozen
class Objectives:
    """The most that 95 of 100 requests may take, in seconds by figure; the first one is what a search improves further."""

    limits: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Objectives:
        """Parse ``ttfa=0.5,gap=0``.

        Raises:
            ConfigError: a name is unknown, or a limit is no number of seconds.
        """
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            if name not in FIGURES:
                known = "; ".join(f"{key}: {what}" for key, what in FIGURES.items())
                raise ConfigError(
                    f"--slo {text}: there is no figure {name!r}{did_you_mean(name, FIGURES)}; there are {known}"
                )
            try:
                limits[name] = float(value.removesuffix("s"))
            except ValueError:
                limits[name] = -1.0
            if not 0 <= limits[name] < float("inf"):
                raise ConfigError(f"--slo {text}: {name} must be a number of seconds of at least 0")
        return cls(limits)

    @property
    def first(self) -> str:
        return next(iter(self.limits))

    def excess(self, figures: Mapping[str, Quantiles]) -> float:
        """Return by how much limits are missed, as a sum of shares; 0: all are met. A gap counts in seconds."""
        found = 0.0
        for name, limit in self.limits.items():
            if name in figures:
                over = figures[name].p95 - limit
                found += max(0.0, over / limit if limit else over)
        return found

    def missed(self, figures: Mapping[str, Quantiles]) -> list[str]:
        """Return the figures that miss their limits."""
        return [name for name, limit in self.limits.items() if name in figures and figures[name].p95 > limit]
