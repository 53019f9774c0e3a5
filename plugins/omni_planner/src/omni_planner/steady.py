"""Simulations of a load that goes on: how many requests they have, and whether those in flight become ever more.

The requests of which figures are taken (*counted*) have others before and after them, which keep the pipeline as busy as it is for long.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, sqrt

from attrs import evolve

from omni_planner.trials import Load, Trial

COUNTED = 250, 500
"""Requests of a simulation that count, at least and at most: those of as many seconds as a queue takes to grow past an objective."""

GROWING = 5.0
"""Those seconds, over the limit of the strictest objective."""

LASTING = 10.0
"""Seconds that requests are taken to last until some have been simulated: so long others come before those that count."""

AROUND = 600
"""Requests that come before those that count, at most, and after them."""

LONGER_COUNTED, LONGER_AROUND = 1000, 2000
"""Requests of a longer simulation that count, at most, and before them, and after them."""

CHANCE = 3.0
"""Standard deviations by which the number of requests in flight may grow by chance."""

TOLD = 0.02
"""The growth of a queue, for each request that comes, that a longer simulation tells from chance where it has requests enough."""


def amid(load: Load, rate: float, lasting: float) -> Load:
    """Return a load with as many requests around those that count as come while one lasts. ``rate``: requests a second."""
    return evolve(load, around=min(AROUND, ceil(rate * lasting)))


def short(load: Load, rate: float, lasting: float, limits: Mapping[str, float]) -> Load:
    """Return a load with as many requests as show whether it meets its objectives.

    Args:
        rate: requests a second. lasting: seconds that requests take. limits: of the objectives.
    """
    strictest = min([limit for limit in limits.values() if limit], default=0.0)
    counted = round(min(max(rate * GROWING * strictest, COUNTED[0]), COUNTED[1]))
    return amid(evolve(load, total=max(load.total, counted)), rate, lasting)


def longer(load: Load, before: Trial) -> Load:
    """Return a load with as many requests as tell whether its queue grows. ``before``: a trial of it."""
    counted = ceil(CHANCE * sqrt(2 * before.in_flight) / TOLD)
    return evolve(
        load,
        total=max(before.counted, min(LONGER_COUNTED, counted)),
        around=min(LONGER_AROUND, max(1, ceil(before.coming))),
    )


def grows(trial: Trial) -> bool:
    """Return whether fewer requests have ended than have come by more than chance."""
    return 1 - trial.kept_up > _by_chance(trial)


def is_filled(trial: Trial) -> bool:
    """Return whether as many requests came before those that count as come while one lasts.

    Else those in flight still become more, whether a queue grows or not.
    """
    return trial.coming <= trial.around


def is_certain(trial: Trial) -> bool:
    """Return whether a longer simulation would tell no more of the growth of a queue. That of a closed loop cannot grow."""
    return not trial.around or (is_filled(trial) and (_by_chance(trial) <= TOLD or trial.counted >= LONGER_COUNTED))


def _by_chance(trial: Trial) -> float:
    """Return the growth of a queue, for each request that comes, that may be chance.

    The growth is the difference between the requests in flight at both ends of those that count. In a queue that does not grow each of
    the two numbers varies by the square root of its mean, as that of any requests that come independently of each other.
    """
    return CHANCE * sqrt(2 * trial.in_flight) / max(1, trial.counted)
