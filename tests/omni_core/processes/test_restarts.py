"""The life of a unit: events and times in, actions out."""

from __future__ import annotations

import pytest

from omni_core.config.schema import RestartConfig
from omni_core.processes.actions import (
    Action,
    Changed,
    Died,
    Failed,
    Kill,
    Launch,
    Ping,
    Ready,
    Stalled,
    Started,
    UnitState,
)
from omni_core.processes.restarts import ABORT_GRACE_SECONDS, COMPUTE_SECONDS, LAST_MESSAGE_SECONDS, STALL_SECONDS, Unit
from omni_core.protocol.process_messages import RunningCompute

POLICY = RestartConfig(limit=3, window=60.0, backoff=0.5, backoff_limit=1.5)


def make(*names: str, **fields: object) -> Unit:
    return Unit("stage", names or ("p",), POLICY, 10.0, **fields)  # type: ignore[arg-type]


def ready(unit: Unit, now: float = 0.0) -> Unit:
    assert unit.launch(now) == [Launch()]
    for name in unit.names:
        unit.process_is_ready(name, now)
    assert unit.state is UnitState.READY
    return unit


def die(unit: Unit, now: float, name: str = "p") -> list[Action]:
    return unit.exited(name, f"{name} is dead", now)


# --- start -----------------------------------------------------------------------------------------------------------
def test_a_start() -> None:
    unit = make()
    assert unit.launch(5.0) == [Launch()]
    assert unit.deadline == 15.0
    assert unit.process_is_ready("p", 6.0) == [Changed(UnitState.READY), Ready(False), Started()]
    assert unit.deadline is None
    assert unit.process_is_ready("p", 7.0) == []


def test_all_ranks_must_be_ready() -> None:
    unit = make("r0", "r1")
    unit.launch(0.0)
    assert unit.process_is_ready("r1", 1.0) == []
    assert unit.process_is_ready("r0", 2.0) == [Changed(UnitState.READY), Ready(False), Started()]


def test_a_start_that_takes_too_long_names_the_late_processes() -> None:
    unit = make("r0", "r1")
    unit.launch(0.0)
    unit.process_is_ready("r0", 1.0)
    assert unit.clock(9.9) == []
    reason = "not ready within its startup_timeout of 10 s"
    assert unit.clock(10.0) == [
        Kill(),
        Changed(UnitState.FAILED),
        Started(f"stage 'stage': {reason}", ["r1"]),
    ]
    assert unit.deadline is None


def test_a_process_that_cannot_be_started() -> None:
    unit = make("r0", "r1")
    unit.launch(0.0)
    kill, failed, started = unit.launch_failed(["r0"], "no memory", 0.0)
    assert (kill, failed) == (Kill(), Changed(UnitState.FAILED))
    assert isinstance(started, Started)
    assert "could not be started: no memory" in started.problem


def test_a_death_during_the_start_waits_for_the_message_with_the_reason() -> None:
    unit = make()
    unit.launch(0.0)
    assert die(unit, 1.0) == []
    assert unit.deadline == 1.0 + LAST_MESSAGE_SECONDS
    actions = unit.start_failed("stage", "ValueError: bad", "trace", 1.01)
    assert actions[-1] == Started("stage 'stage' could not be started: ValueError: bad\ntrace")
    assert unit.clock(2.0) == []


def test_a_death_during_the_start_without_a_message() -> None:
    unit = make()
    unit.launch(0.0)
    die(unit, 1.0)
    actions = unit.clock(1.0 + LAST_MESSAGE_SECONDS)
    assert actions == [
        Kill(),
        Changed(UnitState.FAILED),
        Started("stage 'stage' could not be started: p is dead", ["p"]),
    ]


# --- death and restart -----------------------------------------------------------------------------------------------
def test_restarts_back_off_and_end() -> None:
    unit = ready(make())
    pauses = []
    for number in range(3):
        now = 1.0 + 5 * number
        assert die(unit, now) == [Kill(), Changed(UnitState.RESTARTING), Died("p is dead")]
        assert unit.deadline is not None
        pauses.append(unit.deadline - now)
        assert unit.clock(unit.deadline) == [Launch()]
        assert unit.settled(now, now + 1) == []
        assert unit.process_is_ready("p", now + 2) == [Changed(UnitState.READY), Ready(True)]
        assert unit.restarts == number + 1
    assert pauses == [0.0, 0.5, 1.0]
    assert die(unit, 20.0) == [Kill(), Changed(UnitState.RESTARTING), Died("p is dead")]
    assert unit.deadline is None, "it waits for what is known about its death"
    assert unit.settled(12.0, 20.1) == []
    assert unit.settled(20.0, 20.5) == [Changed(UnitState.FAILED), Kill(), Failed("p is dead", 4, 60.0)]
    assert unit.settled(20.0, 20.6) == []
    assert unit.deadline == 80.5
    assert unit.process_is_ready("p", 21.0) == []


def test_a_successor_serves_once_it_is_known_what_died_with_its_predecessor() -> None:
    """Else what others still hold for requests that died would reach it: the second half of a stream, without the first."""
    unit = ready(make())
    die(unit, 1.0)
    unit.clock(1.0)
    assert unit.process_is_ready("p", 1.1) == []
    assert unit.settled(0.5, 1.2) == [], "that was another death"
    assert unit.settled(1.0, 1.3) == [Changed(UnitState.READY), Ready(True)]


def test_deaths_that_a_request_was_the_cause_of_do_not_count_but_slow_restarts_down() -> None:
    unit = ready(make())
    pauses = []
    for number in range(20):
        now = 5.0 * number
        assert Died("p is dead") in die(unit, now)
        assert unit.state is UnitState.RESTARTING
        unit.excuse(now)
        assert unit.settled(now, now) == []
        assert unit.deadline is not None
        pauses.append(unit.deadline - now)
        unit.clock(unit.deadline)
        unit.process_is_ready("p", now + 2)
    assert pauses == [0.0, 0.5, 1.0, *[1.5] * 17]
    for number in range(4):
        die(unit, 100.0 + number)
        unit.settled(100.0 + number, 100.0 + number)
        assert unit.state is (UnitState.FAILED if number == 3 else UnitState.RESTARTING)
        unit.clock(unit.deadline or 0.0)
        unit.process_is_ready("p", 100.0 + number)


@pytest.mark.parametrize("is_running", [False, True])
def test_a_death_that_is_one_too_many_is_followed_by_a_restart_where_it_is_excused(is_running: bool) -> None:
    unit = Unit("stage", ["p", "q"], RestartConfig(limit=1), 10.0)
    ready(unit)
    for now in (1.0, 2.0):
        die(unit, now)
        if not is_running or now == 1.0:
            die(unit, now, "q")
        if now == 1.0:
            unit.clock(1.0)
            for name in "pq":
                unit.process_is_ready(name, 1.0)
    unit.excuse(1.0)
    assert unit.settled(2.0, 2.5) == []
    if is_running:
        assert unit.deadline is None
        die(unit, 2.6, "q")
    assert unit.clock(unit.deadline or 0.0) == [Launch()]


def test_the_pause_is_bounded() -> None:
    unit = ready(Unit("stage", ["p"], RestartConfig(10, 60.0, 0.5, 1.5), 10.0))
    for _ in range(5):
        die(unit, 1.0)
        assert unit.deadline is not None
        unit.clock(unit.deadline)
        unit.process_is_ready("p", 1.0)
    die(unit, 2.0)
    assert unit.deadline == 3.5


def test_deaths_are_forgotten() -> None:
    unit = ready(make())
    for number in range(10):
        now = 100.0 * number
        die(unit, now)
        assert unit.deadline == now
        unit.clock(now)
        unit.process_is_ready("p", now)
    assert unit.restarts == 10


def test_a_death_during_a_restart_counts_too() -> None:
    unit = ready(make())
    die(unit, 1.0)
    unit.clock(1.0)
    die(unit, 2.0)
    assert unit.clock(2.0 + LAST_MESSAGE_SECONDS) == [Kill(), Died("p is dead")]
    assert unit.deadline == 2.0 + LAST_MESSAGE_SECONDS + POLICY.backoff


def test_the_exit_after_a_failed_restart_does_not_end_the_next_one() -> None:
    unit = ready(make())
    die(unit, 1.0)
    unit.clock(1.0)
    unit.settled(1.0, 1.5)
    die(unit, 2.0)
    unit.start_failed("stage", "ValueError: bad", "", 2.01)
    unit.settled(2.01, 2.05)
    assert unit.clock(2.51) == [Launch()]
    assert unit.clock(2.6) == []
    assert unit.process_is_ready("p", 3.0)[-1] == Ready(True)


def test_a_dead_rank_ends_all_ranks() -> None:
    unit = ready(make("r0", "r1"))
    assert die(unit, 1.0, "r1") == [
        Kill(),
        Changed(UnitState.RESTARTING),
        Died("r1 is dead (rank process 'r1')"),
    ]
    assert unit.deadline is None, "the other rank is still there"
    assert die(unit, 1.2, "r0") == []
    assert unit.deadline == 1.2
    assert unit.clock(1.2) == [Launch()]


# --- stop ------------------------------------------------------------------------------------------------------------
def test_a_stop_during_a_restart() -> None:
    unit = ready(make())
    die(unit, 1.0)
    unit.stop()
    assert unit.deadline is None
    assert unit.clock(100.0) == []
    assert unit.state is UnitState.STOPPED


def test_exits_after_a_stop_are_expected() -> None:
    unit = ready(make())
    unit.stop()
    assert die(unit, 1.0) == []
    assert unit.deadline is None


# --- stalls ----------------------------------------------------------------------------------------------------------
def test_a_stall_and_its_end() -> None:
    unit = ready(make())
    assert unit.beat(0.0) == [Ping("p")]
    assert unit.beat(1.0) == []
    assert unit.beat(STALL_SECONDS) == [Stalled("p"), Changed(UnitState.STALLED)]
    assert unit.serves
    assert unit.must_be_watched
    assert unit.answered("p", [], {}, 50.0) == [Changed(UnitState.READY)]
    assert not unit.must_be_watched


def test_a_stall_ends_when_every_rank_answers() -> None:
    unit = ready(make("r0", "r1"))
    assert unit.beat(0.0) == [Ping("r0"), Ping("r1")]
    unit.beat(STALL_SECONDS)
    assert unit.answered("r0", [], {}, 4.0) == []
    assert unit.answered("r1", [], {}, 4.0) == [Changed(UnitState.READY)]


@pytest.mark.parametrize(("timeouts", "limit"), [({}, COMPUTE_SECONDS), ({"a": 20.0, "b": 7.0}, 20.0)])
def test_a_stall_is_bounded(timeouts: dict[str, float], limit: float) -> None:
    unit = ready(make(compute_timeouts=timeouts))
    unit.beat(0.0)
    unit.beat(STALL_SECONDS)
    assert unit.beat(limit - 0.1) == []
    kill, changed, died = unit.beat(limit)
    assert (kill, changed) == (Kill(), Changed(UnitState.RESTARTING))
    assert died == Died(f"its process 'p' has not answered for {limit:.0f} s")


def test_a_stalled_process_that_drops_no_aborted_request_is_ended() -> None:
    unit = ready(make())
    unit.beat(0.0)
    unit.request_is_over(1.0)
    unit.request_is_over(20.0)
    unit.beat(STALL_SECONDS)
    assert unit.beat(0.9 + ABORT_GRACE_SECONDS) == []
    assert unit.beat(1.0 + ABORT_GRACE_SECONDS)[0] == Kill()
    assert "aborted" in unit.reason


def test_an_abort_that_was_read_before_the_stall_does_not_count() -> None:
    unit = ready(make())
    unit.request_is_over(0.1)
    unit.beat(1.0)
    unit.answered("p", [], {}, 1.1)
    unit.beat(2.0)
    unit.beat(2.0 + STALL_SECONDS)
    assert unit.beat(3.0 + ABORT_GRACE_SECONDS) == []


def test_an_answer_to_an_earlier_ping_does_not_prove_that_an_abort_was_read() -> None:
    unit = ready(make())
    unit.beat(0.0)
    unit.request_is_over(0.1)
    unit.answered("p", [], {}, 0.2)
    unit.beat(1.0)
    unit.beat(1.0 + STALL_SECONDS)
    assert unit.beat(0.1 + ABORT_GRACE_SECONDS)[0] == Kill()


def test_of_several_aborts_the_first_unread_counts() -> None:
    unit = ready(make())
    unit.request_is_over(0.1)
    unit.beat(1.0)
    unit.request_is_over(1.5)
    unit.answered("p", [], {}, 1.6)
    unit.beat(2.0)
    unit.beat(2.0 + STALL_SECONDS)
    assert unit.beat(1.4 + ABORT_GRACE_SECONDS) == []
    assert unit.beat(1.5 + ABORT_GRACE_SECONDS)[0] == Kill()


def test_a_process_is_asked_again_after_an_abort_that_its_last_answer_may_not_have_seen() -> None:
    """A compute that it has begun in between would compute for ever, unnoticed, until the next request."""
    unit = ready(make())
    unit.beat(1.0)
    unit.request_is_over(1.5)
    unit.answered("p", [], {}, 5.0)
    assert unit.must_be_watched
    assert unit.beat(6.0) == [Ping("p")]
    unit.answered("p", [], {}, 6.1)
    assert not unit.must_be_watched


# --- computes --------------------------------------------------------------------------------------------------------
def test_a_compute_that_takes_too_long_ends_the_process_and_names_the_request() -> None:
    unit = ready(make(compute_timeouts={"work": 5.0}))
    unit.beat(0.0)
    assert unit.answered("p", [RunningCompute("work", "r~1", 4.9)], {"r~1": 1}, 0.1) == []
    assert unit.must_be_watched
    actions = unit.answered("p", [RunningCompute("work", "r~1", 5.0)], {"r~1": 1}, 0.2)
    assert actions[:2] == [Kill(), Changed(UnitState.RESTARTING)]
    assert "request 'r' in stage 'work' has not ended within its compute_timeout of 5 s" in unit.reason


def test_a_compute_has_a_generous_limit_by_default() -> None:
    unit = ready(make())
    assert unit.answered("p", [RunningCompute("work", "r", COMPUTE_SECONDS - 1)], {"r": 1}, 0.0) == []
    assert unit.answered("p", [RunningCompute("work", "r", COMPUTE_SECONDS)], {"r": 1}, 1.0)


def test_the_compute_of_an_aborted_request_has_a_grace_period() -> None:
    unit = ready(make())
    running = [RunningCompute("work", "r", 100.0)]
    assert unit.answered("p", running, {"r": 1}, 0.0) == []
    assert unit.answered("p", running, {}, 10.0) == []
    assert unit.answered("p", running, {}, 9.0 + ABORT_GRACE_SECONDS) == []
    assert unit.answered("p", running, {}, 10.0 + ABORT_GRACE_SECONDS)[0] == Kill()
    assert "'r'" in unit.reason
    assert "after the request was aborted" in unit.reason


def test_a_compute_that_ends_in_time_is_forgotten() -> None:
    unit = ready(make())
    running = [RunningCompute("work", "r", 100.0)]
    unit.answered("p", running, {}, 0.0)
    unit.answered("p", [], {}, 1.0)
    assert not unit.must_be_watched
    assert unit.answered("p", running, {}, 2.0 + ABORT_GRACE_SECONDS) == []


# --- failed units ----------------------------------------------------------------------------------------------------
def failed(unit: Unit) -> Unit:
    ready(unit)
    for _ in range(3):
        die(unit, 20.0)
        unit.settled(20.0, 20.0)
        unit.clock(unit.deadline or 0.0)
        unit.process_is_ready("p", 20.0)
    die(unit, 20.0)
    unit.settled(20.0, 20.0)
    assert unit.state is UnitState.FAILED
    return unit


def test_a_failed_unit_is_tried_again_when_the_window_has_passed_and_serves_again() -> None:
    unit = failed(make())
    assert unit.clock(79.9) == []
    assert unit.clock(80.0) == [Launch()]
    assert (unit.state, unit.serves) == (UnitState.FAILED, False)
    assert unit.process_is_ready("p", 81.0) == [Changed(UnitState.READY), Ready(True)]
    assert die(unit, 82.0) == [Kill(), Changed(UnitState.RESTARTING), Died("p is dead")], "its deaths are forgotten"


@pytest.mark.parametrize("how", ["exit", "message", "late", "no place"])
def test_trials_in_vain_come_later_and_later(how: str) -> None:
    unit = failed(make())
    now, pauses = 20.0, []
    for _ in range(6):
        assert unit.deadline is not None
        pauses.append(unit.deadline - now)
        now = unit.deadline
        assert unit.clock(now) == [Launch()]
        if how == "exit":
            assert die(unit, now) == []
            now = unit.deadline
            actions = unit.clock(now)
        elif how == "message":
            actions = unit.start_failed("stage", "no weights", "", now)
            die(unit, now)
        elif how == "late":
            now = unit.deadline
            actions = unit.clock(now)
            die(unit, now)
        else:
            actions = unit.launch_failed([], "no place", now)
        kill, failure = actions
        assert (kill, type(failure), unit.state) == (Kill(), Failed, UnitState.FAILED)
    assert pauses == pytest.approx([60.0, 120.0, 240.0, 480.0, 600.0, 600.0])


def test_a_limit_of_no_restart_is_for_good_and_a_stopped_unit_is_not_tried() -> None:
    unit = ready(Unit("stage", ("p",), RestartConfig(limit=0), 10.0))
    die(unit, 1.0)
    unit.excuse(1.0)
    assert unit.settled(1.0, 1.0)[-1] == Failed("p is dead", 1, None)
    assert unit.deadline is None
    unit = failed(make())
    unit.stop()
    assert unit.deadline is None
    unit = make()
    unit.launch(0.0)
    unit.start_failed("stage", "no weights", "", 1.0)
    die(unit, 1.0)
    assert (unit.state, unit.deadline) == (UnitState.FAILED, None), "it has never served"
