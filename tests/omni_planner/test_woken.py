"""A turn begins after a wait in a recording exactly where it does so in a simulation, and takes what has come until then."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from omni_core.config.schema import StageConfig
from omni_planner.machine import Clock, Process
from omni_planner.profile import CLIENT, WAIT, StageProfile, Visit
from omni_planner.replica import OwnThread, Replica
from omni_planner.requests import Arrival, Flight
from omni_planner.stages import PAYLOAD, FunctionStage
from omni_planner.trace import Window, read


def turn(begin: float, dur: float, cpu: float) -> dict[str, Any]:
    args = {"stage": "a", "cpu": cpu, "taken": 1, "steps": 1, "computed": 1}
    return {"cat": "turn", "ts": begin, "dur": dur, "pid": 1, "args": args}


def test_a_recorded_turn_is_woken_by_a_message_after_a_rest_and_not_by_the_loss_of_its_processor() -> None:
    rest = 1e6 * WAIT
    events = [turn(1e6, 500, 500), turn(1e6 + 600, 900, 300), turn(1e6 + 1500 + 1.5 * rest, 400, 400)]
    found, _ = read(events, [Window("text", 0.0, 1e9, alone=False)])
    assert [each.counts["woken"] for each in found.turns] == [1.0, 0.0, 1.0]


def test_a_simulated_turn_is_woken_by_a_message_after_a_rest() -> None:
    profile, clock, ends = StageProfile("function"), Clock([]), list[float]()
    for count, woken in ((1.0, 0.0), (1.0, 1.0), (2.0, 0.0)):
        profile.observe("", {"turns": count, "requests": count, "woken": woken}, 0.010 * count + 0.003 * woken)
    stage = FunctionStage("a", profile, profile.costing(StageConfig(name="a", factory="m:f")))
    replica = Replica(stage, clock, [], OwnThread(clock), lambda replica, outputs: ends.append(clock.now))
    made = Flight("r", Arrival(0.0, "", {"a": Visit([CLIENT], [CLIENT])}), 0.0)
    begins = [1.0, 1.010 + 0.003 + 0.5 * WAIT, 2.0]
    for begin in begins:
        clock.after(begin, lambda: replica.deliver(made, PAYLOAD, CLIENT))
    clock.run()
    assert [round(1e3 * (end - begin)) for begin, end in zip(begins, ends, strict=True)] == [13, 10, 13]


def test_a_thread_that_waits_for_a_processor_takes_what_comes_meanwhile() -> None:
    profile, clock, ends = StageProfile("function"), Clock([1]), list[int]()
    profile.observe("", {"turns": 1.0, "requests": 0.0}, 0.010)
    settings = {"batch_size": 4}
    stage = FunctionStage("a", profile, profile.costing(StageConfig(name="a", factory="m:f")), settings)
    loop, thread, other = (Process(clock.machines[0]) for _ in range(3))
    replica = Replica(stage, clock, [], loop, lambda replica, outputs: ends.append(len(outputs)), thread)
    other.compute(0.003, lambda: None)  # less than a slice: it keeps the only processor
    for number in range(3):
        made = Flight(str(number), Arrival(0.0, "", {"a": Visit([CLIENT], [CLIENT])}), 0.0)
        clock.after(0.0005 + 0.001 * number, partial(replica.deliver, made, PAYLOAD, CLIENT))
    clock.run()
    assert ends == [3], "results of one turn"
    assert clock.now == pytest.approx(0.013)
    assert replica.worked == pytest.approx(0.010)


def test_a_batch_that_has_waited_takes_what_comes_until_it_has_a_processor() -> None:
    profile, clock, ends = StageProfile("function"), Clock([1]), list[int]()
    profile.observe("", {"turns": 1.0, "requests": 0.0}, 0.010)
    settings = {"batch_size": 4, "batch_wait": 0.001}
    stage = FunctionStage("a", profile, profile.costing(StageConfig(name="a", factory="m:f")), settings)
    loop, thread, other = (Process(clock.machines[0]) for _ in range(3))
    replica = Replica(stage, clock, [], loop, lambda replica, outputs: ends.append(len(outputs)), thread)
    for number, when in enumerate((0.0, 0.002, 0.0025)):
        made = Flight(str(number), Arrival(0.0, "", {"a": Visit([CLIENT], [CLIENT])}), 0.0)
        clock.after(when, partial(replica.deliver, made, PAYLOAD, CLIENT))
    clock.after(0.0005, partial(other.compute, 0.003, lambda: None))
    clock.run()
    assert ends == [3], "results of one turn"
