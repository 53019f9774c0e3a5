"""Estimates of the time to the first output of a request, learnt from those that had theirs while others were in flight."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import define, field, frozen

from omni_torch.loop.step_cost import StepCost

Group = frozenset[str]
"""The terminal stages that answer a request: requests of one group are taken to be alike."""

_RIDGE = 0.05
"""The pull to 0 of what others cost. When requests are alone for long, some three hundred of them, what was learnt of others fades: they
are tried again.
"""

_SHARE = 0.95
"""The share of requests that are to have their first output within the estimate."""

_STEP = 0.1

_MOST = 4.0
"""An estimate is at most so many times what the fit says."""


@frozen
class Company:
    """Other requests in flight, by group: those ahead that have had no output yet, those ahead that have, and those that came later."""

    waiting: Mapping[Group, float]
    begun: Mapping[Group, float]
    later: Mapping[Group, float]


@define
class Estimates:
    """Estimate the seconds until the first output of a stage, as a linear function of the company that a request has.

    Where nothing was seen, nothing is assumed: others cost nothing until a request that had company has shown what they cost. So the first
    burst after a start is admitted. The estimate is that of the fit times a factor, which is moved until 95 of 100 requests are in time.
    """

    _groups: list[Group] = field(factory=list)
    _fits: dict[str, StepCost] = field(factory=dict)
    _factors: dict[str, float] = field(factory=dict)

    def observe(self, stage: str, company: Company, seconds: float) -> None:
        """Learn from a first output; ``company.later``: how many they were on average."""
        for each in (company.waiting, company.begun, company.later):
            for group in each:
                self._know(group)
        fit = self._fits.get(stage)
        if fit is None:
            fit = self._fits[stage] = StepCost(3 * len(self._groups), _RIDGE)
        expected, factor = fit.seconds(*self._counts(company)), self._factors.get(stage, 1.0)
        if expected > 0.0:
            factor *= 1.0 + _STEP * (_SHARE if seconds > factor * expected else _SHARE - 1.0)
            self._factors[stage] = min(max(factor, 1.0), _MOST)
        fit.observe(self._counts(company), seconds)

    def seconds(self, stage: str, company: Company) -> float:
        """Estimate a first output; 0 if there was none of this stage yet."""
        fit = self._fits.get(stage)
        return 0.0 if fit is None else self._factors.get(stage, 1.0) * fit.seconds(*self._counts(company))

    def _know(self, group: Group) -> None:
        """Begin to count a group; fits are made anew, which happens as often as there are groups."""
        if group not in self._groups:
            self._groups.append(group)
            self._fits.clear()

    def _counts(self, company: Company) -> list[float]:
        kinds = (company.waiting, company.begun, company.later)
        return [each.get(group, 0.0) for group in self._groups for each in kinds]
