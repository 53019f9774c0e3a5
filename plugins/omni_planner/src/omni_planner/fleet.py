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
from omni_planner.trials import Load, Settings, Trial, attempt

GROWTH = 1.5
"""The factor between two loads of a cell that are tried, until one misses an objective."""

SMALL_GROWTH = 1.1
"""That factor where a smaller cell says what may be expected: two loads are tried then, mostly."""

ROUNDS = 7
"""Loads of a cell that are tried, at most."""

RUNNING = 128
"""Requests that an engine of a cell may compute together."""

COUNTED = 250, 500
"""Requests of a simulation that count, at least and at most: those of as many seconds as a queue takes to grow past an objective."""

GROWING = 5.0
"""Those seconds, over the limit of the strictest objective."""

LASTING = 10.0
"""Seconds that requests are taken to last until some have been simulated: so long others come before those that count."""

AROUND = 600
"""Requests that come before those that count, at most, and after them."""

KEPT_UP = 0.8
"""The share of requests that end while as many come, at least: with less a queue grows, also where no objective limits what waits in it.
By chance it varies by 0.07.
"""

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
            on_progress(f"cells of {gpus}: {cell.shape}; each bears {_part(load, cell.most)}")
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
        """Return the cell of a shape with the most load; or what it misses, or why it cannot be simulated."""
        whole = per_second(self.load, self.profile, self.config)
        known = max((each.most / each.gpus for each in smaller), default=0.0) * gpus
        hosts = min((_hosts(self.fleet, each.gpus, each.most) for each in smaller), default=self.fleet.hosts)
        step = SMALL_GROWTH if known else GROWTH
        share, missed = min(1.0, known * step or 0.8 / (shape.work * whole)), 1.0 + 1e-9
        reached, problem = None, ""
        for _ in range(ROUNDS):
            is_filled = whole * share * self.lasting <= AROUND  # else requests become more while those come that count
            trial = self.simulated(gpus, shape.settings, share)
            if isinstance(trial, str):
                return trial
            messages = max(share for name, share in trial.shares.items() if name.startswith("messages"))
            if trial.excess or messages > 1 - IDLE or (is_filled and trial.kept_up < KEPT_UP):
                missed = share
                fails = (
                    "misses the objectives even with"
                    if trial.excess
                    else "meets the objectives, but its queues grow, even with"
                )
                problem = f"{fails} {_part(self.load, share)} ({reason(trial)})"
            else:
                reached = Cell(gpus, shape.text, share, trial)
                self.lasting = trial.figures["done"].p95
            below = 0.0 if reached is None else reached.most
            if below and (missed < 1.15 * below or below >= 1.0):
                break
            if below:
                share = min(1.0, below * step if missed > 1.0 else (below + missed) / 2)
                continue
            smaller_share = min(1 / (GROWTH if share < known else step), (1 - 2 * IDLE) / messages)
            share *= smaller_share
            if smaller and _hosts(self.fleet, gpus, share) > hosts:
                bears = f"each bears less than {_part(self.load, missed)}"
                return Worse(shape.text, f"{bears}, so more hosts would be needed; {reason(trial)}")
        return reached or Missed(f"a cell of {gpus} ({shape.text}) {problem}")

    def simulated(self, gpus: int, settings: Settings, share: float) -> Trial | str:
        """Simulate a cell with a part of the load; or return why it cannot be."""
        part = self.load.scaled(share)
        at_once = part.in_flight or 0
        if part.rate is None and part.pause is None:
            part = evolve(part, total=max(part.total, part.in_flight or 0))
        else:
            rate = per_second(part, self.profile, self.config)
            coming = ceil(rate * self.lasting)
            limits = [limit for limit in self.objectives.limits.values() if limit] or [0.0]
            counted = round(min(max(rate * GROWING * min(limits), COUNTED[0]), COUNTED[1]))
            part = evolve(part, total=max(part.total, counted), around=min(AROUND, coming))
            at_once = max(at_once, coming)
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


def _part(load: Load, share: float) -> str:
    part = load.scaled(share)
    return f"{part.rate:.2f} requests a second" if part.rate is not None else f"{part.in_flight} at once"
