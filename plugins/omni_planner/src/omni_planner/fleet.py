"""Plans for many hosts: equal pipelines (*cells*) side by side, each with a coordinator of its own, behind a balancer of requests.

Requests that come at random and are divided at random are random in each part, so one cell is simulated and stands for all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil

from attrs import evolve, frozen

from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_planner.devices import Fleet
from omni_planner.estimate import EstimatedProfile
from omni_planner.objectives import Objectives
from omni_planner.search import per_second
from omni_planner.shapes import Shape, shapes
from omni_planner.trials import Load, Settings, Trial, attempt

GROWTH = 1.5
"""The factor between two loads of a cell that are tried, until one misses an objective."""

SMALL_GROWTH = 1.1
"""That factor where a smaller cell says what may be expected: two loads are tried then, mostly."""

ROUNDS = 7

RUNNING = 128
"""Requests that an engine of a cell may compute together."""


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
        return ceil(1 / self.most - 1e-9)


@frozen
class FleetPlan:
    """A plan for many hosts.

    Attributes:
        cell: of which there are ``cells``, ``hosts`` hosts with them. spare: hosts that may be lost.
        usual: a cell's figures with its part of the load. degraded: after the loss of the spare hosts. cells_tried: other sizes.
    """

    cell: Cell
    cells: int
    hosts: int
    spare: int
    usual: Trial
    degraded: Trial
    cells_tried: Mapping[int, Cell]


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
    found: dict[int, Cell] = {}
    reasons: list[str] = []
    for gpus in (each for each in (1, 2, 4, 8) if each <= fleet.gpus and not fleet.gpus % each):
        known = max((cell.most / cell.gpus for cell in found.values()), default=0.0) * gpus
        cell = _best_cell(config, profile, load, objectives, fleet, gpus, known, reasons)
        if cell is not None:
            found[gpus] = cell
            on_progress(f"cells of {gpus}: {cell.shape}; each bears {_part(load, cell.most)}")
    if not found:
        raise ConfigError("no cell of a host meets the objectives:\n" + "\n".join(list(dict.fromkeys(reasons))[-3:]))

    def hosts(cell: Cell) -> int:
        return ceil(cell.needed() / (fleet.gpus // cell.gpus)) + spare

    best = min(found.values(), key=lambda each: (hosts(each), -each.gpus))
    if hosts(best) > fleet.hosts:
        raise ConfigError(f"{load} needs {hosts(best)} hosts, {spare} of them spare; --devices has {fleet.hosts}")
    each_host = fleet.gpus // best.gpus
    cells = hosts(best) * each_host
    usual, degraded = (
        _trial(config, profile, load, objectives, fleet, best.gpus, best.trial.settings, 1 / count)
        for count in (cells, cells - spare * each_host)
    )
    assert isinstance(usual, Trial)
    assert isinstance(degraded, Trial)
    return FleetPlan(best, cells, hosts(best), spare, usual, degraded, found)


def _best_cell(
    config: PipelineConfig,
    profile: EstimatedProfile,
    load: Load,
    objectives: Objectives,
    fleet: Fleet,
    gpus: int,
    known: float,
    reasons: list[str],
) -> Cell | None:
    """Return the cell of so many GPUs that bears the most; ``None``, and why, if none fits or meets the objectives.

    ``known``: the part of the load that it bears if it is like the smaller ones; 0 if there are none.
    """
    for shape in shapes(profile, config, load.mix, 1.0, gpus):
        most = _most(config, profile, load, objectives, fleet, gpus, shape, known)
        if isinstance(most, Cell):
            return most
        reasons.append(most)
        if "objectives" in most:
            return None
    return None


def _most(
    config: PipelineConfig,
    profile: EstimatedProfile,
    load: Load,
    objectives: Objectives,
    fleet: Fleet,
    gpus: int,
    shape: Shape,
    known: float,
) -> Cell | str:
    whole = per_second(load, profile, config)
    step = SMALL_GROWTH if known else GROWTH
    share, missed = min(1.0, known * step or 0.8 / (shape.work * whole)), 1.0 + 1e-9
    reached: Cell | None = None
    for _ in range(ROUNDS):
        trial = _trial(config, profile, load, objectives, fleet, gpus, shape.settings, share)
        if isinstance(trial, str):
            return trial
        if trial.excess:
            missed = share
        else:
            reached = Cell(gpus, shape.text, share, trial)
        below = 0.0 if reached is None else reached.most
        if below and (missed < 1.15 * below or below >= 1.0):
            break
        share = (
            below * step
            if missed > 1.0
            else (below + missed) / 2
            if below
            else share / (GROWTH if share < known else step)
        )
        share = min(share, 1.0)
    return reached or f"a cell of {gpus} ({shape.text}) misses the objectives even with {_part(load, share)}"


def _trial(
    config: PipelineConfig,
    profile: EstimatedProfile,
    load: Load,
    objectives: Objectives,
    fleet: Fleet,
    gpus: int,
    settings: Settings,
    share: float,
) -> Trial | str:
    part = load.scaled(share)
    part = evolve(part, total=max(part.total, part.in_flight or 0))
    given = dict(settings)
    for stage in config.stages:
        if profile.stages[stage.name].kind == "engine":
            given[f"{stage.name}.factory_args.max_running"] = RUNNING
    limited = evolve(config, max_in_flight=max(config.max_in_flight, 2 * (part.in_flight or 0)))
    memory = [fleet.accelerator.memory] * gpus
    return attempt(limited, given, profile, part, objectives, gpus, gpus=memory)


def _part(load: Load, share: float) -> str:
    part = load.scaled(share)
    return f"{part.rate:.2f} requests a second" if part.rate is not None else f"{part.in_flight} at once"
