"""Conformance suite of schedulers (contract: :class:`omni_core.scheduling.base.Scheduler`), driven through its two queues."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from omni_core.api import IncomingMessage, OmniRequest, OutgoingMessage, Scheduler, StagePayload
from omni_testing.idleness import WAKE_UPS_PER_SECOND, wake_ups

PATIENCE = 20.0
"""Seconds until something that must happen counts as not happening."""


class Harness:
    """A scheduler in a thread of its own, and everything that it has put out."""

    def __init__(self, scheduler: Scheduler, message: Callable[[str, Any], IncomingMessage]) -> None:
        self.scheduler = scheduler
        self._message = message
        self.messages: list[OutgoingMessage] = []
        self._changed = threading.Condition()
        scheduler.outbox.on_put = self._collect
        self.thread = threading.Thread(target=scheduler.start, daemon=True)
        self.thread.start()

    def _collect(self) -> None:
        with self._changed:
            self.messages += self.scheduler.outbox.drain()
            self._changed.notify_all()

    def submit(self, request_id: str, data: Any) -> None:
        self.scheduler.inbox.put(self._message(request_id, data))

    def of(self, request_id: str) -> list[OutgoingMessage]:
        """Everything so far about a request, in order."""
        with self._changed:
            return [message for message in self.messages if message.request_id == request_id]

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        with self._changed:
            assert self._changed.wait_for(condition, PATIENCE), f"{what}: not within {PATIENCE:g} s"

    def ended(self, request_id: str) -> OutgoingMessage:
        """The message that ended a request, once it is there."""

        def ends() -> list[OutgoingMessage]:
            return [m for m in self.messages if m.request_id == request_id and m.type != "stream"]

        self.wait(lambda: bool(ends()), f"the end of {request_id}")
        return ends()[0]


class SchedulerConformance:
    """Subclass it, say how your scheduler is made and what it is asked, and pytest runs every test.

    Attributes:
        concurrent: requests that are given at once.
    """

    concurrent = 8

    def make(self) -> Scheduler:
        """A new scheduler, not started."""
        raise NotImplementedError

    def good(self, number: int) -> Any:
        """The data of a request that succeeds; different for every number."""
        raise NotImplementedError

    def bad(self) -> Any:
        """The data of a request whose computation raises."""
        raise NotImplementedError

    def endless(self) -> Any:
        """The data of a request that goes on for seconds in many steps, or waits; ``None`` if there is no such thing."""
        return None

    def message(self, request_id: str, data: Any) -> IncomingMessage:
        """Return the message that the stage would put into the inbox for a request."""
        payload = StagePayload(request_id, OmniRequest(), data)
        return IncomingMessage(request_id, "new_request", payload, None, None, payload.request)

    def same(self, one: Any, other: Any) -> bool:
        """Return whether two results are equal."""
        return bool(one == other)

    @contextmanager
    def running(self) -> Iterator[Harness]:
        """A started scheduler that is stopped at the end, and must then end."""
        with self.running_one(self.make()) as harness:
            yield harness

    @contextmanager
    def running_one(self, scheduler: Scheduler) -> Iterator[Harness]:
        """The same of a scheduler that was made already."""
        harness = Harness(scheduler, self.message)
        try:
            yield harness
        finally:
            harness.scheduler.stop()
            harness.thread.join(PATIENCE)
        assert not harness.thread.is_alive(), "start() did not return after stop()"

    def test_it_is_a_scheduler(self) -> None:
        assert isinstance(self.make(), Scheduler)

    def test_requests_are_answered_once(self) -> None:
        with self.running() as harness:
            for number in range(self.concurrent):
                harness.submit(f"r{number}", self.good(number))
            for number in range(self.concurrent):
                assert harness.ended(f"r{number}").type == "result"
            time.sleep(0.1)
            for number in range(self.concurrent):
                ends = [message for message in harness.of(f"r{number}") if message.type != "stream"]
                assert len(ends) == 1, f"{len(ends)} ends for one request"

    def test_nothing_follows_the_result(self) -> None:
        with self.running() as harness:
            harness.submit("r", self.good(1))
            harness.ended("r")
            time.sleep(0.1)
            assert harness.of("r")[-1].type == "result"

    def test_company_changes_no_answer(self) -> None:
        with self.running() as harness:
            for number in range(self.concurrent):
                harness.submit(f"alone{number}", self.good(number))
                harness.ended(f"alone{number}")
            for number in range(self.concurrent):
                harness.submit(f"both{number}", self.good(number))
            for number in range(self.concurrent):
                one, both = harness.ended(f"alone{number}"), harness.ended(f"both{number}")
                assert self.same(one.data, both.data), f"request {number} has another result beside others"
                chunks = [
                    [m.data for m in harness.of(f"{kind}{number}") if m.type == "stream"] for kind in ("alone", "both")
                ]
                assert self.same(*chunks), f"request {number} streams something else beside others"

    def test_a_failing_request_hurts_nobody(self) -> None:
        with self.running() as harness:
            harness.submit("good1", self.good(1))
            harness.submit("bad", self.bad())
            harness.submit("good2", self.good(2))
            error = harness.ended("bad")
            assert error.type == "error"
            assert isinstance(error.data, BaseException), "an error's data is the exception"
            assert harness.ended("good1").type == harness.ended("good2").type == "result"
            harness.submit("later", self.good(3))
            assert harness.ended("later").type == "result"

    def test_inputs_are_left_as_they_are(self) -> None:
        with self.running() as harness:
            given, kept = self.good(1), self.good(1)
            harness.submit("r", given)
            harness.ended("r")
            assert self.same(given, kept), "the payload's data was changed"

    def test_an_aborted_request_says_nothing_more(self) -> None:
        with self.running() as harness:
            endless = self.endless()
            if endless is not None:
                harness.submit("endless", endless)
                time.sleep(0.1)
            harness.submit("waiting", self.good(1))
            harness.scheduler.abort("waiting")
            harness.scheduler.abort("waiting")
            harness.scheduler.abort("never seen")
            if endless is not None:
                harness.scheduler.abort("endless")
            time.sleep(0.2)
            said = len(harness.of("endless")), len(harness.of("waiting"))
            harness.submit("after", self.good(2))
            assert harness.ended("after").type == "result"
            time.sleep(0.2)
            assert (len(harness.of("endless")), len(harness.of("waiting"))) == said
            assert not [m for m in harness.of("endless") if m.type != "stream"], (
                "an aborted request was ended by a message"
            )

    def test_an_abort_right_after_a_message_was_read_counts(self) -> None:
        """The message is neither in the inbox nor admitted then."""
        with self.running() as harness:

            def abort_what_was_read(kind: str, items: list[IncomingMessage]) -> None:
                if kind == "take" and any(item.request_id == "aborted" for item in items):
                    harness.scheduler.abort("aborted")

            harness.scheduler.inbox.tap = abort_what_was_read
            harness.submit("aborted", self.good(1))
            harness.submit("after", self.good(2))
            assert harness.ended("after").type == "result"
            time.sleep(0.2)
            assert not harness.of("aborted"), "it was aborted before it was admitted, and answered"

    def test_nothing_is_kept_of_ended_requests(self) -> None:
        with self.running() as harness:
            statistics = getattr(harness.scheduler, "statistics", dict)
            harness.submit("first", self.good(0))
            harness.ended("first")
            for number in range(3 * self.concurrent):
                harness.submit(f"r{number}", self.good(number))
                if number % 3 == 0:
                    harness.scheduler.abort(f"r{number}")
            for number in range(3 * self.concurrent):
                if number % 3:
                    harness.ended(f"r{number}")
            deadline = time.monotonic() + 5
            while left := {k: v for k, v in statistics().items() if k in ("waiting", "running", "pending") and v}:
                assert time.monotonic() < deadline, f"left over: {left}"
                time.sleep(0.01)

    def test_it_sleeps_when_there_is_nothing_to_do(self) -> None:
        with self.running() as harness:
            harness.submit("r", self.good(1))
            harness.ended("r")
            time.sleep(0.1)
            thread = harness.thread.native_id
            assert thread is not None
            begin, woken = time.process_time(), wake_ups(thread)
            time.sleep(0.5)
            assert time.process_time() - begin < 0.03, "an idle scheduler uses CPU"
            assert wake_ups(thread) - woken < WAKE_UPS_PER_SECOND / 2, "an idle scheduler wakes up to look"

    def test_stopping_ends_it_soon(self) -> None:
        with self.running() as harness:
            endless = self.endless()
            if endless is not None:
                harness.submit("endless", endless)
                time.sleep(0.1)
            begin = time.monotonic()
            harness.scheduler.stop()
            harness.scheduler.stop()
            harness.thread.join(PATIENCE)
            assert time.monotonic() - begin < 5.0, "stop() took too long"
