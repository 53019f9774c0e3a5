"""Random worlds hold, and find faults that this runtime once had, which are put back here."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
from typing import Any

import pytest
from attrs import evolve

from omni_core.coordinator.actions import Start
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.deadlines import Deadlines
from omni_core.coordinator.input_stream import InputStream
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.coordinator.suspects import Suspects, Verdict
from omni_core.coordinator.tracked_request import RequestState, TrackedRequest
from omni_core.processes.deaths import DeathReport, Deaths
from omni_core.processes.restarts import Unit
from omni_testing.world import Broken, World


def found(seeds: range) -> str:
    """Return what the first world says that does not hold, or nothing."""
    for seed in seeds:
        try:
            World(seed).run()
        except Broken as broken:
            return str(broken)
    return ""


def test_many_worlds_hold(request: pytest.FixtureRequest) -> None:
    count = request.config.getoption("--worlds")
    assert found(range(count)) == ""


def test_a_seed_is_the_same_world_whatever_the_hashes_of_strings_are() -> None:
    script = "from omni_testing.world import World\nfor seed in (4, 11, 25): print(World(seed).run())"
    told = [
        subprocess.run(
            [sys.executable, "-c", script], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    assert told[0] == told[1]
    assert b"has its results" in told[0]


@pytest.mark.parametrize("seed", [246, 291])
def test_nothing_of_a_world_runs_after_it(seed: int, caplog: pytest.LogCaptureFixture) -> None:
    gc.collect()
    caplog.clear()
    World(seed).run()
    gc.collect()
    assert caplog.messages == []


def test_an_exit_of_a_balance_that_ends_the_runner_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: Any, tracked: TrackedRequest, now: float) -> list[Any]:
        tracked.attempts += 1
        tracked.attempt_id = f"{tracked.request_id}~{tracked.attempts}"
        try:
            placement = self._place(tracked.attempt_id, tracked.request)
        except Exception as error:
            return self.start_failed(tracked, error, now)  # type: ignore[no-any-return]
        tracked.request = evolve(tracked.request, placement=placement)
        tracked.state = RequestState.RUNNING
        self._attempts[tracked.attempt_id] = tracked
        return [Start(tracked)]

    monkeypatch.setattr(RequestMachine, "_start", start)
    assert "SystemExit" in found(range(100))


def test_a_compute_that_never_ends_unnoticed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unit, "_check", lambda *_: [])
    assert "still not over" in found(range(100))


def test_a_stage_that_bad_requests_shut_for_good_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unit, "excuse", lambda *_: None)
    monkeypatch.setattr(Unit, "_pause", None)
    assert "'failed'" in found(range(200))


def test_a_bad_request_that_takes_the_good_ones_with_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def died(self: Any, lost: list[TrackedRequest], now: float, excuse: Any = None) -> Verdict:
        for each in lost:
            each.strikes += 1
        return Verdict([e for e in lost if not self._may_run(e)], [e for e in lost if self._may_run(e)])

    monkeypatch.setattr(Suspects, "died", died)
    assert "though others were the cause of every death" in found(range(300))


def test_a_request_that_hangs_after_its_sender_and_then_its_last_stage_died_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Deaths, "take", lambda self, report: _take(self, report))
    assert "still not over" in found(range(300, 400))


def _take(deaths: Any, report: Any) -> None:
    opened: tuple[DeathReport, Any] | None = deaths._open.get(report.death)
    if opened is not None:
        opened[0].take(report)
        deaths._check(*opened)


def test_a_stream_without_its_beginning_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unit, "_unsettled", property(lambda self: set(), lambda self, value: None))
    assert "not {'s1': 's1(s0(in6)s0*1)'}" in found(range(950, 1000)), "a wrong answer"


def test_restarts_without_an_end_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Unit, "_counted", 0)
    assert "was launched" in found(range(300))


def test_a_request_that_ends_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    end = RequestMachine._end

    def twice(self: Any, tracked: TrackedRequest, state: RequestState, error: Any, now: float) -> list[Any]:
        self.counts[state.value] += 1
        return end(self, tracked, state, error, now)

    monkeypatch.setattr(RequestMachine, "_end", twice)
    assert "have ended" in found(range(5))


def test_an_input_without_credits_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(InputStream, "has_room", property(lambda self: self.is_ready))
    assert "chunks on their way" in found(range(100))


def test_a_sender_that_waits_for_a_request_that_has_ended_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def wake(action: Any) -> None:
        if action.request.waiter is not None and not action.request.waiter.done():
            action.request.waiter.set_result(None)
        if action.request.input is not None and action.request.input.waiter is not None and not action.request.is_over:
            action.request.input.waiter.set_result(None)
            action.request.input.waiter = None

    monkeypatch.setattr(Coordinator, "_wake", staticmethod(wake))
    assert "wait for ever" in found(range(300))


def test_a_chunk_that_is_late_unnoticed_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Deadlines, "chunk_sent", lambda *_: None)
    assert "was not taken in time" in found(range(300))
