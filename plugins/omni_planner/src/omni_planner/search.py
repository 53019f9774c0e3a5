"""The search: placements are simulated, the best is changed where it saturates, until nothing helps; the result is a front.

On GPUs the first ones are the shapes that keep up (:mod:`omni_planner.shapes`), for each number of GPUs. On processors it is the config as
it is, on every number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import ceil
from typing import Any

from attrs import define, evolve, field

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_planner.building import settings_of
from omni_planner.devices import Fleet
from omni_planner.estimate import EstimatedProfile
from omni_planner.moves import moves
from omni_planner.objectives import Objectives
from omni_planner.profile import PipelineProfile
from omni_planner.shapes import demands, shapes
from omni_planner.steady import LASTING, amid, longer
from omni_planner.summary import Quantiles
from omni_planner.trials import Load, Settings, Trial, attempt, changed

SHAPES = 2
"""Shapes that are simulated for each number of GPUs."""

NOISE = 0.05
"""The share by which a figure must be better to count."""

SETTLED = 3
"""Placements for each number of GPUs that are simulated for longer, until one of them meets the objectives."""

Progress = Callable[[str], None]


@define
class Search:
    """A search and what it has found.

    Attributes:
        config: what is changed, before it is placed. trials: in the order in which they were made. refusals: by the settings that cannot
            be, the reason. budget: trials of ``load.total`` requests that may be made; of conversations, whose trials have others around
            these, as many as have the same number of requests. settled: of conversations, the best by cost, simulated for longer.
    """

    config: PipelineConfig
    profile: PipelineProfile
    load: Load
    objectives: Objectives
    budget: int = 60
    on_progress: Progress = lambda text: None
    trials: list[Trial] = field(factory=list)
    refusals: dict[str, str] = field(factory=dict)
    _seen: dict[str, Trial | str] = field(factory=dict)
    settled: list[Trial] = field(factory=list)
    _steady: Load | None = None

    # --- GPUs --------------------------------------------------------------------------------------------------------
    def on_gpus(self, fleet: Fleet) -> list[Trial]:
        """Search on the GPUs of one host; return the front."""
        assert isinstance(self.profile, EstimatedProfile)
        enough = 0
        for gpus in range(1, fleet.gpus + 1):
            ranked = shapes(
                self.profile, self.config, self.load.mix, per_second(self.load, self.profile, self.config), gpus
            )
            fitting = [each for each in ranked if each.work < 1.0]
            if not fitting:
                self.refusals[f"{gpus} GPUs"] = (
                    f"the busiest would compute {ranked[0].work:.2f} s a second ({ranked[0].text})"
                )
            made = 0
            for shape in fitting:
                trial = self._on_gpus(shape.settings, gpus, fleet)
                made += trial is not None
                if made == SHAPES:
                    break
            best = self._best(gpus)
            if best is not None:
                left = self._most_trials - len(self.trials)
                most = left if gpus == fleet.gpus else left // 2  # more GPUs may be needed
                self._improve(best, partial(self._on_gpus, gpus=gpus, fleet=fleet), most)
                best = self._settle(gpus, fleet)
            enough += best is not None and not best.excess
            if enough == 2 or len(self.trials) >= self._most_trials:
                break
        return front(self.settled or self.trials, self.objectives)

    def _settle(self, gpus: int, fleet: Fleet) -> Trial | None:
        """Return the best placement on so many GPUs; of conversations, the best of a few that are simulated for longer.

        A queue of theirs may grow so slowly that the objectives are missed only later.
        """
        if self._steady is None:
            return self._best(gpus)
        tried, longer_ones = [each for each in self.trials if each.cost == gpus], list[Trial]()
        best = _simplest(tried, self.objectives)
        while not best.excess and len(longer_ones) < SETTLED:
            load, memory = longer(self._steady, best), [fleet.accelerator.memory] * gpus
            again = attempt(self.config, best.settings, self.profile, load, self.objectives, gpus, gpus=memory)
            assert isinstance(again, Trial)
            longer_ones.append(again)
            tried.remove(best)
            if not again.excess or not tried:
                break
            best = _simplest(tried, self.objectives)
        found = min(longer_ones or [best], key=self._key)
        self.settled.append(found)
        return found

    def _on_gpus(self, settings: Settings, gpus: int, fleet: Fleet) -> Trial | None:
        return self._try(settings, gpus, [fleet.accelerator.memory] * gpus)

    # --- processors ----------------------------------------------------------------------------------------------------
    def on_cores(self, cores: int) -> list[Trial]:
        """Search on the processors of one host; return the front."""
        first = self._try({}, cores, cores=cores)
        if first is not None:
            self._improve(
                first, lambda settings: self._try(settings, cores, cores=cores), self._most_trials - len(self.trials)
            )
        found = sorted(self.trials, key=self._key)[:4]
        found += [first] if first is not None and first not in found else []
        for fewer in range(cores - 1, 0, -1):
            for trial in found:
                self._try(trial.settings, fewer, cores=fewer)
        return front(self.trials, self.objectives)

    # --- both ----------------------------------------------------------------------------------------------------------
    def _improve(self, best: Trial, attempt: Callable[[Settings], Trial | None], most: int) -> None:
        """Try changes where it saturates, and go on from the best of them, until none is better or ``most`` trials are made."""
        end = len(self.trials) + most
        while len(self.trials) < end:
            found: list[Trial] = []
            for change in moves(best, self.profile):
                if len(self.trials) >= end:
                    break
                trial = attempt({**best.settings, **change})
                if trial is not None:
                    found.append(trial)
            better = min(found, key=self._key, default=best)
            if not self._is_better(better, best):
                return
            best = better

    def _is_better(self, trial: Trial, than: Trial) -> bool:
        """Return whether a change is worth more changes: fewer misses, or a figure that is better by more than chance."""
        if than.excess:
            return trial.excess < (1 - NOISE) * than.excess
        first = self.objectives.first
        return not trial.excess and trial.key(first)[2] < (1 - NOISE) * than.key(first)[2]

    def _try(self, settings: Settings, cost: int, gpus: Sequence[int] = (), cores: int | None = None) -> Trial | None:
        key = f"{cost} {[_described(stage) for stage in changed(self.config, settings).stages]}"
        if key not in self._seen:
            found = self._simulated(settings, cost, gpus, cores)
            self._seen[key] = found
            if isinstance(found, str):
                self.refusals[described(settings)] = found
            else:
                self.trials.append(found)
                self.on_progress(f"{len(self.trials):3}: {shown(found, self.objectives, 'GPU' if gpus else 'core')}")
        made = self._seen[key]
        return None if isinstance(made, str) else made

    def _simulated(self, settings: Settings, cost: int, gpus: Sequence[int], cores: int | None) -> Trial | str:
        """Simulate a placement, under the load that conversations have for long.

        How long their requests last, the first placement says; all others have as many around, so that chance is the same for all.
        """
        simulate = partial(
            attempt, self.config, settings, self.profile, objectives=self.objectives, cost=cost, gpus=gpus, cores=cores
        )
        if self.load.pause is None:
            return simulate(load=self.load)
        if self._steady is None:
            first = simulate(load=self.load)
            if isinstance(first, str):
                return first
            done = first.figures.get("done", Quantiles(0.0, LASTING))
            self._steady = amid(self.load, per_second(self.load, self.profile, self.config, done.p50), done.p95)
        return simulate(load=self._steady)

    @property
    def _most_trials(self) -> int:
        if self._steady is None:
            return self.budget
        return min(self.budget, ceil(self.budget * self.load.total / (self._steady.total + 2 * self._steady.around)))

    def _best(self, cost: int) -> Trial | None:
        return min((each for each in self.trials if each.cost == cost), key=self._key, default=None)

    def _key(self, trial: Trial) -> tuple[float, int, float]:
        return trial.key(self.objectives.first)


def _described(stage: StageConfig) -> tuple[StageConfig, list[tuple[str, Any]]]:
    """Return what tells a stage from others, whether it says its defaults or leaves them out, in whatever order."""
    given = {} if stage.factory is None else settings_of(evolve(stage, factory_args={}))
    settings = {**given, **stage.factory_args}
    return evolve(stage, factory_args={}), sorted(
        (name, value) for name, value in settings.items() if value is not None or name in given
    )


def per_second(load: Load, profile: PipelineProfile, config: PipelineConfig, lasting: float = 0.0) -> float:
    """Return the requests a second of a load whose requests take as long as alone, by the estimate, but at least ``lasting`` seconds."""
    if load.rate is not None:
        return load.rate
    total, alone = sum(load.mix.values()), max(lasting, sum(demands(profile, config, load.mix).values()))
    if load.pause is None:
        return (load.in_flight or 1) / alone
    spoken = sum(
        weight / total * visit.prompt * profile.stages[name].frame_seconds / len(profile.kinds[kind])
        for kind, weight in load.mix.items()
        for sample in profile.kinds[kind]
        for name, visit in sample.items()
    )
    return (load.in_flight or 1) / (max(alone, spoken) + load.pause)


def front(trials: Sequence[Trial], objectives: Objectives) -> list[Trial]:
    """Return, by rising cost, the best trial of each cost that is better than all cheaper ones."""
    found: list[Trial] = []
    for cost in sorted({each.cost for each in trials}):
        best = _simplest([each for each in trials if each.cost == cost], objectives)
        if not found or _worth(best, objectives) < _worth(found[-1], objectives):
            found.append(best)
    return found


def _simplest(trials: Sequence[Trial], objectives: Objectives) -> Trial:
    """Return the best trial, or of those that are as good but for chance the one with the fewest replicas and changes."""
    first = objectives.first
    best = min(trials, key=lambda each: each.key(first))
    excess, _, figure = best.key(first)
    near = [each for each in trials if each.key(first)[0] <= excess * (1 + NOISE)]
    same = [each for each in near if each.key(first)[2] <= figure * (1 + NOISE)]
    return min(same, key=lambda each: (sum(stage.replicas for stage in each.config.stages), len(each.settings)))


def _worth(trial: Trial, objectives: Objectives) -> tuple[float, float]:
    excess, _, figure = trial.key(objectives.first)
    return excess, figure


def shown(trial: Trial, objectives: Objectives, unit: str) -> str:
    """Return a trial in one line."""
    figures = [f"{name} {trial.figures[name].p95:.3f} s" for name in objectives.limits if name in trial.figures]
    return f"{trial.cost} {unit}{'s' * (trial.cost > 1)}, {', '.join(figures)}; {trial.saturated} is busiest"


def reason(trial: Trial) -> str:
    """Return what keeps a trial from being better."""
    busy = sorted(trial.shares.items(), key=lambda each: -each[1])
    listed = ", ".join(f"{name} {share:.0%}" for name, share in busy[:3])
    if trial.refused:
        return f"{trial.refused:.0%} of the requests are refused; busy: {listed}"
    return f"saturates: {listed}" if busy and busy[0][1] > 0.85 else f"busiest: {listed}"


def described(settings: Settings) -> str:
    """Return settings as ``--set`` takes them."""
    return " ".join(f"{path}={value}" for path, value in settings.items()) or "as configured"
