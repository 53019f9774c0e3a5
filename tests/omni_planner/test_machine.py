"""Processes get processors in slices, messages go before turns, and devices are shared equally."""

from __future__ import annotations

import random
from functools import partial

import pytest

from omni_planner.linux_cores import LinuxCores
from omni_planner.machine import LOCK_SHARE, Clock, Device, Process


def test_three_processes_on_two_processors_get_equal_shares() -> None:
    clock, ends = Clock([2], tick=0.001), dict[str, float]()
    for name, seconds in (("a", 1.0), ("b", 2.0), ("c", 3.0)):
        Process(clock.machines[0]).compute(seconds, lambda name=name: ends.setdefault(name, clock.now))  # type: ignore[misc]
    clock.run()
    # Each gets 2/3 of a processor until a has had 1 s, at 1.5 s; then b and c have one each.
    assert ends == pytest.approx({"a": 1.5, "b": 2.5, "c": 3.5}, abs=0.003)
    assert clock.busy[0] == pytest.approx(6.0)


def test_a_process_that_wakes_waits_for_the_end_of_a_slice() -> None:
    clock, ends = Clock([1], tick=0.01), dict[str, float]()
    cores = clock.machines[0]
    Process(cores).compute(0.1, lambda: ends.setdefault("long", clock.now))
    clock.after(0.043, lambda: Process(cores).compute(0.001, lambda: ends.setdefault("short", clock.now)))
    clock.run()
    assert ends == pytest.approx({"short": 0.051, "long": 0.101}), "the tick after 43 ms is at 50 ms"


def test_the_process_that_has_used_least_is_next() -> None:
    clock, ends = Clock([1], tick=0.01), dict[str, float]()
    for name in ("a", "b"):
        Process(clock.machines[0]).compute(0.1, lambda name=name: ends.setdefault(name, clock.now))  # type: ignore[misc]
    clock.run()
    assert sorted(ends.values()) == pytest.approx([0.19, 0.2]), "slice by slice in turn"


def test_messages_of_a_process_interrupt_its_turns() -> None:
    clock, ends = Clock([2], tick=0.01), dict[str, float]()
    process = Process(clock.machines[0])
    process.compute(0.05, lambda: ends.setdefault("turn", clock.now))
    clock.after(0.021, lambda: process.do(0.002, lambda: ends.setdefault("message", clock.now)))
    clock.run()
    assert ends == pytest.approx({"message": 0.023, "turn": 0.052}), "one thread of a process runs at a time"


def test_a_turn_waits_for_the_messages_of_its_process_for_a_part_of_their_time() -> None:
    clock, ends = Clock([2], tick=0.01), dict[str, float]()
    messages, turns, other = (Process(clock.machines[0]) for _ in range(3))
    messages.scheduler = turns
    turns.compute(0.05, lambda: ends.setdefault("turn", clock.now))
    clock.after(0.01, lambda: messages.do(0.01, lambda: ends.setdefault("message", clock.now)))
    clock.after(0.03, lambda: other.do(0.01, lambda: ends.setdefault("of another process", clock.now)))
    clock.after(0.07, lambda: messages.do(0.01, lambda: ends.setdefault("after it", clock.now)))
    clock.run()
    held = 0.01 * LOCK_SHARE
    assert ends == pytest.approx({"message": 0.02, "of another process": 0.04, "turn": 0.05 + held, "after it": 0.08})
    assert (turns.worked, messages.worked) == pytest.approx((0.05, 0.02)), "it waits, and uses no more"


def test_two_turns_of_a_process_share_one_processor() -> None:
    clock, ends = Clock([2], tick=0.001), dict[str, float]()
    process = Process(clock.machines[0])
    process.compute(0.1, lambda: ends.setdefault("a", clock.now))
    process.compute(0.1, lambda: ends.setdefault("b", clock.now))
    clock.run()
    assert max(ends.values()) == pytest.approx(0.2)
    assert min(ends.values()) == pytest.approx(0.199, abs=0.002)


def test_a_killed_process_gives_its_processor_to_the_next() -> None:
    clock, ends = Clock([1], tick=0.01), dict[str, float]()
    first, second = (Process(clock.machines[0]) for _ in range(2))
    first.compute(1.0, lambda: ends.setdefault("first", clock.now))
    second.compute(0.1, lambda: ends.setdefault("second", clock.now))
    clock.after(0.045, first.kill)
    clock.run()
    first.compute(1.0, lambda: ends.setdefault("first", clock.now))
    clock.run()
    assert list(ends) == ["second"]
    assert ends["second"] == pytest.approx(0.125, abs=0.006)


def test_jobs_share_a_device_equally_and_can_be_dropped() -> None:
    clock, ends = Clock([], devices=1), dict[str, float]()
    device: Device = clock.devices[0]
    device.compute(1.0, lambda: ends.setdefault("a", clock.now))
    device.compute(2.0, lambda: ends.setdefault("b", clock.now))
    dropped = device.compute(3.0, lambda: ends.setdefault("c", clock.now))
    clock.after(1.5, lambda: device.drop({dropped}))
    clock.run()
    # Each has had half a second when c is dropped; then a and b share.
    assert ends == pytest.approx({"a": 2.5, "b": 3.5})
    assert clock.busy[0] == pytest.approx(3.5)


def test_it_stops_at_a_time() -> None:
    clock, seen = Clock([1]), list[float]()
    Process(clock.machines[0]).compute(2.0, lambda: seen.append(clock.now))
    clock.run(until=1.0)
    assert (clock.now, seen) == (1.0, [])
    clock.run()
    assert seen == [2.0]


def test_a_job_ends_after_days() -> None:
    """Rounding leaves a rest of a job that may be less than the clock can add to so late a time."""
    clock = Clock([1])
    process, ends = Process(clock.machines[0]), list[float]()

    def begin(count: int) -> None:
        if count:
            process.compute(
                0.0123456789, lambda: (ends.append(clock.now), clock.after(0.777, lambda: begin(count - 1)))[0]
            )

    clock.after(300_000.0, lambda: begin(1000))
    clock.run(until=400_000.0)
    assert len(ends) == 1000
    assert clock.busy[0] == pytest.approx(12.3456789)


def test_a_machine_has_another_speed_in_each_second() -> None:
    clock, ends = Clock([2], slowness=[1.0, 3.0]), list[float]()
    turns, messages = Process(clock.machines[0]), Process(clock.machines[0])
    for begin, act in ((0.0, turns.compute), (1.0, turns.compute), (2.5, messages.do), (3.5, messages.do)):
        clock.after(begin, partial(act, 0.1, lambda: ends.append(clock.now)))
    clock.run()
    assert ends == pytest.approx([0.1, 1.3, 2.6, 3.8])


def on_two_processors(busy: float, wakes: float, seconds: float = 0.001) -> float:
    """Return when a process ends that wakes on a processor which another one uses for 1 s; the second one is used for ``busy`` seconds."""
    clock, ends = Clock([2], tick=0.004, kind=LinuxCores), dict[str, float]()
    cores = clock.machines[0]
    sleeper, long, other = Process(cores), Process(cores), Process(cores)

    def begin() -> None:
        long.compute(1.0, lambda: ends.setdefault("long", clock.now))
        other.compute(busy, lambda: ends.setdefault("other", clock.now))

    sleeper.compute(0.001, lambda: None)
    clock.after(0.0015, begin)
    clock.after(wakes, lambda: sleeper.compute(seconds, lambda: ends.setdefault("sleeper", clock.now)))
    clock.run()
    assert clock.busy[0] == pytest.approx(1.001 + busy + seconds)
    return ends["sleeper"]


def test_linux_looks_for_another_processor_where_they_are_little_used() -> None:
    assert on_two_processors(0.001, 0.5012) == pytest.approx(0.5022)


def test_linux_lets_a_process_wait_where_it_ran_if_processors_are_much_used() -> None:
    assert on_two_processors(0.3, 0.3012) == pytest.approx(0.305), "from the next tick on, though the other one is free"


def test_linux_moves_what_waits_to_a_free_processor_at_a_tick() -> None:
    end = on_two_processors(0.3, 0.3012, seconds=0.1)
    assert end == pytest.approx(0.408), "at the third tick, because one has just run at each of the first two"


def test_linux_lets_a_process_that_is_behind_run_when_it_wakes() -> None:
    clock, ends = Clock([1], tick=0.004, kind=LinuxCores), list[float]()
    long, short = Process(clock.machines[0]), Process(clock.machines[0])
    long.compute(0.1, lambda: None)
    for wakes in (0.0005, 0.0072):
        clock.after(wakes, lambda: short.compute(0.001, lambda: ends.append(clock.now)))
    clock.run()
    assert ends == pytest.approx([0.005, 0.0082]), "it has waited for a tick once, and is owed the time"


@pytest.mark.parametrize("cores", [1, 2, 3, 8])
@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("kills", [False, True])
def test_linux_processors_do_all_work_once(cores: int, seed: int, kills: bool) -> None:
    draw, clock = random.Random(seed), Clock([cores], tick=0.004, kind=LinuxCores)
    processes = [Process(clock.machines[0]) for _ in range(2 * cores + 2)]
    doomed, asked, done = processes[0], list[float](), list[float]()

    def give() -> None:
        process, seconds = draw.choice(processes), draw.expovariate(1000)
        counts = process is not doomed or not kills
        if counts:
            asked.append(seconds)
        act = process.do if draw.random() < 0.5 else process.compute
        act(seconds, lambda: done.append(seconds) if counts else None)

    for _ in range(2000):
        clock.after(draw.uniform(0.0, 1.2 / cores), give)
    if kills:
        clock.after(0.3 / cores, doomed.kill)
    clock.run()
    assert sorted(done) == sorted(asked)
    lost = clock.busy[0] - sum(done)  # to the one that was killed, of what it was given before
    assert -1e-9 < lost < (doomed.worked + 1e-9 if kills else 1e-9)
    assert all(each is None for each in clock.machines[0].running)
