"""Requests in simulated time, each of which works at the rate of an estimate for its company, through the machine with admission."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from itertools import count

from attrs import define, field

from omni_core.coordinator.actions import Ended, Start
from omni_core.errors import OverloadedError
from omni_core.protocol.messages import OmniRequest
from omni_planner.admission.estimates import Company
from omni_planner.admission.machine import AdmittingMachine
from omni_planner.admission.options import Options
from omni_planner.admission.policy import Objectives

OUT = frozenset({"out"})


@define
class Exact:
    """Knows what company costs."""

    alone: float
    waiting: float
    begun: float
    later: float

    def seconds(self, stage: str, company: Company) -> float:
        kinds = (company.waiting, company.begun, company.later)
        costs = (self.waiting, self.begun, self.later)
        return self.alone + sum(cost * sum(each.values()) for cost, each in zip(costs, kinds, strict=True))

    def observe(self, stage: str, company: Company, seconds: float) -> None:
        pass


@define(eq=False)
class Seen:
    """A request as it went: when it came, began, was heard and ended, and if it was refused."""

    came: float
    lasts: float
    began: float | None = None
    heard: float | None = None
    ended: float | None = None
    refused: float | None = None
    found: int = 0  # in flight when it began, or was refused
    ahead: tuple[int, int] = (0, 0)
    left: float = 1.0


@define
class Replay:
    """Runs requests; the world is computed here, apart from the policy's own account of it."""

    exact: Exact
    options: Options
    seen: list[Seen] = field(factory=list)
    order: list[int] = field(factory=list)

    def run(self, load: Sequence[tuple[float, float]]) -> None:
        """``load``: of each request, the seconds since the one before, and those from its first output to its end."""
        machine = AdmittingMachine(policy=Objectives(self.options, self.exact), terminal_stages=["out"])
        number = count()
        events: list[tuple[float, int, str, int]] = []
        came = 0.0
        for index, (gap, lasts) in enumerate(load):
            came += gap
            self.seen.append(Seen(came, lasts))
            heapq.heappush(events, (came, next(number), "come", index))
        now = 0.0
        while True:
            waits = {i: self._rate(i) for i in self.order if self.seen[i].heard is None}
            firsts = [(now + self.seen[i].left * seconds, i) for i, seconds in waits.items()]
            due = machine.next_timer()
            moments = [*(when for when, _ in firsts), *([due] if due is not None else []), *(e[0] for e in events[:1])]
            if not moments:
                break
            then = max(now, min(moments))
            for i, seconds in waits.items():
                self.seen[i].left -= (then - now) / seconds
            now = then
            actions = []
            first = min(firsts, default=(float("inf"), -1))
            if first[0] <= now:
                self.seen[first[1]].heard = now
                heapq.heappush(events, (now + self.seen[first[1]].lasts, next(number), "end", first[1]))
                actions += machine.result(str(first[1]), "out", None, final=False, now=now)
            elif events and events[0][0] <= now:
                _, _, what, index = heapq.heappop(events)
                if what == "come":
                    actions += machine.submit(OmniRequest(), str(index), wants_partial=True, now=now)[1]
                else:
                    self.seen[index].ended = now
                    actions += machine.result(str(index), "out", None, final=True, now=now)
            else:
                actions += machine.clock(now)
            self._note(actions, now)

    def _rate(self, index: int) -> float:
        later = self.order[self.order.index(index) + 1 :]
        waiting, begun = self.seen[index].ahead
        together = sum(self.seen[i].ended is None for i in later)
        return self.exact.alone + self.exact.waiting * waiting + self.exact.begun * begun + self.exact.later * together

    def _note(self, actions: Sequence[object], now: float) -> None:
        for action in actions:
            running = [self.seen[i] for i in self.order if self.seen[i].ended is None]
            if isinstance(action, Start):
                index = int(action.request.request_id)
                each = self.seen[index]
                each.began, each.found = now, len(running)
                waiting = sum(other.heard is None for other in running)
                each.ahead = (waiting, len(running) - waiting)
                self.order.append(index)
            elif isinstance(action, Ended) and isinstance(action.request.error, OverloadedError):
                assert action.request.error.retry_after > 0
                each = self.seen[int(action.request.request_id)]
                each.refused, each.found = now, len(running)
