"""The search: placements are simulated, the best is changed where it saturates, until nothing helps; the result is a front.

On GPUs the first ones are the shapes that keep up (:mod:`omni_planner.shapes`), for each number of GPUs. On processors it is the config as
it is, on every number of cores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import ceil
from typing import Any

from attrs import Factory, define, evolve, field, frozen

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_planner.ahead import Ahead, Attempt
from omni_planner.building import settings_of
from omni_planner.devices import Fleet
from omni_planner.estimate import EstimatedProfile
from omni_planner.moves import moves
from omni_planner.objectives import Objectives
from omni_planner.profile import PipelineProfile
from omni_planner.shapes import demands, shapes
from omni_planner.steady import LASTING, amid, longer
from omni_planner.summary import Quantiles
from omni_planner.trials import Load, Settings, Trial, changed

SHAPES = 2
"""Shapes that are simulated for each number of GPUs."""

NOISE = 0.05
"""The share by which a figure must be better to count."""

SETTLED = 3
"""Placements for each number of GPUs that are simulated for longer, until one of them meets the objectives."""

Progress = Callable[[str], None]


@frozen
class _Place:
    """GPUs, with the bytes of their memory, or processors on which placements are tried. ``cost``: how many."""

    cost: int
    gpus: Sequence[int] = ()
    cores: int | None = None


@define
class Search:
    """A search and what it has found.

    Attributes:
        config: what is changed, before it is placed. trials: in the order in which they were made. refusals: by the settings that cannot
            be, the reason. budget: trials of ``load.total`` requests that may be made; as trials have others around these, as many as
            have the same number of requests. settled: on GPUs, the best by cost, simulated for longer; none of closed loops.
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
    _ahead: Ahead = field(
        init=False, default=Factory(lambda self: Ahead(self.profile, self.objectives), takes_self=True)
    )

    # --- GPUs --------------------------------------------------------------------------------------------------------
    def on_gpus(self, fleet: Fleet) -> list[Trial]:
        """Search on the GPUs of one host; return the front."""
        with self._ahead:
            return self._on_gpus(fleet)

    def _on_gpus(self, fleet: Fleet) -> list[Trial]:
        assert isinstance(self.profile, EstimatedProfile)
        enough = 0
        for gpus in range(1, fleet.gpus + 1):
            ranked = shapes(
                self.profile, self.config, self.load.mix, per_second(self.load, self.profile, self.config), gpus
            )
            # A closed loop waits for its answers, so it never brings more than is computed.
            fitting = [each for each in ranked if each.work < 1.0 or self._is_closed]
            if not fitting:
                self.refusals[f"{gpus} GPUs"] = (
                    f"the busiest would compute {ranked[0].work:.2f} s a second ({ranked[0].text})"
                )
            place = _Place(gpus, [fleet.accelerator.memory] * gpus)
            made = 0
            for number, shape in enumerate(fitting):
                self._expect([each.settings for each in fitting[number + 1 : number + SHAPES - made]], place)
                trial = self._try(shape.settings, place)
                made += trial is not None
                if made == SHAPES:
                    break
            best = self._best(gpus)
            if best is not None:
                left = self._most_trials - len(self.trials)
                most = left if gpus == fleet.gpus else left // 2  # more GPUs may be needed
                self._improve(best, place, most)
                best = self._settle(place)
            enough += best is not None and not best.excess
            if enough == 2 or len(self.trials) >= self._most_trials:
                break
        return front(self.settled or self.trials, self.objectives)

    def _settle(self, place: _Place) -> Trial | None:
        """Return the best placement on so many GPUs, of a few that are simulated for longer: a queue may grow so slowly that the
        objectives are missed only later. That of a closed loop does not grow.
        """
        if self._steady is None or self._is_closed:
            return self._best(place.cost)
        tried, longer_ones = [each for each in self.trials if each.cost == place.cost], list[Trial]()
        best = _simplest(tried, self.objectives)
        while not best.excess and len(longer_ones) < SETTLED:
            again = self._ahead.trial(self._attempt(best.settings, place, longer(self._steady, best)))
            tried.remove(best)
            if isinstance(again, str):  # of more requests one may not fit
                self.refusals[described(best.settings)] = again
                self.trials.remove(best)
            else:
                longer_ones.append(again)
                if not again.excess:
                    break
            if not tried:
                break
            best = _simplest(tried, self.objectives)
        if not longer_ones and best not in self.trials:
            return None
        found = min(longer_ones or [best], key=self._key)
        self.settled.append(found)
        return found

    # --- processors ----------------------------------------------------------------------------------------------------
    def on_cores(self, cores: int) -> list[Trial]:
        """Search on the processors of one host; return the front."""
        with self._ahead:
            return self._on_cores(cores)

    def _on_cores(self, cores: int) -> list[Trial]:
        place = _Place(cores, cores=cores)
        first = self._try({}, place)
        if first is not None:
            self._improve(first, place, self._most_trials - len(self.trials))
        found = sorted(self.trials, key=self._key)[:4]
        found += [first] if first is not None and first not in found else []
        for fewer in range(cores - 1, 0, -1):
            self._try_all([trial.settings for trial in found], _Place(fewer, cores=fewer))
        return front(self.trials, self.objectives)

    # --- both ----------------------------------------------------------------------------------------------------------
    def _improve(self, best: Trial, place: _Place, most: int) -> None:
        """Try changes where it saturates, and go on from the best of them, until none is better or ``most`` trials are made."""
        end = len(self.trials) + most
        while len(self.trials) < end:
            found = self._try_all([{**best.settings, **change} for change in moves(best, self.profile)], place, end)
            better = min(found, key=self._key, default=best)
            if not self._is_better(better, best):
                return
            best = better

    def _try_all(self, tried: Sequence[Settings], place: _Place, end: int | None = None) -> list[Trial]:
        """Try settings until ``end`` trials are made in all, and return the trials of those that can be."""
        found: list[Trial] = []
        for number, settings in enumerate(tried):
            left = len(tried) if end is None else end - len(self.trials)
            if left <= 0:
                break
            self._expect(tried[number + 1 : number + left], place)
            trial = self._try(settings, place)
            if trial is not None:
                found.append(trial)
        return found

    def _is_better(self, trial: Trial, than: Trial) -> bool:
        """Return whether a change is worth more changes: fewer misses, or a figure that is better by more than chance."""
        if than.excess:
            return trial.excess < (1 - NOISE) * than.excess
        first = self.objectives.first
        return not trial.excess and trial.key(first)[2] < (1 - NOISE) * than.key(first)[2]

    def _try(self, settings: Settings, place: _Place) -> Trial | None:
        key = self._name(settings, place)
        if key not in self._seen:
            found = self._simulated(settings, place)
            self._seen[key] = found
            if isinstance(found, str):
                self.refusals[described(settings)] = found
            else:
                self.trials.append(found)
                self.on_progress(
                    f"{len(self.trials):3}: {shown(found, self.objectives, 'GPU' if place.gpus else 'core')}"
                )
        made = self._seen[key]
        return None if isinstance(made, str) else made

    def _name(self, settings: Settings, place: _Place) -> str:
        return f"{place.cost} {[_described(stage) for stage in changed(self.config, settings).stages]}"

    def _attempt(self, settings: Settings, place: _Place, load: Load | None = None) -> Attempt:
        return Attempt(
            self.config, settings, load or self._steady or self.load, place.cost, tuple(place.gpus), place.cores
        )

    def _expect(self, probable: Sequence[Settings], place: _Place) -> None:
        """Begin trials that will probably be asked for."""
        if self._steady is not None:
            unseen = (each for each in probable if self._name(each, place) not in self._seen)
            self._ahead.expect(self._attempt(each, place) for each in unseen)

    def _simulated(self, settings: Settings, place: _Place) -> Trial | str:
        """Simulate a placement, under the load that it has for long.

        How long requests last, the first placement says; all others have as many around, so that chance is the same for all.
        """
        if self._steady is None:
            first = self._ahead.trial(self._attempt(settings, place))
            if isinstance(first, str):
                return first
            self._steady = self._lasting(first)
        return self._ahead.trial(self._attempt(settings, place))

    def _lasting(self, first: Trial) -> Load:
        """Return the load with others around it. ``first``: a trial of it from an empty pipeline."""
        if self._is_closed:  # those that begin together do not count
            at_once = self.load.in_flight or 1
            return evolve(self.load, total=max(self.load.total, at_once), around=at_once)
        done = first.figures.get("done", Quantiles(0.0, LASTING))
        return amid(self.load, per_second(self.load, self.profile, self.config, done.p50), done.p95)

    @property
    def _is_closed(self) -> bool:
        """Return whether so many requests are always under way, of which the first ones begin together."""
        return self.load.rate is None and self.load.pause is None

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
