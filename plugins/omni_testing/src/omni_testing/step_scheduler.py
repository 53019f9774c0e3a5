"""Conformance suite of step schedulers (contract: :class:`omni_torch.loop.steps.StepScheduler`)."""

from __future__ import annotations

import time
from typing import Any

from omni_testing.scheduler import PATIENCE, SchedulerConformance
from omni_torch.loop.steps import StepScheduler


class StepSchedulerConformance(SchedulerConformance):
    """Subclass it, say how your scheduler is made and what it is asked, and pytest runs every test, those of all schedulers included.

    :meth:`good` should return requests of different numbers of steps, several of which can share a step.
    """

    def long(self) -> Any:
        """The data of a request of many more steps than the others, a second of them at least; it can share steps with :meth:`good`."""
        raise NotImplementedError

    def bad_at_a_step(self) -> Any:
        """The data of a request whose step raises, alone and in a batch; ``None`` if there is no such thing."""
        return None

    def endless(self) -> Any:
        return self.long()

    def test_it_is_a_step_scheduler(self) -> None:
        assert isinstance(self.make(), StepScheduler)

    def test_requests_share_steps(self) -> None:
        scheduler = self.make()
        assert isinstance(scheduler, StepScheduler)
        for number in range(self.concurrent):
            scheduler.inbox.put(self.message(f"r{number}", self.good(number)))
        with self.running_one(scheduler) as harness:
            for number in range(self.concurrent):
                assert harness.ended(f"r{number}").type == "result"
        counted = scheduler.statistics()
        assert counted["computed"] == self.concurrent
        assert counted["stepped"] > counted["steps"], "no two requests shared a step"

    def test_a_short_request_does_not_wait_for_a_long_one(self) -> None:
        with self.running() as harness:
            harness.submit("long", self.long())
            time.sleep(0.05)
            harness.submit("short", self.good(0))
            assert harness.ended("short").type == "result"
            assert not [each for each in harness.of("long") if each.type != "stream"], (
                "the long request had ended first"
            )
            harness.scheduler.abort("long")

    def test_an_abort_counts_between_steps(self) -> None:
        with self.running() as harness:
            statistics = harness.scheduler.statistics  # type: ignore[attr-defined]
            harness.submit("long", self.long())
            harness.wait(lambda: statistics()["steps"] > 0 or bool(harness.of("long")), "the first step")
            harness.scheduler.abort("long")
            deadline = time.monotonic() + PATIENCE
            while statistics()["running"]:
                assert time.monotonic() < deadline, "an aborted request is still stepped"
                time.sleep(0.01)

    def test_a_step_that_raises_fails_its_request_alone(self) -> None:
        bad = self.bad_at_a_step()
        if bad is None:
            return
        with self.running() as harness:
            harness.submit("alone", self.good(1))
            alone = harness.ended("alone")
            harness.submit("long", self.long())  # so that those that follow begin together
            for name, data in (("good", self.good(1)), ("bad", bad), ("good too", self.good(1))):
                harness.submit(name, data)
            assert harness.ended("bad").type == "error"
            for name in ("good", "good too"):
                ended = harness.ended(name)
                assert ended.type == "result", "another request failed with it"
                assert self.same(ended.data, alone.data), "a step that raised had changed the states of others"
            harness.scheduler.abort("long")
