"""Plans for many hosts: equal pipelines (*cells*) side by side, each with a coordinator of its own, behind a balancer of requests.

Requests that come at random and are divided at random are random in each part, so one cell is simulated and stands for all.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from math import ceil

from attrs import define, evolve, frozen

from omni_core.api import ConfigError
from omni_planner.devices import Fleet
from omni_planner.load import Load
from omni_planner.search import LONGER
from omni_planner.shapes import Shape, demands, shapes
from omni_planner.trials import Trial, Trials, gpus_text

COUNTED = 250
"""Requests of a simulation that count, at least."""

CLOSE = 1.1
"""The factor between a load that a cell bears and one that it does not bear, below which no load in between is tried."""

GROWTH = 1.5
"""The factor between two loads that are tried, until one is too much."""

LEAST = 12
"""Loads that are tried of one shape, at most."""

FAILED = 5
"""Longer simulations that a size of cells may fail, each with a tenth less load."""

RUNNING = 128
"""Requests that an engine of a cell may compute together."""


@frozen
class Cell:
    """A pipeline on some GPUs of a host. ``bears``: the part of the whole load that it bears with the objectives met."""

    gpus: int
    shape: Shape
    bears: float
    trial: Trial

    @property
    def needed(self) -> int:
        """The number of such cells for the whole load."""
        return ceil(1 / self.bears - 1e-9)


@frozen
class FleetPlan:
    """A plan for many hosts.

    Attributes:
        cell: of which there are ``cells`` on ``hosts`` hosts.
        spare: hosts that may be lost.
        tried: the best cells, by their GPUs.
        usual: a cell with its part of the load.
        degraded: after the loss of the spare hosts.
    """

    cell: Cell
    cells: int
    hosts: int
    spare: int
    usual: Trial
    degraded: Trial
    tried: Mapping[int, Cell]


def plan_fleet(
    trials: Trials, load: Load, fleet: Fleet, spare: int = 1, on_progress: Callable[[str], None] = lambda text: None
) -> FleetPlan:
    """Find the cells for a load that take the fewest hosts.

    Args:
        spare: hosts that may be lost without missing an objective.

    Raises:
        ConfigError: the objectives cannot be met, or not with so many hosts.
    """
    cells = _Cells(_roomy(trials, load), load)
    found, failed = dict[int, Cell](), Counter[int]()
    reasons: list[str] = []
    for gpus in (each for each in (1, 2, 4, 8) if each <= fleet.gpus and not fleet.gpus % each):
        known = max((each.bears / each.gpus for each in found.values()), default=0.0) * gpus
        cell = cells.best(gpus, known, reasons)
        if cell is not None:
            found[gpus] = cell
            on_progress(f"cells of {gpus_text(gpus)}: {cell.shape.text}; {cell.needed} would do; {cell.trial.reason}")
    while found:
        best = min(found.values(), key=lambda each: (_hosts(fleet, each), -each.gpus))
        hosts = _hosts(fleet, best)
        part = _part(fleet, best, hosts)
        degraded = cells.trial(best.gpus, best.shape, part, LONGER)
        if isinstance(degraded, Trial) and not degraded.excess:
            break
        failed[best.gpus] += 1
        found[best.gpus] = evolve(best, bears=part / CLOSE)  # it was too much for long
        if failed[best.gpus] == FAILED:
            del found[best.gpus]
            reasons.append(
                f"cells of {gpus_text(best.gpus)} ({best.shape.text}): they meet the objectives for a while only"
            )
    else:
        raise ConfigError(
            "no cell of a host bears the load; loosen --slo, or give hosts of more or larger GPUs:\n"
            + "\n".join(dict.fromkeys(reasons))
        )
    total = hosts + spare
    if total > fleet.hosts:
        raise ConfigError(f"{load} needs {total} hosts, {spare} of them spare; --devices has {fleet.hosts}")
    usual = cells.trial(best.gpus, best.shape, _part(fleet, best, total), LONGER) if spare else degraded
    assert isinstance(usual, Trial)
    return FleetPlan(best, total * (fleet.gpus // best.gpus), total, spare, usual, degraded, found)


def _roomy(trials: Trials, load: Load) -> Trials:
    """Return trials of the pipeline with room for the requests of a cell, which is larger than the config may have been made for."""
    config, kinds = trials.config, trials.estimate.stages
    stages = [
        evolve(each, factory_args={**each.factory_args, "max_running": RUNNING})
        if kinds[each.name].kind == "engine"
        else each
        for each in config.stages
    ]
    return evolve(trials, config=evolve(config, stages=stages, max_in_flight=10**6))


def _hosts(fleet: Fleet, cell: Cell) -> int:
    """Return the number of hosts with such cells, without spare ones."""
    return ceil(cell.needed / (fleet.gpus // cell.gpus))


def _part(fleet: Fleet, cell: Cell, hosts: int) -> float:
    """Return a cell's part of the load on so many hosts."""
    return 1 / (hosts * (fleet.gpus // cell.gpus))


@define
class _Cells:
    """Simulates cells with parts of a load."""

    trials: Trials
    load: Load

    def best(self, gpus: int, known: float, reasons: list[str]) -> Cell | None:
        """Return the cell of the least busy shape; ``None``, and why, if none fits or bears anything.

        Args:
            known: the part of the load that it may be expected to bear; 0: nothing is known.
        """
        trials = self.trials
        alone = sum(demands(trials.estimate, trials.config, self.load.mix).values())
        whole = self.load.per_second(trials.estimate, alone)
        for shape in shapes(trials.estimate, trials.config, self.load.mix, 1.0, gpus):
            found = self._most(gpus, shape, min(1.0, known or 0.8 / (shape.work * whole)))
            if isinstance(found, Cell):
                return found
            reasons.append(f"cells of {gpus_text(gpus)} ({shape.text}): {found}")
            if found.startswith("misses"):
                return None
        return None

    def _most(self, gpus: int, shape: Shape, share: float) -> Cell | str:
        """Return the cell of a shape with the most load; or why it bears none. ``share``: the part of the load to try first."""
        bears, missed = None, 2.0
        problem = ""
        for _ in range(LEAST):
            trial = self.trial(gpus, shape, share)
            if isinstance(trial, str):
                return trial
            if trial.excess:
                missed = share
                what = "its queues grow" if trial.is_growing else "misses the objectives"
                problem = f"misses the load: {what} even with {_shown(self.load.scaled(share))} ({trial.reason})"
                share = share / GROWTH if bears is None else (bears.bears + share) / 2
            else:
                bears = Cell(gpus, shape, share, trial)
                share = min(1.0, share * GROWTH if missed > 1.0 else (share + missed) / 2)
            if bears is not None and (bears.bears == 1.0 or missed < CLOSE * bears.bears):
                break
        return problem if bears is None else bears

    def trial(self, gpus: int, shape: Shape, share: float, total: int = COUNTED) -> Trial | str:
        """Simulate a cell with a part of the load."""
        part = self.load.scaled(share)
        return self.trials.of(shape.settings, gpus, evolve(part, total=max(part.total, total)))


def _shown(part: Load) -> str:
    return f"{part.rate:.2f} requests a second" if part.rate is not None else f"{part.in_flight} at once"
