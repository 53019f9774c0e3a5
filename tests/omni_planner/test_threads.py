"""The processor time of threads is read from the system, and becomes the costs of messages."""

from __future__ import annotations

import os
import sys
import threading
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from planner_lines import pipeline, profile

from omni_planner.costs import Cost
from omni_planner.profile import CLIENT, TRANSFERS, PipelineProfile, Visit, messages_of
from omni_planner.requests import Arrival
from omni_planner.simulate import processor_use, simulate
from omni_planner.threads import usage

needs_proc = pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc")


def burn() -> None:
    end = time.thread_time() + 0.05
    while time.thread_time() < end:
        pass


@needs_proc
def test_the_first_thread_and_the_others_are_told_apart() -> None:
    before = usage(os.getpid())
    assert before is not None
    inside = usage(os.getpid())

    def other() -> None:
        nonlocal inside
        burn()
        inside = usage(os.getpid())

    thread = threading.Thread(target=other)
    thread.start()
    thread.join()
    assert inside is not None
    assert inside.since(before).others >= 0.045
    assert inside.since(before).wakes >= 1, "this thread has waited for the other"
    burn()
    after = usage(os.getpid())
    assert after is not None
    assert after.since(inside).loop >= 0.045


def test_a_process_that_is_gone_has_no_usage() -> None:
    assert usage(2**22 + 1) is None


def test_messages_of_a_request_are_counted_at_both_ends() -> None:
    sample = {
        "a": Visit([CLIENT], ["b"], {"b": 3}),
        "b": Visit(["a"], [CLIENT], {CLIENT: 2}),
    }
    assert [messages_of(sample, each) for each in (CLIENT, "a", "b")] == [4, 5, 7]


def woken(message: float, wake: float) -> PipelineProfile:
    """A profile in which messages and wakes cost something."""
    made = profile("a", "b", seconds=0.0)
    for place in (made.client, *(made.stages[name].transfers for name in "ab")):
        place["text"] = Cost.over(TRANSFERS)
        for messages, wakes in ((1, 1), (5, 1), (5, 2)):
            place["text"].observe({"messages": messages, "wakes": wakes}, messages * message + wakes * wake)
    return made


def test_a_thread_that_wakes_for_a_message_costs_more() -> None:
    made = woken(0.001, 0.01)
    arrival = Arrival(None, "text", made.kinds["text"][0])
    assert simulate(pipeline("a", "b"), made, [arrival]).seconds == pytest.approx(6 * 0.011)
    used = processor_use(pipeline("a", "b"), made, [arrival], 1)
    assert {name: wakes for name, (wakes, _) in used.items()} == {CLIENT: 2, "a": 2, "b": 2}
    together = processor_use(pipeline("a", "b"), made, [arrival] * 8, 8)
    assert together["b"][0] < 16, "a thread that works takes the next message without a wake"
