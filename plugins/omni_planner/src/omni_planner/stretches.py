"""Long open loops cut into stretches that are simulated side by side, in processes of their own.

Each stretch begins with requests that only warm it up, and goes on with some of the next one, so that those which count meet the same
pipeline as in one simulation of the whole. The requests around each cut are in both of its stretches: where their times differ, the load
remembers more than a warm-up (a queue that grows for hours), and it is simulated as a whole. The cuts depend on the load alone, so the
result is the same for any number of processes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from itertools import pairwise
from multiprocessing import get_context
from typing import Any

from attrs import evolve, frozen

from omni_core.config.schema import PipelineConfig
from omni_planner.children import end_with_parent
from omni_planner.estimate import portable
from omni_planner.profile import CLIENT, Hardware, PipelineProfile
from omni_planner.requests import Arrival, Flight
from omni_planner.simulate import Outcome, simulate

STRETCH = 5000
"""Requests of a stretch that count."""

LEAST = 4 * STRETCH
"""Requests of a load that is cut: a shorter one is simulated before the processes have started."""

BEFORE, AFTER = 500, 300
"""Requests that warm a stretch up, and that follow it. The first half of these is compared with the next stretch."""

TOLERANCE = 0.1
"""The share by which the times of the compared requests may differ, all of them together."""


@frozen
class _Cut:
    """The arrivals of a stretch; those from index ``begin`` to ``end`` count, and ``compared`` after each cut are compared."""

    arrivals: Sequence[Arrival]
    begin: int
    end: int
    compared: int


@frozen
class _Part:
    """A simulated stretch.

    Attributes:
        outcome: with the flights that count. lasted: seconds from its first arrival, warm-up included. first, next: seconds of the first
            requests after the cuts at its begin and its end. is_whole: all that count had ended when the last request came.
    """

    outcome: Outcome
    lasted: float
    first: float
    next: float
    is_whole: bool


def simulate_side_by_side(
    config: PipelineConfig,
    profile: PipelineProfile,
    arrivals: Sequence[Arrival],
    *,
    cores: int | None = None,
    processes: int | None = None,
) -> Outcome:
    """Run a load as :func:`~omni_planner.simulate.simulate` does, in stretches if it is a long open loop in the order of arrival.

    The seconds of processes (:attr:`Outcome.processes`) are those of whole loads only. ``processes``: that simulate at once; by default
    one for each processor.
    """
    cuts = _cuts(arrivals)
    if len(cuts) < 2:
        return simulate(config, profile, arrivals, cores=cores)
    run = partial(_simulated, config, portable(profile), cores)
    workers = min(len(cuts), processes or Hardware.here().cores)
    if workers == 1:
        parts = [run(cut) for cut in cuts]
    else:
        with ProcessPoolExecutor(workers, get_context("spawn"), end_with_parent) as pool:
            parts = list(pool.map(run, cuts))
    return _merged(parts) if _agree(parts) else simulate(config, profile, arrivals, cores=cores)


def _cuts(arrivals: Sequence[Arrival]) -> list[_Cut]:
    times = [each.seconds for each in arrivals if each.seconds is not None]
    if len(arrivals) < LEAST or len(times) < len(arrivals) or times != sorted(times):
        return []
    count = len(arrivals) // STRETCH
    edges = [len(arrivals) * number // count for number in range(count + 1)]
    cuts = []
    for begin, end in pairwise(edges):
        first = max(0, begin - BEFORE)
        cuts.append(_Cut(arrivals[first : end + AFTER], begin - first, end - first, AFTER // 2))
    return cuts


def _simulated(config: PipelineConfig, profile: PipelineProfile, cores: int | None, cut: _Cut) -> _Part:
    found = simulate(config, profile, cut.arrivals, cores=cores)
    counted, after = found.flights[cut.begin : cut.end], found.flights[cut.end :]
    begin, last = cut.arrivals[0].seconds or 0.0, cut.arrivals[-1].seconds or 0.0
    is_whole = not after or all(each.ended is not None and each.ended <= last for each in counted)
    return _Part(
        evolve(found, flights=counted),
        found.seconds - begin,
        _seconds(counted[: cut.compared]) if cut.begin else 0.0,
        _seconds(after[: cut.compared]),
        is_whole,
    )


def _seconds(flights: Sequence[Flight]) -> float:
    return sum((each.ended or each.arrived) - each.arrived for each in flights)


def _agree(parts: Sequence[_Part]) -> bool:
    """Return whether what was simulated on both sides of the cuts took as long on both."""
    before, after = sum(each.next for each in parts), sum(each.first for each in parts)
    return all(each.is_whole for each in parts) and abs(before - after) <= TOLERANCE * before


def _merged(parts: Sequence[_Part]) -> Outcome:
    """Return the flights of all, and shares of the time as those of the stretches on average."""
    flights = [flight for each in parts for flight in each.outcome.flights]
    seconds = max((each.ended or 0.0 for each in flights), default=0.0)
    lasted = sum(each.lasted for each in parts)

    def shares(of: Callable[[Outcome], Mapping[Any, float]]) -> dict[Any, float]:
        """Return means over the time that was simulated, warm-ups included."""
        found: dict[Any, float] = {}
        for outcome in (each.outcome for each in parts):
            for name, share in of(outcome).items():
                found[name] = found.get(name, 0.0) + share * outcome.seconds / lasted
        return found

    busy = shares(lambda each: dict(enumerate(each.busy)))
    messages = shares(lambda each: {CLIENT: each.messages})[CLIENT]
    stages, devices = shares(lambda each: each.stages), shares(lambda each: each.devices)
    return Outcome(flights, seconds, [*busy.values()], stages, devices, messages)
