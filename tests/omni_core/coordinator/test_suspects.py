"""The order in which requests run again after a death: one suspect at a time, the youngest first."""

from __future__ import annotations

from omni_core.coordinator.suspects import (
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
