"""The decision whether a request may begin now, by objectives. It does no IO and reads no clock."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Protocol

from attrs import define, field

from omni_planner.admission.estimates import Company, Estimates, Group
from omni_planner.admission.options import Options

_ROUNDING = 1e-9

NEVER = math.inf


class Estimator(Protocol):
    """Estimates the seconds until a first output; more company never makes it fewer. See :class:`Estimates`."""

    def seconds(self, stage: str, company: Company) -> float: ...

    def observe(self, stage: str, company: Company, seconds: float) -> None: ...


@define(eq=False)
class _Request:
    """A request in flight.

    Attributes:
        due: by stage with an objective that has had no output, when it is wanted.
        left: the share of its work until then that is left.
        ahead: those that it found, by group: without output, and with.
        number: of those that began, in their order.
        later: how many of those that began after it are in flight, by group.
        company: the same times seconds, summed since its begin.
    """

    stages: Group
    number: int
    since: float
    is_heard: bool
    due: dict[str, float]
    left: dict[str, float]
    waiting: Mapping[Group, float]
    begun: Mapping[Group, float]
    later: dict[Group, float] = field(factory=dict)
    company: dict[Group, float] = field(factory=dict)

    def beside(self, more: Group | None = None) -> Company:
        """Return its company, with one more that comes later."""
        later = self.later if more is None else {**self.later, more: self.later.get(more, 0.0) + 1.0}
        return Company(self.waiting, self.begun, later)


@define
class Objectives:
    """Let a request begin when its first outputs, and with it those of all that began before, are estimated to be in time.

    A request that has no output yet is taken to do its work at the rate of the estimate for the company that it has, so what is left
    of it is known at any moment. A new one may make the others slower; it begins only if none of them, which would be in time without
    it, is late by it. So if the estimates hold, whatever begins is in time: afterwards company only goes. A request without an
    objective begins at once, and counts as company.
    """

    options: Options
    estimates: Estimator = field(factory=Estimates)
    _requests: dict[str, _Request] = field(factory=dict)
    _numbers: int = 0
    _now: float = 0.0

    def begins(self, stages: Group, came: float, now: float) -> float:
        """See :class:`~omni_core.coordinator.turns.AdmissionPolicy`."""
        wanted = self._wanted(stages)
        if not self._requests or not wanted:
            return now
        self._advance(now)
        begin = now
        company = self._found()
        for stage, seconds in wanted.items():
            due = seconds + (came if self.options.wait is None else now)
            if now + self.estimates.seconds(stage, company) > due + _ROUNDING:
                return NEVER
        for request, stage, due in self._waiting():
            alone = self.estimates.seconds(stage, request.beside())
            beside = self.estimates.seconds(stage, request.beside(stages))
            left = request.left[stage]
            if now + left * alone > due + _ROUNDING or beside <= alone:
                continue  # it is late without this one, or does not notice it
            excess = now + left * beside - due
            if excess > _ROUNDING:  # it becomes less with what is done meanwhile
                begin = max(begin, now + excess * alone / (beside - alone))
        return begin

    def latest(self, stages: Group, came: float) -> float:
        """See :class:`~omni_core.coordinator.turns.AdmissionPolicy`."""
        wanted = self._wanted(stages)
        if self.options.wait is not None:
            return came + self.options.wait if wanted else NEVER
        nobody = Company({}, {}, {})
        return min((came + each - self.estimates.seconds(name, nobody) for name, each in wanted.items()), default=NEVER)

    def begun(self, name: str, stages: Group, came: float, now: float, *, is_heard: bool) -> None:
        """See :class:`~omni_core.coordinator.turns.AdmissionPolicy`."""
        self._advance(now)
        wanted, found = self._wanted(stages), self._found()
        self._numbers += 1
        for each in self._requests.values():
            each.later[stages] = each.later.get(stages, 0.0) + 1.0
        since = came if self.options.wait is None else now
        self._requests[name] = _Request(
            stages,
            self._numbers,
            now,
            is_heard,
            {stage: since + seconds for stage, seconds in wanted.items()},
            dict.fromkeys(wanted, 1.0),
            found.waiting,
            found.begun,
        )

    def heard(self, name: str, stage: str, now: float) -> None:
        """See :class:`~omni_core.coordinator.turns.AdmissionPolicy`."""
        request = self._requests.get(name)
        if request is None or stage not in request.due:
            return
        self._advance(now)
        del request.due[stage]
        seconds = now - request.since
        if request.is_heard and seconds > 0.0:
            later = {group: each / seconds for group, each in request.company.items()}
            self.estimates.observe(stage, Company(request.waiting, request.begun, later), seconds)

    def ended(self, name: str, now: float) -> None:
        """See :class:`~omni_core.coordinator.turns.AdmissionPolicy`."""
        self._advance(now)
        ended = self._requests.pop(name, None)
        if ended is not None:
            for each in self._requests.values():
                if each.number < ended.number:
                    each.later[ended.stages] -= 1.0

    def _wanted(self, stages: Group) -> dict[str, float]:
        return {name: seconds for name, seconds in self.options.objectives.items() if name in stages}

    def _waiting(self) -> Iterator[tuple[_Request, str, float]]:
        return ((request, stage, due) for request in self._requests.values() for stage, due in request.due.items())

    def _found(self) -> Company:
        """Return the company that a request finds which begins now."""
        waiting: dict[Group, float] = {}
        begun: dict[Group, float] = {}
        for each in self._requests.values():
            into = waiting if each.due else begun
            into[each.stages] = into.get(each.stages, 0.0) + 1.0
        return Company(waiting, begun, {})

    def _advance(self, now: float) -> None:
        """Count the work that was done since the last event."""
        elapsed, self._now = now - self._now, now
        if elapsed <= 0.0:
            return
        for request, stage, _ in self._waiting():
            lasts = self.estimates.seconds(stage, request.beside())
            request.left[stage] = max(0.0, request.left[stage] - elapsed / lasts) if lasts > 0.0 else 0.0
        for request in self._requests.values():
            if request.due:
                for group, many in request.later.items():
                    request.company[group] = request.company.get(group, 0.0) + many * elapsed
            if not request.is_heard:  # its outputs are not told: they are taken to come when expected
                request.due = {stage: due for stage, due in request.due.items() if request.left[stage] > 0.0}
