"""Room that keys share: who gets it, who waits, and that a smaller request does not overtake for ever."""

from __future__ import annotations

from omni_serve.fair_room import FairRoom


def handed_out(room: FairRoom[str]) -> list[str]:
    """Return all requests that get their room now."""
    found = []
    while (request := room.next()) is not None:
        found.append(request)
    return found


def test_a_key_takes_half_and_others_get_in_at_once() -> None:
    room: FairRoom[str] = FairRoom(2.0, 1.0)
    for name in ("a1", "a2", "a3"):
        room.enter("a", 1.0, 0.5, name)
    assert handed_out(room) == ["a1", "a2"]
    room.enter("b", 1.0, 1.0, "b1")
    assert handed_out(room) == ["b1"]
    room.leave("a", 0.5)
    assert handed_out(room) == ["a3"]
    assert (room.held, room.waiting) == (2.0, 0)


def test_the_key_that_holds_least_for_its_share_is_next() -> None:
    room: FairRoom[str] = FairRoom(2.0, 1.0)
    for key in ("a", "b"):
        room.enter(key, 1.0, 1.0, key)
    assert handed_out(room) == ["a", "b"]
    room.leave("a", 0.5)
    for key, share in (("b", 1.0), ("a", 1.0), ("c", 1.0)):
        room.enter(key, share, 0.25, f"{key} again")
    assert handed_out(room) == ["c again", "a again"]
    room.leave("b", 1.0)
    assert handed_out(room) == ["b again"]


def test_a_large_request_is_not_overtaken_for_ever() -> None:
    room: FairRoom[str] = FairRoom(2.0, 1.0)
    for key in ("a", "b"):
        room.enter(key, 1.0, 0.75, key)
    assert handed_out(room) == ["a", "b"]
    room.enter("c", 1.0, 1.0, "large")
    room.enter("d", 1.0, 0.25, "small")
    assert handed_out(room) == []
    room.leave("a", 0.75)
    assert handed_out(room) == ["large", "small"]


def test_one_that_gives_up_holds_up_nobody() -> None:
    room: FairRoom[str] = FairRoom(2.0, 1.0)
    for name in ("a1", "a2", "a3"):
        room.enter("a", 1.0, 1.0, name)
    assert handed_out(room) == ["a1"]
    assert room.give_up("a", "a2")
    assert not room.give_up("a", "a1")
    room.leave("a", 1.0)
    assert handed_out(room) == ["a3"]
    room.leave("a", 1.0)
    assert (room.held, room.waiting) == (0, 0)


def test_what_is_larger_than_all_room_of_a_key_takes_that() -> None:
    room: FairRoom[str] = FairRoom(1.0, 1.0)
    room.enter("a", 1.0, 5.0, "a")
    assert handed_out(room) == ["a"]
    room.leave("a", 5.0)
    assert room.held == 0
