"""Plans for many hosts: equal pipelines (*cells*) side by side, each with a coordinator of its own, behind a balancer of requests.

Requests that come at random and are divided at random are random in each part, so one cell is simulated and stands for all: a part of its
load, with as many requests before and after it as keep it as busy as it always is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import ceil

from attrs import define, evolve, frozen

from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_planner.devices import Fleet
from omni_planner.estimate import EstimatedProfile
from omni_planner.objectives import Objectives
from omni_planner.search import per_second, reason
from omni_planner.shapes import Shape, shapes
from omni_planner.steady import LASTING, grows, is_certain, is_filled, longer, short
from omni_planner.trials import Load, Settings, Trial, attempt

GROWTH = 1.5
"""The factor between two loads of a cell that are tried, until one misses an objective."""

SMALL_GROWTH = 1.1
"""That factor where a smaller cell says what may be expected: two loads are tried then, mostly."""

CLOSE = 1.15
"""The factor between a load that a cell bears and one that it does not bear, below which no load in between is tried."""

ALONE = 0.05
"""Requests in flight on average with which 95 of 100 find none before them, so that less load makes none of these faster."""

RUNNING = 128
"""Requests that an engine of a cell may compute together."""

IDLE = 0.02
"""The share of the time that a thread which sends and receives has nothing to do, at least: with less its queue grows."""


@frozen
class Cell:
    """A pipeline on some GPUs of a host, and the most that it bears.

    Attributes:
        gpus: of it. shape: in words. most: the part of the whole load that it bears with the objectives met. trial: at that load.
    """

    gpus: int
    shape: str
    most: float
    trial: Trial

    def needed(self) -> int:
        """Return the number of such cells for the whole load."""
        return _needed(self.most)


@frozen
class Worse:
    """A cell of a size that needs more hosts than another size. ``shape``: in words. ``text``: what is known of it."""

    shape: str
    text: str


@frozen
class Missed:
    """A size of cells of which none bears the load. ``text``: why, with the least load that was simulated."""

    text: str


@frozen
class FleetPlan:
    """A plan for many hosts.

    Attributes:
        cell: of which there are ``cells``, ``hosts`` hosts with them. spare: hosts that may be lost.
        usual: a cell's figures with its part of the load. degraded: after the loss of the spare hosts. cells_tried: by their GPUs.
        worse: by GPUs, cells that were given up.
    """

    cell: Cell
    cells: int
    hosts: int
    spare: int
    usual: Trial
    degraded: Trial
    cells_tried: Mapping[int, Cell]
    worse: Mapping[int, Worse]


def plan_fleet(
    config: PipelineConfig,
    profile: EstimatedProfile,
    load: Load,
    objectives: Objectives,
    fleet: Fleet,
    spare: int = 1,
    on_progress: Callable[[str], None] = lambda text: None,
) -> FleetPlan:
    """Find the cells for a load that take the fewest GPUs.

    Args:
        spare: hosts that may be lost without missing an objective.

    Raises:
        ConfigError: the objectives cannot be met, or not with so many hosts.
    """
    cells, found = _Cells(config, profile, load, objectives, fleet), dict[int, Cell]()
    worse, reasons = dict[int, Worse](), list[str]()
    for gpus in (each for each in (1, 2, 4, 8) if each <= fleet.gpus and not fleet.gpus % each):
        cell = cells.best(gpus, list(found.values()), reasons)
        if isinstance(cell, Cell):
            found[gpus] = cell
            on_progress(f"cells of {gpus}: {cell.shape}; each bears {_part(load.scaled(cell.most))}")
        elif cell is not None:
            worse[gpus] = cell
            on_progress(f"cells of {gpus}: {cell.shape}; {cell.text}")
    if not found:
        raise ConfigError(
            "no cell of a host bears the load; loosen --slo, or give hosts of more or larger GPUs:\n"
            + "\n".join(list(dict.fromkeys(reasons))[-3:])
        )

    best = min(found.values(), key=lambda each: (_hosts(fleet, each.gpus, each.most), -each.gpus))
    hosts, each_host = _hosts(fleet, best.gpus, best.most) + spare, fleet.gpus // best.gpus
    if hosts > fleet.hosts:
        raise ConfigError(f"{load} needs {hosts} hosts, {spare} of them spare; --devices has {fleet.hosts}")
    number = hosts * each_host
    usual, degraded = (
        cells.simulated(best.gpus, best.trial.settings, 1 / count) for count in (number, number - spare * each_host)
    )
    assert isinstance(usual, Trial)
    assert isinstance(degraded, Trial)
    return FleetPlan(best, number, hosts, spare, usual, degraded, found, worse)


@define
class _Cells:
    """Simulates cells with parts of a load. ``lasting``: the seconds that requests take in the last trial that met the objectives."""

    config: PipelineConfig
    profile: EstimatedProfile
    load: Load
    objectives: Objectives
    fleet: Fleet
    lasting: float = LASTING

    def best(self, gpus: int, smaller: Sequence[Cell], reasons: list[str]) -> Cell | Worse | None:
        """Return the cell of so many GPUs that bears the most; ``None``, and why, if none fits or meets the objectives.

        Args:
            smaller: the cells of fewer GPUs.
        """
        for shape in shapes(self.profile, self.config, self.load.mix, 1.0, gpus):
            most = self._most(gpus, shape, smaller)
            if isinstance(most, Cell | Worse):
                return most
            reasons.append(most.text if isinstance(most, Missed) else most)
            if isinstance(most, Missed):
                return None
        return None

    def _most(self, gpus: int, shape: Shape, smaller: Sequence[Cell]) -> Cell | Worse | Missed | str:
        """Return the cell of a shape with the most load; or what it misses, or why it cannot be simulated.

        Loads become more until one is too much or the whole is borne, or fewer until one is borne or requests are alone; then those in
        between are halved. So the search ends by itself.
        """
        whole = per_second(self.load, self.profile, self.config)
        known = max((each.most / each.gpus for each in smaller), default=0.0) * gpus
        hosts = min((_hosts(self.fleet, each.gpus, each.most) for each in smaller), default=self.fleet.hosts)
        step = shrink = SMALL_GROWTH if known else GROWTH
        share, missed = min(1.0, known * step or 0.8 / (shape.work * whole)), 1.0 + 1e-9
        reached: Cell | None = None
        while True:
            judged = self._judged(gpus, shape.settings, share)
            if isinstance(judged, str):
                return judged
            trial, problem = judged
            if problem:
                missed = share
            else:
                reached = Cell(gpus, shape.text, share, trial)
                self.lasting = trial.figures["done"].p95
            if reached is not None:
                if reached.most < 1.0 and missed >= CLOSE * reached.most:
                    share = min(1.0, share * step) if missed > 1.0 else (reached.most + missed) / 2
                    continue
                if is_certain(reached.trial):
                    return reached
                judged = self._judged(gpus, shape.settings, reached.most, reached.trial)
                if isinstance(judged, str):
                    return judged
                trial, problem = judged
                if not problem:
                    return evolve(reached, trial=trial)
                share = missed = reached.most
                reached, shrink = None, SMALL_GROWTH
            part = self.load.scaled(share)
            if trial.in_flight <= ALONE or part.in_flight == 1:
                return Missed(f"a cell of {gpus} ({shape.text}) {problem} even with {_part(part)} ({reason(trial)})")
            share *= min(1 / (max(shrink, GROWTH) if share < known else shrink), (1 - 2 * IDLE) / _messages(trial))
            shrink *= GROWTH
            if smaller and _hosts(self.fleet, gpus, share) > hosts:
                bears = f"each bears less than {_part(self.load.scaled(missed))}"
                return Worse(shape.text, f"{bears}, so more hosts would be needed; {reason(trial)}")

    def _judged(
        self, gpus: int, settings: Settings, share: float, before: Trial | None = None
    ) -> tuple[Trial, str] | str:
        """Simulate a cell with a part of the load; return that and why the cell does not bear it, if so; or why it cannot be simulated.

        Args:
            before: a trial of the same, after which as many requests are simulated as tell whether the queue grows.
        """
        trial = self.simulated(gpus, settings, share, before)
        if isinstance(trial, str):
            return trial
        if trial.excess:
            return trial, "misses the objectives"
        if _messages(trial) <= 1 - IDLE:
            if not grows(trial):
                return trial, ""
            if before is None and not is_filled(trial):
                return self._judged(gpus, settings, share, trial)
        return trial, "meets the objectives, but its queues grow,"

    def simulated(self, gpus: int, settings: Settings, share: float, before: Trial | None = None) -> Trial | str:
        """Simulate a cell with a part of the load; or return why it cannot be. ``before``: see :meth:`_judged`."""
        part = self.load.scaled(share)
        at_once = part.in_flight or 0
        if part.rate is None and part.pause is None:
            part = evolve(part, total=max(part.total, part.in_flight or 0))
        else:
            rate = per_second(part, self.profile, self.config)
            if before is None:
                part = short(part, rate, self.lasting, self.objectives.limits)
            else:
                part = longer(part, before)
            at_once = max(at_once, ceil(rate * self.lasting), ceil(before.coming) if before is not None else 0)
        given = dict(settings)
        for stage in self.config.stages:
            if self.profile.stages[stage.name].kind == "engine":
                given[f"{stage.name}.factory_args.max_running"] = RUNNING
        limited = evolve(self.config, max_in_flight=max(self.config.max_in_flight, 2 * at_once))
        memory = [self.fleet.accelerator.memory] * gpus
        return attempt(limited, given, self.profile, part, self.objectives, gpus, gpus=memory)


def _needed(most: float) -> int:
    """Return the number of cells of which each bears ``most`` of the load."""
    return ceil(1 / most - 1e-9)


def _hosts(fleet: Fleet, gpus: int, most: float) -> int:
    """Return the number of hosts with such cells, without spare ones."""
    return ceil(_needed(most) / (fleet.gpus // gpus))


def _messages(trial: Trial) -> float:
    """Return the share of the time in which the busiest thread sends and receives."""
    return max(share for name, share in trial.shares.items() if name.startswith("messages"))


def _part(part: Load) -> str:
    return f"{part.rate:.2f} requests a second" if part.rate is not None else f"{part.in_flight} at once"
