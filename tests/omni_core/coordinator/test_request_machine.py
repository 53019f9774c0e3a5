"""The life of requests, decided without processes, event loop or clock."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from omni_core.config.schema import RestartConfig
from omni_core.control.back_pressure import MAX_UNREAD_EVENTS, PAUSE_BYTES, PAUSE_EVENTS
from omni_core.coordinator.actions import Action, AskWaiting, Ended, Flow, Start, Wake, Withdraw
from omni_core.coordinator.deadlines import ANSWER_SECONDS
from omni_core.coordinator.reading import SLOW_READER_SECONDS
from omni_core.coordinator.request_machine import LOST_PEER_SECONDS, RequestMachine
from omni_core.coordinator.suspects import REMEMBERED_SECONDS
from omni_core.coordinator.tracked_request import RequestState, TrackedRequest
from omni_core.errors import (
    CodecError,
    ConfigError,
    InvalidRequestError,
    OmniError,
    OverloadedError,
    RequestAbortedError,
    RequestFailedError,
    RequestTimeoutError,
    StageFailedError,
)
from omni_core.processes.actions import UnitState
from omni_core.processes.restarts import Unit
from omni_core.protocol.messages import ErrorInfo, OmniRequest


def machine(**options: Any) -> RequestMachine:
    numbers = itertools.count(1)
    defaults = {"terminal_stages": ["text", "sound"], "new_id": lambda: f"id{next(numbers)}"}
    return RequestMachine(**{**defaults, **options})


def submit(
    requests: RequestMachine, name: str | None = None, *, now: float = 0.0, partial: bool = False, **fields: Any
) -> tuple[TrackedRequest, list[Action]]:
    return requests.submit(OmniRequest(**fields), name, wants_partial=partial, now=now)


def finish(requests: RequestMachine, name: str, now: float = 1.0) -> list[Action]:
    requests.result(name, "text", "hello", final=True, now=now)
    return requests.result(name, "sound", b"wave", final=True, now=now)


def test_a_request_starts_at_once_and_ends_with_its_last_terminal_stage() -> None:
    requests = machine()
    tracked, actions = submit(requests, "r")
    assert actions == [Start(tracked)]
    assert requests.state("r") is RequestState.RUNNING
    assert requests.result("r", "text", "hello", final=True, now=1.0) == [Wake(tracked)]
    assert requests.result("r", "sound", b"wave", final=True, now=2.0) == [Ended(tracked)]
    assert {event.stage: event.data for event in tracked.events} == {"text": "hello", "sound": b"wave"}
    assert requests.state("r") is RequestState.COMPLETED
    assert requests.in_flight == 0


def test_a_request_without_an_id_gets_one() -> None:
    tracked, _ = submit(machine())
    assert tracked.request_id == "id1"


@pytest.mark.parametrize("ended", [False, True])
def test_an_id_is_used_once(ended: bool) -> None:
    requests = machine()
    submit(requests, "r")
    if ended:
        finish(requests, "r")
    with pytest.raises(InvalidRequestError, match="'r' was used before"):
        submit(requests, "r")
    assert requests.counts["refused"] == 1


def test_too_many_are_refused_with_the_typical_time_as_a_hint() -> None:
    requests = machine(max_in_flight=2)
    for number in range(40):  # each takes 5 s
        submit(requests, f"r{number}")
        finish(requests, f"r{number}", now=5.0)
    submit(requests, "a")
    submit(requests, "b")
    with pytest.raises(OverloadedError, match="2 requests are in flight") as caught:
        submit(requests, "c")
    assert 4.5 < caught.value.retry_after < 5.0
    assert requests.counts["refused"] == 1
    finish(requests, "a")
    submit(requests, "c")


@pytest.mark.parametrize("timeout", ["5", 0, -1.0, float("nan"), float("inf"), True, [1]])
def test_a_timeout_that_is_no_positive_number_is_refused_before_anything_is_sent(timeout: Any) -> None:
    requests = machine()
    with pytest.raises(InvalidRequestError, match="timeout: must be a number of seconds greater than 0"):
        submit(requests, "r", timeout=timeout)
    assert (requests.in_flight, requests.counts["refused"], requests.state("r")) == (0, 1, None)


def test_the_terminal_stages_of_a_request_are_those_that_its_function_names() -> None:
    requests = machine(terminal_stages_fn=lambda request: request.modalities)
    tracked, _ = submit(requests, "r", modalities=["text"])
    assert not requests.wants("r", "sound", final=True)
    assert requests.result("r", "sound", b"", final=True, now=1.0) == []
    assert requests.result("r", "text", "hi", final=True, now=1.0) == [Ended(tracked)]
    submit(requests, "all")
    assert requests.wants("all", "sound", final=True)


def raises(error: BaseException) -> Callable[[OmniRequest], Any]:
    def function(request: OmniRequest) -> Any:
        raise error

    return function


@pytest.mark.parametrize(
    ("function", "error", "message"),
    [
        (raises(ValueError("no")), InvalidRequestError, "terminal_stages_fn failed: ValueError: no"),
        (raises(SystemExit(3)), InvalidRequestError, "SystemExit: 3"),
        (lambda request: 5, InvalidRequestError, "TypeError"),
        (lambda request: [], ConfigError, "must be a subset"),
        (lambda request: "speech", ConfigError, "'speech'; it must be a subset"),
    ],
)
def test_a_terminal_stages_fn_that_misbehaves_refuses_its_request(
    function: Any, error: type[Exception], message: str
) -> None:
    requests = machine(terminal_stages_fn=function)
    with pytest.raises(error, match=message):
        submit(requests, "r")
    assert (requests.in_flight, requests.counts["refused"]) == (0, 1)


@pytest.mark.parametrize(
    ("error", "expected"), [(StageFailedError("entry", "died"), RequestFailedError), (CodecError("no"), CodecError)]
)
def test_a_request_that_cannot_be_sent_has_failed_and_ended(error: Exception, expected: type[Exception]) -> None:
    requests = machine()
    tracked, _ = submit(requests, "r", timeout=5.0)
    actions = requests.start_failed(tracked, error, 0.0)
    assert actions == [Withdraw("r"), Ended(tracked)]
    assert isinstance(tracked.error, expected)
    assert (requests.counts["admitted"], requests.counts["failed"], requests.in_flight) == (1, 1, 0)
    assert requests.next_timer() is None


def test_placement_travels_with_the_request() -> None:
    tracked, _ = submit(machine(place=lambda attempt_id, request: {"text": 1}), "r")
    assert tracked.request.placement == {"text": 1}


def test_a_placement_that_raises_fails_its_request() -> None:
    tracked, actions = submit(machine(place=raises(RuntimeError("no"))), "r")
    assert actions == [Ended(tracked)]
    assert isinstance(tracked.error, RequestFailedError)


def test_partial_results_are_kept_only_for_readers() -> None:
    requests = machine()
    submit(requests, "whole")
    reader, _ = submit(requests, "parts", partial=True)
    assert not requests.wants("whole", "text", final=False)
    assert requests.result("whole", "text", "he", final=False, now=0.0) == []
    assert requests.result("parts", "text", "he", final=False, now=0.0) == [Wake(reader)]


def test_a_client_that_does_not_read_fails_alone() -> None:
    requests = machine()
    reader, _ = submit(requests, "slow", partial=True)
    submit(requests, "other")
    for _ in range(MAX_UNREAD_EVENTS):
        requests.result("slow", "text", "x", final=False, now=0.0)
    assert Ended(reader) in requests.result("slow", "text", "x", final=False, now=0.0)
    assert isinstance(reader.error, RequestFailedError)
    assert reader.error.error_type == "SlowReader"
    assert not reader.events
    assert requests.in_flight == 1


def test_an_abort_withdraws_the_request_once() -> None:
    requests = machine()
    tracked, _ = submit(requests, "r")
    assert requests.abort("r", 1.0) == [Withdraw("r"), Ended(tracked)]
    assert isinstance(tracked.error, RequestAbortedError)
    assert requests.abort("r", 1.0) == []
    assert requests.abort("unknown", 1.0) == []


def test_messages_that_come_late_change_nothing() -> None:
    requests = machine()
    tracked, _ = submit(requests, "r")
    requests.abort("r", 0.0)
    assert requests.result("r", "text", "late", final=True, now=1.0) == []
    assert requests.failure("r", ErrorInfo("text", "ValueError", "late"), 1.0) == []
    assert requests.process_lost({"r": "text"}, "died", 1.0) == []
    assert requests.answered("r", {}, 1.0) == []
    assert tracked.state is RequestState.ABORTED


def test_a_failure_names_its_stage() -> None:
    requests = machine()
    tracked, _ = submit(requests, "r")
    assert requests.failure("r", ErrorInfo("text", "ValueError", "no"), 0.0) == [Withdraw("r"), Ended(tracked)]
    assert isinstance(tracked.error, RequestFailedError)
    assert (tracked.error.stage, tracked.error.error_type) == ("text", "ValueError")


def test_an_invalid_request_error_of_a_stage_reaches_the_caller() -> None:
    requests = machine()
    tracked, _ = submit(requests, "r")
    requests.failure("r", ErrorInfo("text", "TooLong", "a prompt too long", is_invalid_request=True), 0.0)
    assert isinstance(tracked.error, InvalidRequestError)
    assert isinstance(tracked.error, RequestFailedError)
    assert (tracked.error.stage, tracked.error.request_id) == ("text", "r")


def test_closing_aborts_what_runs_and_refuses_the_rest() -> None:
    requests = machine()
    tracked, _ = submit(requests, "r")
    assert requests.close(1.0) == [Withdraw("r"), Ended(tracked)]
    with pytest.raises(RequestFailedError, match="the pipeline was stopped"):
        submit(requests, "s")


def test_a_deadline_asks_the_stages_and_names_them() -> None:
    requests = machine()
    tracked, _ = submit(requests, "r", now=10.0, timeout=2.0)
    assert requests.next_timer() == 12.0
    assert requests.clock(11.9) == []
    assert requests.clock(12.0) == [AskWaiting("r")]
    assert not requests.wants("r", "text", final=True), "a result after the deadline is none"
    assert requests.asked("r", 2, 12.0) == []
    assert requests.answered("r", {"merge": "waits for 'tone'"}, 12.01) == []
    assert requests.answered("r", {}, 12.02) == [Withdraw("r"), Ended(tracked)]
    assert isinstance(tracked.error, RequestTimeoutError)
    assert tracked.error.error_type == "TimeoutError"
    assert str(tracked.error).endswith("not finished within its timeout of 2.0 s; stage 'merge' waits for 'tone'")


def test_a_deadline_waits_for_answers_a_bounded_time() -> None:
    requests = machine()
    tracked, _ = submit(requests, "r", timeout=2.0)
    requests.clock(2.0)
    requests.asked("r", 3, 2.0)
    assert requests.next_timer() == 2.0 + ANSWER_SECONDS
    assert requests.clock(2.0 + ANSWER_SECONDS) == [Withdraw("r"), Ended(tracked)]


def test_a_deadline_with_no_process_left_ends_at_once() -> None:
    requests = machine()
    tracked, _ = submit(requests, "r", timeout=2.0)
    requests.clock(2.0)
    assert Ended(tracked) in requests.asked("r", 0, 2.0)


def test_timers_of_ended_requests_are_not_kept() -> None:
    requests = machine(max_in_flight=4)
    for number in range(100):
        submit(requests, f"r{number}", timeout=600.0)
        finish(requests, f"r{number}")
    assert requests.next_timer() is None
    submit(requests, "old", timeout=1000.0)
    for number in range(100, 200):
        submit(requests, f"r{number}", timeout=2000.0)
        finish(requests, f"r{number}")
    assert len(requests._timers._timers) <= 4 * 4 + 1


# --- deaths ------------------------------------------------------------------------------------------------------------


def started(actions: list[Action]) -> list[str]:
    return [action.request.request_id for action in actions if isinstance(action, Start)]


class Pipeline:
    """A process that holds every running request, and dies if it holds a killer."""

    def __init__(self, killers: set[str], **options: Any) -> None:
        self.killers = killers
        self.requests = machine(digest=lambda request: repr(request.inputs).encode(), **options)
        self.deaths = 0
        self.most_suspects = 0
        self.now = 0.0

    def submit(self, *names: str) -> dict[str, TrackedRequest]:
        return {
            name: self.requests.submit(
                OmniRequest(inputs=name), f"{name}#{self.now}", wants_partial=False, now=self.now
            )[0]
            for name in names
        }

    def run(self) -> None:
        """Run until nothing is left: the process dies, or answers all its requests."""
        while held := self.requests.attempts():
            self.now += 1.0
            if any(request.inputs in self.killers for request in held.values()):
                self.deaths += 1
                self.requests.process_lost(dict.fromkeys(held, "text"), "killed", self.now)
            else:
                for name in held:
                    finish(self.requests, name, self.now)
            self.requests.clock(self.now)


GOOD = [f"good{number}" for number in range(31)]


def states(requests: dict[str, TrackedRequest]) -> dict[RequestState, set[str]]:
    by_state: dict[RequestState, set[str]] = {}
    for name, tracked in requests.items():
        by_state.setdefault(tracked.state, set()).add(name)
    return by_state


@pytest.mark.parametrize("position", [0, 16, 31])
@pytest.mark.parametrize("retries", [1, 3])
def test_a_request_that_kills_its_process_fails_alone(position: int, retries: int) -> None:
    pipeline = Pipeline({"bad"}, retries=retries)
    names = [*GOOD[:position], "bad", *GOOD[position:]]
    requests = pipeline.submit(*names)
    pipeline.run()
    assert states(requests) == {RequestState.COMPLETED: set(GOOD), RequestState.FAILED: {"bad"}}
    assert pipeline.deaths == 1 + retries
    assert isinstance(requests["bad"].error, RequestFailedError)
    assert requests["bad"].error.error_type == "ProcessDied"
    assert pipeline.requests.next_timer() is None


def test_each_of_several_killers_causes_at_most_two_deaths() -> None:
    pipeline = Pipeline({"bad1", "bad2", "bad3"}, retries=1)
    requests = pipeline.submit("bad1", *GOOD[:10], "bad2", *GOOD[10:20], "bad3")
    pipeline.run()
    assert states(requests)[RequestState.FAILED] == {"bad1", "bad2", "bad3"}
    assert pipeline.deaths == 6


def test_without_retries_everything_that_the_process_held_fails() -> None:
    pipeline = Pipeline({"bad"})
    requests = pipeline.submit("bad", "good1", "good2")
    pipeline.run()
    assert states(requests) == {RequestState.FAILED: {"bad", "good1", "good2"}}
    assert pipeline.deaths == 1


def test_suspects_run_one_by_one_and_the_others_at_once_when_the_cause_is_found() -> None:
    requests = machine(retries=1)
    for name in "abcd":
        submit(requests, name)
    lost = dict.fromkeys("abcd", "text")
    actions = requests.process_lost(lost, "killed", 1.0)
    assert [each for each in actions if isinstance(each, Withdraw)] == [Withdraw(name) for name in "abcd"]
    assert started(actions) == ["d"], "the youngest first"
    [attempt] = requests.attempts()
    assert attempt.startswith("d~")
    assert started(submit(requests, "new")[1]) == ["new"], "new requests do not wait for suspects"
    finish(requests, "new")
    assert started(finish(requests, attempt)) == ["c"]
    [attempt] = requests.attempts()
    assert started(requests.process_lost({attempt: "text"}, "killed", 2.0)) == ["b", "a"]
    assert requests.state("c") is RequestState.FAILED


def test_a_suspect_that_dies_beside_a_newcomer_gets_one_more_turn() -> None:
    """The new request may be the cause, and here it is."""
    pipeline = Pipeline({"newcomer"}, retries=1)
    first = pipeline.submit("a", "b")
    held = pipeline.requests.attempts()
    pipeline.requests.process_lost(dict.fromkeys(held, "text"), "killed by an operator", 0.0)
    second = pipeline.submit("newcomer", "bystander")
    pipeline.run()
    assert states({**first, **second}) == {
        RequestState.COMPLETED: {"a", "b", "bystander"},
        RequestState.FAILED: {"newcomer"},
    }


def test_an_aborted_suspect_makes_room_for_the_next() -> None:
    requests = machine(retries=1)
    for name in "ab":
        submit(requests, name)
    requests.process_lost(dict.fromkeys("ab", "text"), "killed", 1.0)
    assert started(requests.abort("b", 1.0)) == ["a"]


def test_a_waiting_suspect_keeps_its_deadline() -> None:
    requests = machine(retries=1)
    waiting, _ = submit(requests, "a", timeout=2.0)
    submit(requests, "b")
    requests.process_lost(dict.fromkeys("ab", "text"), "killed", 1.0)
    assert requests.clock(2.0) == [Ended(waiting)]
    assert isinstance(waiting.error, RequestTimeoutError)
    assert "waits to run again alone" in str(waiting.error)


def test_a_request_that_was_read_is_not_run_again() -> None:
    requests = machine(retries=3)
    tracked, _ = submit(requests, "r", partial=True)
    tracked.was_read = True
    requests.process_lost({"r": "text"}, "killed", 1.0)
    assert tracked.state is RequestState.FAILED


def test_results_of_a_lost_attempt_are_dropped() -> None:
    requests = machine(retries=1)
    tracked, _ = submit(requests, "r")
    requests.result("r", "text", "first", final=True, now=0.0)
    requests.process_lost({"r": "sound"}, "killed", 1.0)
    assert not tracked.events
    assert tracked.terminals == {"text", "sound"}
    assert requests.counts["retried"] == 1
    finish(requests, tracked.attempt_id)
    assert {event.data for event in tracked.events} == {"hello", b"wave"}


def test_the_content_of_a_killer_is_remembered_and_runs_alone() -> None:
    pipeline = Pipeline({"bad"}, retries=1)
    pipeline.submit("bad")
    pipeline.run()
    deaths = pipeline.deaths
    good = pipeline.submit("good1")
    again = pipeline.submit("bad")
    assert [request.inputs for request in pipeline.requests.attempts().values()] == ["good1"], "it waits for quiet"
    pipeline.run()
    assert pipeline.deaths == deaths + 1, "known: no second attempt"
    assert states({**good, **again}) == {RequestState.COMPLETED: {"good1"}, RequestState.FAILED: {"bad"}}


def test_new_requests_wait_while_a_known_killer_runs_but_not_for_long() -> None:
    pipeline = Pipeline({"bad"}, retries=1)
    pipeline.submit("bad")
    pipeline.run()
    killer = pipeline.submit("bad")["bad"]
    good = pipeline.submit("good1")["good1"]
    assert (killer.state, good.state) == (RequestState.RUNNING, RequestState.PENDING)
    pipeline.requests.clock(pipeline.now + 5.0)
    assert good.state is RequestState.RUNNING
    pipeline.run()
    assert (killer.state, good.state) == (RequestState.FAILED, RequestState.COMPLETED)


def test_a_known_killer_does_not_wait_for_ever() -> None:
    pipeline = Pipeline({"bad"}, retries=1)
    pipeline.submit("bad")
    pipeline.run()
    pipeline.submit("good1")
    killer = pipeline.submit("bad")["bad"]
    assert killer.state is RequestState.PENDING
    pipeline.requests.clock(pipeline.now + 5.0)
    assert killer.state is RequestState.RUNNING


def test_a_content_is_forgotten_after_a_while() -> None:
    pipeline = Pipeline({"bad"}, retries=1)
    pipeline.submit("bad")
    pipeline.run()
    pipeline.now += 601.0
    pipeline.submit("good1")
    assert pipeline.submit("bad")["bad"].state is RequestState.RUNNING


def test_a_failure_by_a_dead_peer_waits_for_the_report_about_that_death() -> None:
    requests = machine(retries=1)
    tracked, _ = submit(requests, "r")
    info = ErrorInfo("text", "PeerDiedError", "its bytes are gone", peer_died=True)
    assert requests.failure("r", info, 1.0) == []
    assert requests.next_timer() == 1.0 + LOST_PEER_SECONDS
    assert started(requests.process_lost({"r": "sound"}, "killed", 1.2)) == ["r"]
    assert requests.clock(1.0 + LOST_PEER_SECONDS) == []
    assert tracked.state is RequestState.RUNNING


def test_a_failure_by_a_dead_peer_ends_without_a_report_too() -> None:
    requests = machine()
    tracked, _ = submit(requests, "r")
    requests.failure("r", ErrorInfo("text", "PeerDiedError", "gone", peer_died=True), 1.0)
    requests.clock(1.0 + LOST_PEER_SECONDS)
    assert tracked.state is RequestState.FAILED


# --- clients that read slowly ----------------------------------------------------------------------------------------
def read_one(requests: RequestMachine, tracked: TrackedRequest, now: float) -> list[Action]:
    return requests.read(tracked, tracked.events.popleft(), now)


@pytest.mark.parametrize(("chunks", "nbytes"), [(PAUSE_EVENTS, 1), (4, PAUSE_BYTES // 4)])
def test_stages_wait_for_a_client_that_is_behind_and_go_on_when_it_has_read_half(chunks: int, nbytes: int) -> None:
    requests = machine()
    tracked, _ = submit(requests, "r", partial=True, stream=True)

    def chunk() -> list[Action]:
        return requests.result("r", "text", "x", final=False, now=1.0, nbytes=nbytes)

    for _ in range(chunks - 1):
        assert chunk() == [Wake(tracked)]
    assert chunk() == [Flow("r", True), Wake(tracked)]
    assert chunk() == [Wake(tracked)], "what was on its way; they are told once"
    actions = [read_one(requests, tracked, 2.0) for _ in range(chunks // 2 + 1)]
    assert [each for each in actions if each] == [[Flow("r", False)]]
    assert actions[-1] == [Flow("r", False)]


def test_a_client_that_reads_nothing_more_fails_and_a_slow_one_does_not() -> None:
    requests = machine()
    for name in ("slow", "gone"):
        submit(requests, name, partial=True, stream=True)
        for _ in range(PAUSE_EVENTS):
            requests.result(name, "text", "x", final=False, now=1.0, nbytes=1)
    slow, gone = requests.attempt("slow"), requests.attempt("gone")
    assert slow is not None
    assert gone is not None
    read_one(requests, slow, 100.0)
    assert requests.next_timer() == 1.0 + SLOW_READER_SECONDS
    assert [type(each) for each in requests.clock(1.0 + SLOW_READER_SECONDS)] == [Withdraw, Ended]
    assert "left 1000 partial results (1000 bytes) unread for 120 s" in str(gone.error)
    assert not slow.is_over
    assert requests.next_timer() == 100.0 + SLOW_READER_SECONDS
    for _ in range(PAUSE_EVENTS // 2):
        read_one(requests, slow, 150.0)
    assert slow.paused_at is None
    assert requests.clock(100.0 + SLOW_READER_SECONDS) == []
    assert requests.next_timer() is None


# --- contents that end their process again and again -----------------------------------------------------------------
@pytest.mark.parametrize(("retries", "most"), [(0, 4), (1, 3), (3, 4)])
def test_a_content_that_ends_its_process_again_and_again_is_refused(retries: int, most: int) -> None:
    pipeline = Pipeline({"bad"}, retries=retries)
    while pipeline.deaths < most:
        pipeline.submit("bad")
        good = pipeline.submit(f"good{pipeline.deaths}")
        pipeline.run()
        if retries:
            assert set(states(good)) == {RequestState.COMPLETED}
    assert pipeline.deaths == most
    with pytest.raises(InvalidRequestError, match="have ended their process several times"):
        pipeline.submit("bad")
    assert pipeline.requests.counts["refused"] == 1
    assert set(states(pipeline.submit("good"))) == {RequestState.RUNNING}
    pipeline.run()
    pipeline.now += REMEMBERED_SECONDS
    assert set(states(pipeline.submit("bad"))) == {RequestState.RUNNING}


def test_a_content_that_completes_between_deaths_is_never_refused() -> None:
    pipeline = Pipeline({"bad"}, retries=0)
    for number in range(6):
        pipeline.killers = {f"bad{number}"}
        lost = pipeline.submit("good", f"bad{number}")
        pipeline.run()
        assert set(states(lost)) == {RequestState.FAILED}
        again = pipeline.submit("good")
        pipeline.run()
        assert set(states(again)) == {RequestState.COMPLETED}


class Restarted(Pipeline):
    """A pipeline whose process is restarted by the default policy."""

    def __init__(self, killers: set[str], **options: Any) -> None:
        super().__init__(killers, **options)
        self.unit = Unit("text", ["p"], RestartConfig(), 10.0)
        self.unit.launch(0.0)
        self.unit.process_is_ready("p", 0.0)

    def run(self) -> None:
        while (held := self.requests.attempts()) and self.unit.state is not UnitState.FAILED:
            self.now += 0.01
            if any(request.inputs in self.killers for request in held.values()):
                self.die()
            else:
                for name in held:
                    finish(self.requests, name, self.now)
            self.requests.clock(self.now)

    def die(self) -> None:
        self.unit.exited("p", "killed", self.now)
        death, held = self.now, dict.fromkeys(self.requests.attempts(), "text")
        self.requests.process_lost(held, "killed", self.now, lambda: self.unit.excuse(death))
        self.unit.settled(death, self.now)
        assert self.unit.deadline is not None
        if self.unit.state is not UnitState.FAILED:
            self.now = self.unit.deadline
            self.unit.clock(self.now)
            self.unit.process_is_ready("p", self.now)


@pytest.mark.parametrize("retries", [1, 3])
@pytest.mark.parametrize("beside", [0, 8])
def test_requests_that_end_their_process_do_not_shut_the_stage(retries: int, beside: int) -> None:
    numbers = range(30 if beside else 6)
    pipeline = Restarted({f"bad{number}" for number in numbers}, retries=retries)
    for number in numbers:  # of another content each time
        good = pipeline.submit(*GOOD[:beside], f"bad{number}")
        bad = good.pop(f"bad{number}")
        pipeline.run()
        assert bad.state is RequestState.FAILED
        assert not good or set(states(good)) == {RequestState.COMPLETED}
    good = pipeline.submit("good")
    pipeline.run()
    assert set(states(good)) == {RequestState.COMPLETED}


def test_a_process_that_dies_by_itself_or_by_every_request_has_failed() -> None:
    pipeline = Restarted(set(), retries=3)
    for _ in range(6):
        assert pipeline.unit.state is UnitState.READY
        pipeline.submit("good")
        pipeline.die()
        pipeline.run()
    assert pipeline.unit.state is UnitState.FAILED
    pipeline = Restarted({*GOOD}, retries=1)
    for name in GOOD:
        pipeline.submit(name)
        pipeline.run()
    assert pipeline.unit.state is UnitState.FAILED


# --- hooks that end a program ----------------------------------------------------------------------------------------
ENDS = [SystemExit(3), KeyboardInterrupt(), MemoryError(), GeneratorExit(), asyncio.CancelledError(), BaseException()]


def raising(error: BaseException) -> Any:
    def hook(*_: Any) -> Any:
        raise error

    return hook


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_whatever_a_placement_raises_fails_its_request_alone(error: BaseException) -> None:
    requests = machine(place=lambda attempt, request: raising(error)() if request.inputs == "bad" else {})
    good, _ = submit(requests, "good")
    bad, actions = submit(requests, "bad", inputs="bad")
    assert actions == [Ended(bad)]
    assert isinstance(bad.error, RequestFailedError)
    assert bad.error.error_type == type(error).__name__
    assert (requests.in_flight, good.state) == (1, RequestState.RUNNING)


@pytest.mark.parametrize("error", ENDS, ids=lambda error: type(error).__name__)
def test_whatever_a_function_for_terminal_stages_raises_refuses_its_request(error: BaseException) -> None:
    requests = machine(terminal_stages_fn=raising(error))
    with pytest.raises(InvalidRequestError, match="terminal_stages_fn failed"):
        submit(requests, "bad")
    assert requests.in_flight == 0


def test_what_a_caller_gets_holds_nothing_of_an_error_of_any_class(hostile: BaseException) -> None:
    with pytest.raises(InvalidRequestError, match=r"^terminal_stages_fn failed: Hostile: ") as refused:
        submit(machine(terminal_stages_fn=raising(hostile)), "bad")
    bad, _ = submit(machine(place=raising(hostile)), "bad")
    assert isinstance(bad.error, RequestFailedError)
    assert bad.error.error_type == "Hostile"
    for error in (refused.value, bad.error):
        assert (error.__cause__, error.__context__) == (None, None)
        assert "Hostile" in (note := error.__notes__[0]) or "no message" in note


@pytest.mark.parametrize("returned", ["names", "list"])
def test_names_of_terminal_stages_that_raise_where_they_are_looked_at_refuse_their_request(returned: str) -> None:
    class Odd:
        def __repr__(self) -> str:
            raise SystemExit(3)

        def __eq__(self, other: object) -> bool:
            raise SystemExit(3)

        __hash__ = object.__hash__

    requests = machine(terminal_stages_fn=lambda _: [Odd()] if returned == "list" else {Odd(): 1, "text": 2})
    with pytest.raises(OmniError):
        submit(requests, "bad")
    assert (requests.in_flight, requests.counts["refused"]) == (0, 1)


class Odd(float):
    def __float__(self) -> float:
        raise SystemExit(3)


@pytest.mark.parametrize(
    "timeout",
    [10**400, 10**5000, -(10**400), float("nan"), float("inf"), -1, 0, True, "5", b"5", [1], Odd(2.0)],
    ids=lambda timeout: type(timeout).__name__,
)
def test_a_timeout_that_no_clock_can_count_is_refused(timeout: Any) -> None:
    requests = machine(max_in_flight=1)
    with pytest.raises(InvalidRequestError, match="timeout: must be a number of seconds greater than 0, is") as caught:
        submit(requests, "r", timeout=timeout)
    assert len(str(caught.value)) < 200
    assert requests.in_flight == 0
    submit(requests, "good", timeout=1e300)
    assert requests.next_timer() == 1e300


def test_a_request_that_cannot_be_begun_gives_its_slot_back() -> None:
    requests = machine(max_in_flight=1)
    requests._start = raising(RuntimeError("a fault of our own"))  # type: ignore[method-assign]
    with pytest.raises(RuntimeError, match="of our own"):
        submit(requests, "r", timeout=5.0)
    assert (requests.in_flight, requests.next_timer()) == (0, None)
