"""Turns of schedulers in a profile: their counters, their processor time, and when they began."""

from __future__ import annotations

import time

from running import running

from omni_cli.tracing.recorder import Recorder
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage
from omni_core.scheduling.simple import SimpleScheduler


def test_turns_of_a_scheduler_are_recorded_with_what_they_did() -> None:
    recorder = Recorder("process")
    scheduler = SimpleScheduler(lambda payload: payload.data)
    recorder.attach("a", scheduler.inbox, scheduler)
    for name in ("x", "y"):
        scheduler.inbox.put(IncomingMessage(name, "new_request", StagePayload(name, OmniRequest(), 1)))
    scheduler.stop()
    scheduler.start()
    turns = [event for event in recorder.finish() if event.get("cat") == "turn"]
    assert [event["name"] for event in turns] == ["a: turn"] * 2
    assert [{name: event["args"][name] for name in ("taken", "steps", "computed")} for event in turns] == [
        {"taken": 1, "steps": 1.0, "computed": 1.0}
    ] * 2
    assert all(event["args"]["cpu"] <= event["dur"] + 1000 for event in turns)
    assert [event["name"] for event in recorder.finish() if event.get("cat") == "process"] == ["processor time"]


def test_a_turn_begins_when_the_message_that_it_waited_for_has_come() -> None:
    recorder = Recorder("process")
    scheduler = SimpleScheduler(lambda payload: payload.data)
    recorder.attach("a", scheduler.inbox, scheduler)
    with running(scheduler):
        time.sleep(0.05)
        put = time.monotonic_ns() / 1e3
        scheduler.inbox.put(IncomingMessage("x", "new_request", StagePayload("x", OmniRequest(), 1)))
    [turn] = [event for event in recorder.finish() if event.get("cat") == "turn"]
    assert turn["ts"] >= put
