"""The order in which requests run again after a death: one suspect at a time, the youngest first."""

from __future__ import annotations

import pytest

from omni_core.coordinator.suspects import (
    MOST_ATTEMPTS_BEYOND_RETRIES,
    MOST_EXCUSED,
    QUIET_SECONDS,
    REMEMBERED_KILLERS,
    REMEMBERED_SECONDS,
    Suspects,
)
from omni_core.coordinator.tracked_request import TrackedRequest
from omni_core.protocol.messages import OmniRequest


def request(name: str, attempts: int = 1) -> TrackedRequest:
    return TrackedRequest(name, None, OmniRequest(), set(), 0.0, False, attempts=attempts)


def names(requests: list[TrackedRequest]) -> list[str]:
    return [each.request_id for each in requests]


def test_without_retries_every_lost_request_fails() -> None:
    suspects = Suspects(retries=0)
    verdict = suspects.died([request("a"), request("b")], 0.0)
    assert (sorted(names(verdict.failed)), verdict.again, len(suspects)) == (["a", "b"], [], 0)


def test_the_youngest_suspect_runs_first_and_alone() -> None:
    suspects, lost = Suspects(retries=1), [request(name) for name in "abc"]
    verdict = suspects.died(lost, 0.0)
    assert (verdict.failed, verdict.again, len(suspects)) == ([], [], 3)
    assert suspects.next(0, 0.0) is lost[2]
    assert suspects.next(0, 0.0) is None, "one runs already"
    suspects.drop(lost[2])
    assert suspects.next(1, 0.0) is lost[1], "a suspect does not wait for requests that no death concerns"


def test_a_suspect_that_dies_alone_is_the_cause_and_the_others_run_at_once() -> None:
    suspects, lost = Suspects(retries=1), [request(name) for name in "abc"]
    suspects.died(lost, 0.0)
    cause = suspects.next(0, 0.0)
    assert cause is lost[2]
    verdict = suspects.died([cause], 1.0)
    assert (names(verdict.failed), names(verdict.again)) == (["c"], ["b", "a"])
    assert (len(suspects), [each.strikes for each in lost]) == (0, [0, 0, 2])


def test_the_cause_waits_until_the_others_have_ended_or_some_seconds_have_passed() -> None:
    suspects, lost = Suspects(retries=2), [request("a"), request("b")]
    suspects.died(lost, 0.0)
    suspects.next(0, 0.0)
    verdict = suspects.died([lost[1]], 1.0)
    assert (verdict.failed, names(verdict.again), lost[1].is_cause) == ([], ["a"], True)
    assert suspects.next(1, 1.0) is None
    assert not suspects.holds_others
    assert suspects.next(1, 1.0 + QUIET_SECONDS) is lost[1]
    assert suspects.holds_others


def test_a_request_beside_the_suspect_may_be_the_cause_once() -> None:
    suspects, lost = Suspects(retries=3), [request("a"), request("b")]
    suspects.died(lost, 0.0)
    suspects.next(0, 0.0)
    newer = request("n")
    assert suspects.died([lost[1], newer], 1.0).again == []
    assert [lost[1].had_doubt, newer.death, len(suspects)] == [True, 2, 3]
    assert suspects.next(0, 1.0) is lost[1], "it has the first turn"
    assert names(suspects.died([lost[1], request("m")], 2.0).again) == ["m", "a"]
    assert lost[1].is_cause
    assert len(suspects) == 2, "the newer one is suspected of another death"


@pytest.mark.parametrize("was_read", [False, True])
def test_a_request_that_was_read_or_tried_too_often_fails(was_read: bool) -> None:
    suspects = Suspects(retries=1)
    victim = request("a", attempts=1 if was_read else 2 + MOST_ATTEMPTS_BEYOND_RETRIES)
    victim.was_read = was_read
    assert suspects.died([victim, request("b")], 0.0).failed == [victim]


def test_contents_are_remembered_for_a_while_and_in_a_number() -> None:
    suspects = Suspects(retries=1)
    suspects.blame(None, 1, "", 0.0)
    assert not suspects.knows_any(0.0)
    suspects.blame(b"first", 1, "", 0.0)
    assert suspects.knows_any(1.0)
    assert suspects.knows(b"first")
    assert not suspects.knows(b"other")
    assert not suspects.knows_any(REMEMBERED_SECONDS)
    for number in range(REMEMBERED_KILLERS + 1):
        suspects.blame(str(number).encode(), 1, "", 0.0)
    assert not suspects.knows(b"0")
    assert suspects.knows(b"1")


def test_a_content_that_was_there_twice_runs_alone_and_is_refused_when_it_was_the_cause_twice_more() -> None:
    suspects = Suspects(retries=0)
    suspects.blame(b"x", 0, "", 0.0)
    assert not suspects.knows(b"x")
    suspects.blame(b"x", 0, "", 0.0)
    assert suspects.knows(b"x")
    suspects.blame(b"x", 1, "", 0.0)
    assert suspects.refusal(b"x", 0.0) == ""
    suspects.blame(b"x", 1, "that of 'a'", 100.0)
    assert "the last time that of 'a'; they are refused for 550 s more" in suspects.refusal(b"x", 150.0)
    assert suspects.refusal(b"y", 0.0) == ""
    suspects.absolve(b"x")
    assert not suspects.knows(b"x")
    assert suspects.refusal(b"x", 0.0) == ""


# --- deaths that say nothing about the process ---------------------------------------------------------------------------
def test_the_deaths_of_a_cause_are_excused_once_it_is_certain() -> None:
    suspects, lost, excused = Suspects(retries=2), [request(name) for name in "abc"], list[int]()
    suspects.died(lost, 0.0, lambda: excused.append(1))
    cause = suspects.next(0, 0.0)
    assert cause is not None
    assert excused == []
    suspects.died([cause, newer := request("n")], 1.0, lambda: excused.append(2))
    assert excused == [], "the newer one may be the cause"
    suspects.next(0, 1.0)
    suspects.died([cause], 2.0, lambda: excused.append(3))
    assert excused == [1, 2, 3]
    suspects.drop(cause)
    assert suspects.next(0, 2.0) is newer
    suspects.died([newer], 3.0, lambda: excused.append(4))
    assert excused == [1, 2, 3, 2, 4]


def test_the_first_death_of_a_request_that_was_there_alone_is_excused_with_its_second() -> None:
    suspects, lost, excused = Suspects(retries=1), request("a"), list[int]()
    suspects.died([lost], 0.0, lambda: excused.append(1))
    assert excused == []
    suspects.next(0, 0.0)
    suspects.died([lost], 1.0, lambda: excused.append(2))
    assert excused == [1, 2]


def test_the_death_by_a_content_that_is_known_is_excused_at_once() -> None:
    suspects, known, excused = Suspects(retries=0), request("a"), list[int]()
    suspects.put(known, 0.0)
    suspects.next(0, 0.0)
    suspects.died([known], 1.0, lambda: excused.append(1))
    assert excused == [1]


def test_deaths_of_which_no_request_was_the_cause_are_not_excused() -> None:
    for retries, names_ in ((0, "a"), (0, "ab"), (1, "ab")):
        suspects, excused = Suspects(retries), list[int]()
        suspects.died([request(name) for name in names_], 0.0, lambda: excused.append(1))  # noqa: B023 - called now
        while (alone := suspects.next(0, 0.0)) is not None:
            suspects.drop(alone)  # it completes
        assert excused == []


def test_a_process_that_completes_nothing_is_not_excused_for_ever() -> None:
    suspects, excused = Suspects(retries=0), list[int]()

    def kill() -> None:
        suspects.put(known := request("a"), 0.0)
        suspects.next(0, 0.0)
        suspects.died([known], 1.0, lambda: excused.append(1))

    for _ in range(MOST_EXCUSED + 5):
        kill()
    assert len(excused) == MOST_EXCUSED
    suspects.completed()
    kill()
    assert len(excused) == MOST_EXCUSED + 1
