"""Plans for many hosts: equal pipelines (*cells*) side by side, each with a coordinator of its own, behind a balancer of requests.

Requests that come at random and are divided at random are random in each part, so one cell is simulated and stands for all: a part of its
load, with as many requests before and after it as keep it as busy as it always is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import ceil, log

from attrs import define, evolve, field, frozen

from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_planner.ahead import Ahead, Attempt
from omni_planner.devices import Fleet
from omni_planner.estimate import EstimatedProfile
from omni_planner.objectives import Objectives
from omni_planner.search import per_second, reason
from omni_planner.shapes import Shape, shapes
from omni_planner.steady import LASTING, grows, is_certain, is_filled, longer, short
from omni_planner.trials import Load, Settings, Trial

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
        gpus: of it. shape: where its stages are. most: the part of the whole load that it bears with the objectives met, by short
            simulations: it may be too much, mostly by less than a tenth. lasting: seconds of a request there, rounded up.
        part: of the load, with which ``trial`` was simulated. is_settled: as many requests were simulated then as tell whether its queue
            grows.
    """

    gpus: int
    shape: Shape
    most: float
    lasting: float
    part: float
    trial: Trial
    is_settled: bool = False

    @property
    def bears(self) -> float:
        """The part of the load that it bears for long, if that is known; else ``most``."""
        return self.part if self.is_settled else self.most

    def needed(self) -> int:
        """Return the number of such cells for the whole load."""
        return _needed(self.bears)


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
    with Ahead(profile, objectives) as trials:
        return _planned(_Cells(config, profile, load, objectives, fleet, spare, trials), on_progress)


def _planned(cells: _Cells, on_progress: Callable[[str], None]) -> FleetPlan:
    """Find the most that cells of each size bear, then settle the one of which the fewest hosts are needed, until it stays that."""
    fleet, load, found, worse, reasons = cells.fleet, cells.load, cells.found, dict[int, Worse](), list[str]()

    def take(gpus: int, cell: Cell | Worse | None) -> None:
        found.pop(gpus, None)
        if isinstance(cell, Cell):
            found[gpus] = cell
            again = ", in a longer simulation too" if cell.is_settled else ""
            on_progress(f"cells of {gpus}: {cell.shape.text}; each bears {_part(load.scaled(cell.part))}{again}")
        elif cell is not None:
            worse[gpus] = cell
            on_progress(f"cells of {gpus}: {cell.shape}; {cell.text}")

    for gpus in cells.sizes():
        take(gpus, cells.best(gpus, reasons))
    while found and not (best := cells.fewest()).is_settled:
        take(best.gpus, cells.settled(best, reasons))
        if best.gpus not in found or cells.hosts(found[best.gpus]) > cells.hosts(best):
            # others were given up by comparison with it
            for gpus in sorted(worse.keys() - {best.gpus}):
                del worse[gpus]
                take(gpus, cells.best(gpus, reasons))
    if not found:
        raise ConfigError(
            "no cell of a host bears the load; loosen --slo, or give hosts of more or larger GPUs:\n"
            + "\n".join(list(dict.fromkeys(reasons))[-3:])
        )

    best = cells.fewest()
    hosts = cells.hosts(best) + cells.spare
    if hosts > fleet.hosts:
        raise ConfigError(f"{load} needs {hosts} hosts, {cells.spare} of them spare; --devices has {fleet.hosts}")
    planned = cells.planned(best.gpus, best.shape, best.most, best.lasting)
    is_known = best.part == cells.degraded(best.gpus, best.most)
    cells.trials.expect([] if is_known else planned[1:])
    usual = cells.trials.trial(planned[0]) if cells.spare else None
    degraded = best.trial if is_known else cells.trials.trial(planned[1])
    usual = degraded if usual is None else usual
    assert isinstance(usual, Trial)
    assert isinstance(degraded, Trial)
    number = hosts * (fleet.gpus // best.gpus)
    ordered, given_up = dict(sorted(found.items())), dict(sorted(worse.items()))
    return FleetPlan(best, number, hosts, cells.spare, usual, degraded, ordered, given_up)


@define
class _Cells:
    """Simulates cells with parts of a load.

    Attributes:
        found: the best cells so far, by their GPUs.
        lasting: seconds that requests take: those of the smaller cell, or without one of the first trial, and longer ones of a load that is
            borne. They seldom change within a size, so what is begun ahead is mostly what is asked for.
    """

    config: PipelineConfig
    profile: EstimatedProfile
    load: Load
    objectives: Objectives
    fleet: Fleet
    spare: int
    trials: Ahead
    found: dict[int, Cell] = field(factory=dict)
    lasting: float = LASTING
    _is_first: bool = True
    _ranked: dict[int, list[Shape]] = field(factory=dict)

    def sizes(self) -> list[int]:
        """Return the GPUs of a cell that divide a host."""
        return [each for each in (1, 2, 4, 8) if each <= self.fleet.gpus and not self.fleet.gpus % each]

    def fewest(self) -> Cell:
        """Return the cell of which the fewest hosts are needed."""
        return min(self.found.values(), key=lambda each: (self.hosts(each), -each.gpus))

    def hosts(self, cell: Cell) -> int:
        """Return the number of hosts with such cells, without spare ones."""
        return _hosts(self.fleet, cell.gpus, cell.most)

    def usual(self, gpus: int, most: float) -> float:
        """Return a cell's part of the load on the hosts that are needed and the spare ones. ``most``: that it bears."""
        return 1 / ((_hosts(self.fleet, gpus, most) + self.spare) * (self.fleet.gpus // gpus))

    def degraded(self, gpus: int, most: float) -> float:
        """Return the same without the spare hosts."""
        return 1 / (_hosts(self.fleet, gpus, most) * (self.fleet.gpus // gpus))

    def planned(self, gpus: int, shape: Shape, most: float, lasting: float) -> list[Attempt]:
        """Return the trials of a plan with cells that bear ``most``: usual and degraded."""
        shares = self.usual(gpus, most), self.degraded(gpus, most)
        return [self._attempt(gpus, shape.settings, share, lasting=lasting) for share in shares]

    def best(self, gpus: int, reasons: list[str], after: Shape | None = None) -> Cell | Worse | None:
        """Return the cell of so many GPUs that bears the most; ``None``, and why, if none fits or meets the objectives.

        Args:
            after: a shape that cannot be simulated, nor can those before it.
        """
        smaller = self._smaller(gpus)
        self._is_first, self.lasting = not smaller, smaller[-1].lasting if smaller else LASTING
        ranked = self._shapes(gpus)
        for shape in ranked if after is None else ranked[ranked.index(after) + 1 :]:
            share, step = self._first(gpus, shape, self._known(gpus))
            most = self._most(gpus, shape, share, step)
            if isinstance(most, Cell | Worse):
                return most
            reasons.append(most.text if isinstance(most, Missed) else most)
            if isinstance(most, Missed):
                return None
        return None

    def settled(self, cell: Cell, reasons: list[str]) -> Cell | Worse | None:
        """Simulate a cell for longer, with the most that it has in a plan; return it, or if it does not bear that for long one that bears
        less, or as :meth:`best`.
        """
        self.lasting = cell.lasting
        share = self.degraded(cell.gpus, cell.most)
        if_missed = self._attempt(cell.gpus, cell.shape.settings, share / SMALL_GROWTH)
        usual = self.planned(cell.gpus, cell.shape, cell.most, cell.lasting)[:1] if self.spare else []
        self.trials.expect(usual, [if_missed], waiting=2)
        judged = self._judged(cell.gpus, cell.shape.settings, share, cell.trial)
        if isinstance(judged, tuple):
            trial, problem = judged
            if not problem:
                return evolve(cell, part=share, trial=trial, is_settled=True)
            part = self.load.scaled(share)
            if part.in_flight == 1:
                reasons.append(f"a cell of {cell.gpus} ({cell.shape.text}) {problem} even with {_part(part)}")
                return None
            less = self._most(cell.gpus, cell.shape, share / SMALL_GROWTH, SMALL_GROWTH, share)
            if isinstance(less, Cell | Worse):
                return less
            if isinstance(less, Missed):
                reasons.append(less.text)
                return None
            judged = less
        reasons.append(judged)
        return self.best(cell.gpus, reasons, cell.shape)

    def _smaller(self, gpus: int) -> list[Cell]:
        """Return the cells of fewer GPUs, by their size."""
        return [each for size, each in sorted(self.found.items()) if size < gpus]

    def _known(self, gpus: int) -> float:
        """Return the part of the load that a cell may be expected to bear, by what smaller ones do; 0 if there are none."""
        return max((each.most / each.gpus for each in self._smaller(gpus)), default=0.0) * gpus

    def _shapes(self, gpus: int) -> list[Shape]:
        if gpus not in self._ranked:
            self._ranked[gpus] = list(shapes(self.profile, self.config, self.load.mix, 1.0, gpus))
        return self._ranked[gpus]

    def _first(self, gpus: int, shape: Shape, known: float) -> tuple[float, float]:
        """Return the first part of the load to try, and the factor to the next one. ``known``: see :meth:`_known`."""
        whole = per_second(self.load, self.profile, self.config)
        return min(1.0, known * SMALL_GROWTH or 0.8 / (shape.work * whole)), SMALL_GROWTH if known else GROWTH

    def _most(
        self, gpus: int, shape: Shape, share: float, step: float, missed: float = 1.0 + 1e-9
    ) -> Cell | Worse | Missed | str:
        """Return the cell of a shape with the most load; or what it misses, or why it cannot be simulated.

        Loads become more until one is too much or the whole is borne, or fewer until one is borne or requests are alone; then those in
        between are halved. So the search ends by itself.

        Args:
            share: the first part of the load to try. step: the factor between the first two. missed: a part that is too much.
        """
        smaller = self._smaller(gpus)
        known = self._known(gpus)
        hosts = min((_hosts(self.fleet, each.gpus, each.most) for each in smaller), default=self.fleet.hosts)
        shrink = step
        reached: Cell | None = None
        while True:
            down = 1 / (max(shrink, GROWTH) if share < known else shrink)
            lasting = self.lasting if reached is None else reached.lasting
            if share == 1.0 or missed < CLOSE * share:
                if_borne = self._after(gpus, shape, share, lasting)
            else:
                more = min(1.0, share * step) if missed > 1.0 else (share + missed) / 2
                if_borne = [self._attempt(gpus, shape.settings, more)]
            if reached is not None and share < CLOSE * reached.most:
                if_missed = self._after(gpus, shape, reached.most, lasting)
            else:
                less = share * down if reached is None else (reached.most + share) / 2
                if_missed = [self._attempt(gpus, shape.settings, less)]
            is_likely = reached is not None or share <= (known or missed) * (1 + 1e-9)  # to be borne
            likely, unlikely = (if_borne, if_missed) if is_likely else (if_missed, if_borne)
            # The likeliest is handed to a busy process if this one will be busy for seconds: with what is asked for, or the second of them.
            is_begun = self.trials.has_begun(self._attempt(gpus, shape.settings, share))
            self.trials.expect(likely, unlikely, waiting=max(len(likely) - 1, not is_begun))
            judged = self._judged(gpus, shape.settings, share)
            if isinstance(judged, str):
                return judged
            trial, problem = judged
            lasting = _rounded(trial.figures["done"].p95) if "done" in trial.figures else self.lasting
            if self._is_first or (not problem and lasting > self.lasting):
                self.lasting, self._is_first = lasting, False
            if problem:
                missed = share
            else:
                reached = Cell(gpus, shape, share, lasting, share, trial, is_certain(trial))
            if reached is not None:
                if reached.most == 1.0 or missed < CLOSE * reached.most:
                    return reached
                share = min(1.0, share * step) if missed > 1.0 else (reached.most + missed) / 2
                continue
            part = self.load.scaled(share)
            if trial.in_flight <= ALONE or part.in_flight == 1:
                return Missed(f"a cell of {gpus} ({shape.text}) {problem} even with {_part(part)} ({reason(trial)})")
            share *= min(down, (1 - 2 * IDLE) / (_messages(trial) or IDLE))
            shrink *= GROWTH
            if smaller and _hosts(self.fleet, gpus, share) > hosts:
                bears = f"each bears less than {_part(self.load.scaled(missed))}"
                return Worse(shape.text, f"{bears}, so more hosts would be needed; {reason(trial)}")

    def _after(self, gpus: int, shape: Shape, most: float, lasting: float) -> list[Attempt]:
        """Return what is asked for after a size of cells that bear ``most``: the first two trials of the next size, or the plan's usual
        one.
        """
        is_again = (
            gpus in self.found
        )  # with less load; others are tried again only if they were given up by comparison with it
        larger = [] if is_again else [each for each in self.sizes() if each > gpus and each not in self.found]
        if larger and (ranked := self._shapes(larger[0])):
            known = max(self._known(larger[0]), most / gpus * larger[0])
            share, step = self._first(larger[0], ranked[0], known)
            return [
                self._attempt(larger[0], ranked[0].settings, each, lasting=lasting)
                for each in (share, share * (1 / step))
            ]
        return self.planned(gpus, shape, most, lasting)[:1]

    def _judged(
        self, gpus: int, settings: Settings, share: float, before: Trial | None = None
    ) -> tuple[Trial, str] | str:
        """Simulate a cell with a part of the load; return that and why the cell does not bear it, if so; or why it cannot be simulated.

        Args:
            before: a trial of the same, after which as many requests are simulated as tell whether the queue grows.
        """
        trial = self.trials.trial(self._attempt(gpus, settings, share, before))
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

    def _attempt(
        self, gpus: int, settings: Settings, share: float, before: Trial | None = None, lasting: float | None = None
    ) -> Attempt:
        """Return the trial of a cell with a part of the load. ``before``: see :meth:`_judged`; ``lasting``: if not those of now."""
        part, lasting = self.load.scaled(share), self.lasting if lasting is None else lasting
        at_once = part.in_flight or 0
        if part.rate is None and part.pause is None:
            part = evolve(part, total=max(part.total, part.in_flight or 0))
        else:
            rate = per_second(part, self.profile, self.config)
            if before is None:
                part = short(part, rate, lasting, self.objectives.limits)
            else:
                part = longer(part, before)
            at_once = max(at_once, ceil(rate * lasting), ceil(before.coming) if before is not None else 0)
        given = dict(settings)
        for stage in self.config.stages:
            if self.profile.stages[stage.name].kind == "engine":
                given[f"{stage.name}.factory_args.max_running"] = RUNNING
        limited = evolve(self.config, max_in_flight=max(self.config.max_in_flight, 2 * at_once))
        return Attempt(limited, given, part, gpus, [self.fleet.accelerator.memory] * gpus)


def _rounded(seconds: float) -> float:
    """Return seconds rounded up, in steps of a quarter: trials that are begun ahead have as many requests around as others."""
    return 1.25 ** ceil(log(seconds, 1.25)) if seconds > 0.0 else 0.0


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
