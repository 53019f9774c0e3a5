"""Inputs that come as streams: credits, ends and deaths, decided without processes, event loop or clock."""

from __future__ import annotations

from typing import Any

import pytest

from omni_core.control.back_pressure import MOST_INPUT_BYTES, MOST_INPUT_CHUNKS
from omni_core.coordinator import inputs
from omni_core.coordinator.actions import AskWaiting, Ended, Feed, Start, Wake, Withdraw
from omni_core.coordinator.input_stream import InputStream
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.coordinator.tracked_request import TrackedRequest
from omni_core.errors import RequestAbortedError, RequestFailedError, RequestTimeoutError
from omni_core.protocol.messages import ErrorInfo, OmniRequest


def opened(chunk_timeout: float | None = None, **options: Any) -> tuple[RequestMachine, TrackedRequest, InputStream]:
    requests = RequestMachine(terminal_stages=["out"], new_id=lambda: "new", **options)
    tracked, actions = requests.submit(
        OmniRequest(), "r", wants_partial=True, now=0.0, stream=InputStream(chunk_timeout)
    )
    assert actions == [Start(tracked)]
    assert tracked.input is not None
    return requests, tracked, tracked.input


def test_a_request_begins_before_its_input_and_chunks_follow_it() -> None:
    _, tracked, stream = opened()
    assert not stream.has_room  # the request itself may still be encoded
    assert inputs.ready(tracked) == [Wake(tracked)]
    assert stream.has_room
    assert inputs.send(tracked, b"one", False, 0.0) == [Feed("r", tracked.request, 0, b"one", False)]
    assert inputs.send(tracked, b"two", True, 0.0) == [Feed("r", tracked.request, 1, b"two", True)]
    assert inputs.finish(tracked) == [Feed("r", tracked.request, 2)]
    assert stream.is_finished


@pytest.mark.parametrize(
    ("size", "most"), [(1, MOST_INPUT_CHUNKS), (MOST_INPUT_BYTES // 4, 4), (3 * MOST_INPUT_BYTES, 1)]
)
def test_chunks_that_are_not_taken_are_bounded_by_number_and_bytes(size: int, most: int) -> None:
    _, tracked, stream = opened()
    inputs.ready(tracked)
    chunk, sent = bytes(size), 0
    while stream.has_room:
        inputs.send(tracked, chunk, False, 0.0)
        sent += 1
    assert sent == most
    assert inputs.taken(tracked, 1, is_over=False) == [Wake(tracked)]
    assert stream.has_room
    inputs.taken(tracked, 10_000, is_over=False)  # what a stage says cannot take more than was sent
    assert stream.taken == most


def test_a_stage_that_answers_early_needs_no_more_and_the_sender_does_not_wait() -> None:
    requests, tracked, stream = opened()
    inputs.ready(tracked)
    while stream.has_room:
        inputs.send(tracked, b"chunk", False, 0.0)
    inputs.taken(tracked, 0, is_over=True)
    assert stream.has_room
    assert inputs.send(tracked, b"more", False, 0.0) == []
    # What is on its way must begin no request anew in a process that knows it no more.
    assert requests.result("r", "out", 1, final=True, now=1.0) == [Withdraw("r"), Ended(tracked)]
    assert inputs.send(tracked, b"more", False, 0.0) == inputs.finish(tracked) == []


def test_a_finished_input_is_not_withdrawn_at_the_end() -> None:
    requests, tracked, _ = opened()
    inputs.ready(tracked)
    inputs.finish(tracked)
    assert requests.result("r", "out", 1, final=True, now=1.0) == [Ended(tracked)]


def test_the_sender_gets_the_error_of_its_request() -> None:
    requests, tracked, _ = opened()
    inputs.ready(tracked)
    requests.failure("r", ErrorInfo("in", "ValueError", "bad"), 1.0)
    for event in (lambda: inputs.send(tracked, b"", False, 0.0), lambda: inputs.finish(tracked)):
        with pytest.raises(RequestFailedError, match="ValueError: bad"):
            event()
    requests, tracked, _ = opened()
    requests.abort("r", 1.0)
    with pytest.raises(RequestAbortedError):
        inputs.send(tracked, b"", False, 0.0)


@pytest.mark.parametrize("begun", ["no", "a chunk", "finished"])
def test_a_request_runs_again_only_if_its_input_has_not_begun(begun: str) -> None:
    requests, tracked, stream = opened(retries=1)
    inputs.ready(tracked)
    if begun != "no":
        _ = inputs.send(tracked, b"one", False, 0.0) if begun == "a chunk" else inputs.finish(tracked)
    actions = requests.process_lost({"r": "in"}, "killed", 1.0)
    if begun == "no":
        assert actions == [Withdraw("r"), Start(tracked)]
        assert tracked.attempt_id == "r~new"
        assert not stream.has_room
    else:
        assert tracked.is_over
        with pytest.raises(RequestFailedError, match="killed"):
            inputs.send(tracked, b"two", False, 0.0)


@pytest.mark.parametrize("deadly_is_open", [False, True])
def test_equal_beginnings_are_no_equal_contents(deadly_is_open: bool) -> None:
    """An input that ended its process makes no other request suspect that began in the same way, nor a whole request an input."""
    requests = RequestMachine(terminal_stages=["out"], digest=lambda request: b"same")
    for number in range(9):
        stream = InputStream() if deadly_is_open is (number < 3) else None
        _, actions = requests.submit(OmniRequest(), f"r{number}", wants_partial=True, now=1.0, stream=stream)
        assert [type(each) for each in actions] == [Start]
        if number < 3:
            requests.process_lost({f"r{number}": "in"}, "killed", 1.0)


def test_a_chunk_that_is_not_taken_in_time_ends_its_request() -> None:
    requests, tracked, _ = opened(chunk_timeout=2.0)
    inputs.ready(tracked)
    assert requests.next_timer() is None  # a client that sends nothing is not late
    requests.send(tracked, b"one", False, 1.0)
    requests.send(tracked, b"two", False, 2.5)
    inputs.taken(tracked, 1, is_over=False)
    assert requests.clock(3.0) == []  # the first one was taken
    assert requests.next_timer() == 4.5
    assert requests.clock(4.5) == [AskWaiting("r")]
    requests.asked("r", 1, 4.5)
    requests.answered("r", {"in": "computes"}, 4.6)
    what = r"a chunk of its input .* timeout of 2.0 s; 1 of 2 chunks of its input were taken; stage 'in' computes"
    with pytest.raises(RequestTimeoutError, match=what):
        requests.send(tracked, b"three", False, 4.7)


@pytest.mark.parametrize("end", ["taken", "over"])
def test_chunks_that_are_taken_or_needed_no_more_are_not_late(end: str) -> None:
    requests, tracked, _ = opened(chunk_timeout=2.0)
    inputs.ready(tracked)
    requests.send(tracked, b"one", False, 0.0)
    inputs.taken(tracked, int(end == "taken"), is_over=end == "over")
    assert requests.clock(2.0) == []
    assert requests.next_timer() is None
    if end == "taken":
        requests.send(tracked, b"two", False, 5.0)
        assert requests.next_timer() == 7.0


def test_a_death_says_what_was_consumed() -> None:
    requests, tracked, _ = opened()
    inputs.ready(tracked)
    for _ in range(3):
        requests.send(tracked, b"chunk", False, 0.0)
    inputs.taken(tracked, 2, is_over=False)
    requests.process_lost({"r": "in"}, "killed", 1.0)
    with pytest.raises(RequestFailedError, match="killed; 2 of 3 chunks of its input were taken"):
        inputs.finish(tracked)


def test_a_silent_client_holds_up_no_other_request_after_a_death() -> None:
    requests = RequestMachine(terminal_stages=["out"], retries=1)
    for name in ("a", "b", "whole"):
        stream = None if name == "whole" else InputStream()
        requests.submit(OmniRequest(), name, wants_partial=True, now=0.0, stream=stream)
    actions = requests.process_lost(dict.fromkeys(("a", "b", "whole"), "in"), "killed", 1.0)
    assert [each.request.request_id for each in actions if isinstance(each, Start)] == ["a", "b", "whole"]


def test_an_open_request_that_ends_its_process_fails_and_excuses_it() -> None:
    requests, tracked, _ = opened(retries=1)
    excused: list[int] = []
    requests.process_lost({"r": "in"}, "killed", 1.0, lambda: excused.append(1))
    requests.process_lost({tracked.attempt_id: "in"}, "killed", 2.0, lambda: excused.append(2))
    assert tracked.is_over
    assert excused == [1, 2]
