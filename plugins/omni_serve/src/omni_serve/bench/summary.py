"""Summarise a run of many requests: percentiles, throughput, errors by class, and goodput under objectives."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from attrs import asdict, define, frozen

from omni_core.errors import ConfigError, did_you_mean
from omni_serve.bench.timeline import MEASURES, Timeline

_ROUNDING = 1e-9
"""Differences of times are not exact: a pause of this many seconds is none."""


@frozen
class Objectives:
    """Upper limits on measures of a request, such as ``ttfa=0.5,gap=0``."""

    limits: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Objectives:
        """Read ``NAME=SECONDS,...``.

        Raises:
            ConfigError: an unknown name, or not a number.
        """
        limits = {}
        for each in filter(None, (part.strip() for part in text.split(","))):
            name, equals, value = each.partition("=")
            if name not in MEASURES:
                known = ", ".join(MEASURES)
                raise ConfigError(f"--slo {name}: no such measure{did_you_mean(name, MEASURES)}; there are {known}")
            try:
                limits[name] = float(value)
            except ValueError:
                raise ConfigError(f"--slo {each}: must be {name}=NUMBER") from None
            if not equals or not limits[name] >= 0:
                raise ConfigError(f"--slo {each}: must be a number from 0")
        return cls(limits)

    def met(self, timeline: Timeline) -> bool:
        """Return whether a request succeeded within the limits. A measure that it does not have, as sound in a text, is no miss."""
        if timeline.error is not None or timeline.ended is None:
            return False
        values = {name: timeline.measure(name) for name in self.limits}
        return all(value is None or value <= self.limits[name] + _ROUNDING for name, value in values.items())


@frozen
class Spread:
    """Percentiles of a measure."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread | None:
        """Return those of some values, between which it interpolates; ``None`` of none."""
        if not values:
            return None
        p50, p90, p99 = (float(each) for each in np.percentile(values, [50, 90, 99]))
        return cls(len(values), float(np.mean(values)), p50, p90, p99, max(values))


@define
class Summary:
    """One run.

    Attributes:
        load: such as "concurrency 4". seconds: from the first request to the last end.
        sent, succeeded: requests. errors: failed ones by class.
        spreads: by measure, of those that succeeded; ``chunk_gap`` is over all pieces of all of them.
        delayed: requests with a pause. late: all their late seconds. sound: seconds of it in all answers.
        requests_per_second, sound_per_second, tokens_per_second: throughput of those that succeeded.
        good: requests within the objectives. goodput: of them per second.
        client_lag: by how many seconds the client at worst sent a request too late.
    """

    load: str
    seconds: float
    sent: int
    succeeded: int
    errors: dict[str, int]
    spreads: dict[str, Spread]
    delayed: int
    late: float
    sound: float
    requests_per_second: float
    sound_per_second: float
    tokens_per_second: float
    good: int
    goodput: float
    client_lag: float = 0.0

    def as_data(self) -> dict[str, Any]:
        """Return plain data."""
        return asdict(self)


def summarize(
    load: str, timelines: Iterable[Timeline], seconds: float, objectives: Objectives, client_lag: float = 0.0
) -> Summary:
    """Return the summary of requests that took ``seconds`` together."""
    timelines = list(timelines)
    fine = [each for each in timelines if each.error is None]
    values = {name: [each.measure(name) for each in fine] for name in MEASURES}
    numbers = {name: [each for each in found if each is not None] for name, found in values.items()}
    numbers["chunk_gap"] = [gap for each in fine for gap in each.chunk_gaps]
    spreads = {name: Spread.of(found) for name, found in numbers.items()}
    sound, good = sum(each.sound for each in fine), sum(map(objectives.met, fine))
    per_second = 1 / seconds if seconds > 0 else 0.0
    return Summary(
        load=load,
        seconds=seconds,
        sent=len(timelines),
        succeeded=len(fine),
        errors=dict(Counter(each.error for each in timelines if each.error is not None).most_common()),
        spreads={name: spread for name, spread in spreads.items() if spread is not None},
        delayed=sum(1 for each in fine if (each.late or 0.0) > _ROUNDING),
        late=sum(each.late or 0.0 for each in fine),
        sound=sound,
        requests_per_second=len(fine) * per_second,
        sound_per_second=sound * per_second,
        tokens_per_second=sum(each.tokens or 0 for each in fine) * per_second,
        good=good,
        goodput=good * per_second,
        client_lag=client_lag,
    )
