"""The search on the GPUs of one host: the least busy shapes are simulated, the best is changed where it saturates, until it meets the
objectives or nothing helps.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from attrs import define, evolve, field

from omni_planner.load import Load
from omni_planner.moves import moves
from omni_planner.shapes import demands, shapes
from omni_planner.trials import Settings, Trial, Trials, changed, gpus_text

SHAPES = 2
"""Shapes that are simulated for each number of GPUs."""

NOISE = 0.05
"""The share by which a figure must be better to count."""

LONGER = 1000
"""Requests that count of the simulation by which a placement is confirmed: a queue may grow so slowly that objectives are missed later."""

CONFIRMED = 3
"""Placements for each number of GPUs of which that is tried, until one meets the objectives."""


@define
class Search:
    """A search and what it has found.

    Attributes:
        made: trials in their order.
        refusals: by the settings that cannot be, the reason.
        budget: trials that may be made.
    """

    trials: Trials
    load: Load
    budget: int = 60
    on_progress: Callable[[str], None] = lambda text: None
    made: list[Trial] = field(factory=list)
    refusals: dict[str, str] = field(factory=dict)
    _seen: dict[str, Trial | None] = field(factory=dict)

    def run(self, gpus: int) -> list[Trial]:
        """Search on up to so many GPUs; return the front: by rising cost, the best that is better than all cheaper ones."""
        trials, found, enough = self.trials, list[Trial](), 0
        alone = sum(demands(trials.estimate, trials.config, self.load.mix).values())
        rate = self.load.per_second(trials.estimate, alone)
        for count in range(1, gpus + 1):
            ranked = shapes(trials.estimate, trials.config, self.load.mix, rate, count)
            # A closed loop waits for its answers, so it never brings more than is computed.
            fitting = [each for each in ranked if each.work < 1.0 or self.load.is_closed]
            if not fitting:
                self.refusals[gpus_text(count)] = (
                    f"the busiest would compute {ranked[0].work:.2f} s a second ({ranked[0].text})"
                )
            first = list[Trial]()
            for shape in fitting:
                first += self._try([shape.settings], count)
                if len(first) == SHAPES:
                    break
            if first:
                left = self.budget - len(self.made)
                self._improve(min(first, key=self._key), count, left if count == gpus else left // 2)
                found.append(self._confirmed(count))
                enough += not found[-1].excess
            if enough == 2 or len(self.made) >= self.budget:
                break
        return front(found, trials.objectives.first)

    def _improve(self, best: Trial, gpus: int, most: int) -> None:
        """Try changes where it saturates, and go on from the best of them, until the objectives are met, none is better, or ``most`` trials
        are made.
        """
        end = len(self.made) + most
        while best.excess and len(self.made) < end:
            found = self._try([{**best.settings, **change} for change in moves(best, self.trials.estimate)], gpus, end)
            better = min(found, key=self._key, default=best)
            if better.excess >= (1 - NOISE) * best.excess:
                return
            best = better

    def _try(self, tried: Sequence[Settings], gpus: int, end: int | None = None) -> list[Trial]:
        """Try settings until ``end`` trials are made in all, and return the trials of those that can be."""
        found: list[Trial] = []
        for settings in tried:
            if end is not None and len(self.made) >= end:
                break
            name = f"{gpus} {changed(self.trials.config, settings).stages}"
            if name not in self._seen:
                made = self.trials.of(settings, gpus, self.load)
                self._seen[name] = None if isinstance(made, str) else made
                if isinstance(made, str):
                    self.refusals[described(settings)] = made
                else:
                    self.made.append(made)
                    self.on_progress(f"{len(self.made):3}: {self._shown(made)}")
            seen = self._seen[name]
            found += [] if seen is None else [seen]
        return found

    def _confirmed(self, gpus: int) -> Trial:
        """Return the best placement on so many GPUs, of a few that are simulated for longer."""
        ranked = sorted((each for each in self.made if each.cost == gpus), key=self._key)
        longer = evolve(self.load, total=max(self.load.total, LONGER))
        if ranked[0].excess or self.load.is_closed:
            return ranked[0]
        again = list[Trial]()
        for each in ranked[:CONFIRMED]:
            made = self.trials.of(each.settings, gpus, longer)
            if isinstance(made, str):  # of more requests one may not fit
                self.refusals[described(each.settings)] = made
                continue
            again.append(made)
            if not made.excess:
                break
        return min(again or ranked, key=self._key)

    def _key(self, trial: Trial) -> tuple[float, int, float]:
        return trial.key(self.trials.objectives.first)

    def _shown(self, trial: Trial) -> str:
        limits = self.trials.objectives.limits
        figures = [f"{name} {trial.figures[name].p95:.3f} s" for name in limits if name in trial.figures]
        return f"{gpus_text(trial.cost)}, {', '.join(figures)}; {trial.reason}"


def front(trials: Sequence[Trial], first: str) -> list[Trial]:
    """Return, by rising cost, the best trial of each cost that is better than all cheaper ones by more than chance."""
    found: list[Trial] = []
    for each in sorted(trials, key=lambda each: (each.cost, each.key(first))):
        excess, _, figure = each.key(first)
        least, _, best = found[-1].key(first) if found else (float("inf"), 0, 0.0)
        if excess < (1 - NOISE) * least or (not least and not excess and figure < (1 - NOISE) * best):
            found.append(each)
    return found


def described(settings: Settings) -> str:
    """Return settings as ``--set`` takes them."""
    return " ".join(f"{path}={value}" for path, value in settings.items()) or "as configured"
