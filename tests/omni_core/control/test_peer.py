"""The state machine of what is sent to one peer: events in, bytes to write out, no sockets."""

from __future__ import annotations

import pytest

from omni_core.control.back_pressure import BACKLOG_BYTES, BACKLOG_MESSAGES, HIGH_WATER_MARK
from omni_core.control.framing import Frame
from omni_core.control.peer import ASK_AFTER, Peer
from omni_core.errors import StageFailedError, TransportError


def message(text: str, stage: str | None = None) -> Frame:
    """A frame; with ``stage``, it carries the request of that text."""
    data = text.encode()
    return Frame([memoryview(data)], len(data), None if stage is None else (text, stage))


def written(peer: Peer, most: int = 10**9) -> str:
    """Write pending bytes, at most ``most`` of them; return them as text."""
    found = b""
    while (parts := peer.pending()) and len(found) < most:
        data = b"".join(parts)[: most - len(found)]
        found += data
        if not peer.wrote(len(data)):
            break
    return found.decode()


@pytest.fixture
def peer() -> Peer:
    made = Peer("ipc://there")
    made.up()
    return made


def test_messages_are_written_in_order(peer: Peer) -> None:
    for text in ("one", "two", "three"):
        peer.push(message(text))
    assert written(peer) == "onetwothree"
    assert peer.pending() == []


def test_messages_wait_for_a_connection() -> None:
    peer = Peer("ipc://there")
    peer.push(message("first"))
    assert peer.pending() == []
    peer.up()
    assert written(peer) == "first"


def test_a_message_that_is_written_in_part_is_finished(peer: Peer) -> None:
    peer.push(message("abcdef"))
    peer.push(message("gh"))
    assert written(peer, 4) == "abcd"
    assert written(peer) == "efgh"


def test_a_successor_gets_the_whole_of_a_message_that_was_written_in_part(peer: Peer) -> None:
    peer.push(message("abcdef", "s"))
    written(peer, 4)
    assert peer.down() == [("abcdef", "s")]
    assert peer.pending() == []
    peer.up()
    assert written(peer) == "abcdef"


def test_a_lost_connection_keeps_what_has_reached_the_peer(peer: Peer) -> None:
    peer.push(message("r", "s"))
    written(peer)
    peer.closed()
    assert peer.down() == [("r", "s")]


def test_only_what_was_written_has_reached_the_peer(peer: Peer) -> None:
    for name in ("a", "b"):
        peer.push(message(name, "s"))
    assert written(peer, 1) == "a"
    peer.wrote(0)  # the link was full
    assert peer.down() == [("a", "s")]
    assert peer.down() == [], "the successor has got nothing yet"


def test_a_request_in_flight_is_remembered_however_many_come_after_it(peer: Peer) -> None:
    peer.push(message("long", "s"))
    for number in range(3 * ASK_AFTER):
        peer.push(message(str(number), "s"))
        written(peer)
        if peer.must_ask:
            peer.ask()
            peer.keep({"long", str(number)})
    reached = peer.down()
    assert ("long", "s") in reached
    assert (str(number), "s") in reached
    assert len(reached) <= ASK_AFTER + 2, "what is over is forgotten"


def test_work_after_the_question_is_kept(peer: Peer) -> None:
    peer.push(message("before", "s"))
    written(peer)
    peer.ask()
    peer.push(message("after", "s"))
    written(peer)
    peer.keep(set())
    assert peer.down() == [("after", "s")]


def test_a_death_between_question_and_answer_forgets_nothing(peer: Peer) -> None:
    peer.push(message("r", "s"))
    written(peer)
    peer.ask()
    assert peer.down() == [("r", "s")]
    peer.keep({"r"})
    assert peer.down() == []


def test_the_next_question_comes_later_the_more_is_in_flight(peer: Peer) -> None:
    for number in range(ASK_AFTER):
        peer.push(message(str(number), "s"))
    written(peer)
    assert peer.must_ask
    peer.ask()
    peer.keep({str(number) for number in range(ASK_AFTER)})
    assert not peer.must_ask


def test_pending_messages_of_ended_requests_are_dropped(peer: Peer) -> None:
    for name, stage in (("half", "s"), ("gone", "s"), ("gone", "t"), ("stays", "s")):
        peer.push(message(name, stage))
    assert written(peer, 2) == "ha"
    peer.forget("gone")
    peer.forget("half")
    assert written(peer) == "lfstays", "half of a frame would garble those behind it"


def test_a_failed_peer_rejects_messages_and_names_the_pending_work(peer: Peer) -> None:
    peer.push(message("a", "s"))
    peer.push(message("no work"))
    error = StageFailedError("s", "it died too often")
    assert peer.fail(error) == [("a", "s")]
    assert peer.pending() == []
    with pytest.raises(StageFailedError):
        peer.push(message("b"))


def test_too_many_messages_for_a_peer_that_does_not_read_are_refused() -> None:
    peer = Peer("ipc://there")
    for _ in range(HIGH_WATER_MARK):
        peer.push(message("x"))
    with pytest.raises(TransportError, match="is its process stopped"):
        peer.push(message("x"))


def test_senders_must_wait_while_the_backlog_is_large(peer: Peer) -> None:
    for _ in range(BACKLOG_MESSAGES):
        peer.push(message("x"))
    assert not peer.is_behind
    peer.push(message("x"))
    assert peer.is_behind
    written(peer, 1)
    assert not peer.is_behind
    peer.push(message("x" * (BACKLOG_BYTES + 1)))
    assert peer.is_behind


def test_a_peer_that_was_given_up_takes_messages_again_when_it_is_there() -> None:
    peer = Peer("ipc://x")
    peer.fail(TransportError("gone"))
    with pytest.raises(TransportError, match="gone"):
        peer.push(message("a"))
    peer.up()
    peer.push(message("b"))
    assert len(peer.waiting) == 1
