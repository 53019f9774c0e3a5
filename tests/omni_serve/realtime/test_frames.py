"""Frames of a camera: which are kept, the turn they belong to, and what a pipeline is given of them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from realtime_events import MANUAL, RATE, append, events, kinds, silence, voice

from omni_serve.errors import ApiError
from omni_serve.realtime.actions import Abort, Action, Start
from omni_serve.realtime.config import Offer
from omni_serve.realtime.frames import FrameBuffer
from omni_serve.realtime.session import Session
from omni_serve.room import Room
from omni_serve.settings import RealtimeLimits

SEEING = Offer(inputs=("text", "audio", "image", "video"), sound_in_video=True)
COMMIT = {"type": "input_audio_buffer.commit"}


def frame(at: int | None = None, data: bytes | None = None) -> dict[str, Any]:
    """A frame as the session gets it: its picture has been read."""
    event = {"type": "input_image_buffer.append", "image": data or f"picture {at}".encode()}
    return event if at is None else {**event, "time_ms": at}


def make(offer: Offer = SEEING, by_hand: bool = False, memory: Room | None = None, **limits: Any) -> Session:
    session = Session(offer=offer, limits=RealtimeLimits(**limits), memory=memory or Room(2**31))
    session.begin()
    if by_hand:
        session.receive(MANUAL, 0.0)
    return session


def do(session: Session, *given: dict[str, Any], now: float = 0.0) -> list[Action]:
    return [action for event in given for action in session.receive(event, now)]


def content_of(actions: list[Action]) -> list[dict[str, Any]]:
    """The parts of the last message that the pipeline is given."""
    parts: list[dict[str, Any]] = next(each for each in actions if isinstance(each, Start)).messages[-1]["content"]
    return parts


def ask(session: Session) -> list[dict[str, Any]]:
    return content_of(do(session, COMMIT, {"type": "response.create"}))


def test_a_turn_by_hand_has_its_frames_and_its_sound() -> None:
    session = make(by_hand=True)
    for at in (0, 500, 1000):
        assert do(session, frame(at), append(voice(0.5))) == []
    done = do(session, COMMIT)
    assert kinds(done) == ["input_audio_buffer.committed", "conversation.item.added", "conversation.item.done"]
    [sound, video] = events(done)[-1]["item"]["content"]
    assert sound["type"] == "input_audio"
    assert video == {"type": "input_video", "times_ms": [0, 500, 1000]}
    [part] = content_of(do(session, {"type": "response.create"}))
    assert part["type"] == "video"
    assert part["times"] == [0.0, 0.5, 1.0]
    assert part["frames"] == [{"data": f"picture {at}".encode()} for at in (0, 500, 1000)]
    assert len(part["sound"]["data"]) == 44 + 1.5 * 16_000 * 2
    item = events(done)[-1]["item"]["id"]
    [shown] = events(do(session, {"type": "conversation.item.retrieve", "item_id": item}))
    assert [each["type"] for each in shown["item"]["content"]] == ["input_audio", "input_video"]
    assert session.frames.size == 0


@pytest.mark.parametrize(("status", "outside", "left"), [(413, False, 1), (400, False, 2), (413, True, 2)])
def test_frames_that_the_pipeline_has_no_room_for_are_forgotten(status: int, outside: bool, left: int) -> None:
    """Otherwise every answer of the conversation fails."""
    session = make(by_hand=True)
    do(session, frame(0), append(voice(0.5)), COMMIT)
    given = {"conversation": "none", "input": [{"type": "item_reference", "id": session.conversation.items[0].id}]}
    created = do(session, {"type": "response.create", "response": given if outside else {}})
    assert [each for each in created if isinstance(each, Start)]
    assert session.reply is not None
    failed = kinds(session.failed(session.reply.id, 1.0, ApiError(status, "the pictures are over the limit")))
    assert failed == (["input_image_buffer.dropped"] if left == 1 else []) + ["response.done"]
    assert len(session.conversation.items[0].content) == left
    assert len(content_of(do(session, {"type": "response.create"}))) == 1


def test_a_turn_without_frames_is_as_before() -> None:
    session = make(by_hand=True)
    do(session, append(voice(0.5)))
    assert [part["type"] for part in ask(session)] == ["audio"]


def test_frames_without_a_time_have_that_of_the_sound() -> None:
    session = make(by_hand=True)
    for n in range(3):
        do(session, frame(data=f"{n}".encode()), append(voice(1.0)))
    assert ask(session)[0]["times"] == pytest.approx([0, 1, 2], abs=0.03)  # resampling holds some back


def test_voice_activity_takes_the_frames_of_the_turn() -> None:
    """From the newest before it, which is seen when it begins; the newest of a turn is seen before the next one."""
    session = make()
    do(session, *(frame(at) for at in range(0, 5000, 400)))
    do(session, append(silence(2.0)))
    found = do(session, append(voice(1.0)), append(silence(0.6)))
    begin = next(each["audio_start_ms"] for each in events(found) if each["type"].endswith("speech_started"))
    end = next(each["audio_end_ms"] for each in events(found) if each["type"].endswith("speech_stopped"))
    assert 1600 < begin < 2000
    within = [at for at in range(0, 5000, 400) if begin < at < end]
    [part] = content_of(found)
    assert part["times"] == [0.0, *((at - begin) / 1000 for at in within)]
    assert part["frames"][0]["data"] == b"picture 1600"
    session.finished(next(each for each in found if isinstance(each, Start)).reply, 9.0, {})
    [part] = content_of(do(session, append(voice(1.0)), append(silence(0.6))))
    assert part["frames"][0]["data"] == f"picture {within[-1]}".encode()


def test_a_frame_of_long_ago_is_not_seen() -> None:
    session = make()
    do(session, frame(0), append(silence(8.0)))
    assert session.frames.size == 0
    assert [part["type"] for part in content_of(do(session, append(voice(1.0)), append(silence(0.6))))] == ["audio"]


def test_the_first_frame_is_seen_from_the_beginning() -> None:
    """No sound is left out because a camera is slow."""
    session = make(by_hand=True)
    do(session, append(voice(3.0)), frame(2000), frame(2500))
    assert ask(session)[0]["times"] == [0.0, 2.5]


def test_who_interrupts_is_seen() -> None:
    session = make()
    do(session, frame(0), append(voice(1.0)), append(silence(0.6)))
    reply = session.reply
    assert reply is not None
    session.sound(reply.id, voice(5.0), RATE, 0.0)
    found = do(session, frame(1800), append(voice(1.0)), now=1.0)
    assert any(isinstance(each, Abort) for each in found)
    [part] = content_of(do(session, frame(2400), append(silence(0.6)), now=2.0))
    assert [each["data"] for each in part["frames"]] == [b"picture 0", b"picture 1800", b"picture 2400"]


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (("text", "audio", "video"), ["video", "audio"]),
        (("text", "audio", "image"), ["image", "audio"]),
    ],
)
def test_pipelines_of_other_sight(inputs: tuple[str, ...], expected: list[str]) -> None:
    """One that hears no video gets its sound beside it; one that sees images, the newest frame."""
    session = make(Offer(inputs=inputs), by_hand=True)
    do(session, frame(0), append(voice(1.0)), frame(900))
    found = ask(session)
    assert [part["type"] for part in found] == expected
    assert "sound" not in found[0]
    assert found[0].get("data", b"picture 900") == b"picture 900"
    kept = session.conversation.items[-1].content[1].frames
    assert [each.at for each in kept] == ([900] if "image" in expected else [0, 900])


def refused(actions: list[Action]) -> str:
    [event] = events(actions)
    assert event["type"] == "error"
    return str(event["error"]["message"])


def test_pipelines_without_sight_refuse_frames() -> None:
    for inputs in (("text", "audio"), ("text", "image")):
        assert "this pipeline takes no" in refused(do(make(Offer(inputs=inputs)), frame(0)))
    session = make()
    do(session, {"type": "session.update", "session": {"type": "transcription"}})
    assert "only transcribes" in refused(do(session, frame(0)))


@pytest.mark.parametrize("at", [-1, "now", True, float("nan"), 1e9, [1]])
def test_times_are_checked(at: Any) -> None:
    session = make(by_hand=True)
    assert "time_ms: must be" in refused(do(session, {**frame(0), "time_ms": at}))
    assert session.frames.size == 0


def test_frames_are_cleared() -> None:
    """As in Alibaba's API together with the sound, or alone."""
    session = make(by_hand=True)
    assert kinds(do(session, frame(0), append(voice(0.5)), {"type": "input_image_buffer.clear"})) == [
        "input_image_buffer.cleared"
    ]
    assert [part["type"] for part in ask(session)] == ["audio"]
    session = make(by_hand=True)
    do(session, frame(0), append(voice(0.5)), {"type": "input_audio_buffer.clear"}, append(voice(0.5)))
    assert [part["type"] for part in ask(session)] == ["audio"]


def test_too_short_a_turn_keeps_its_frames() -> None:
    session = make(by_hand=True)
    assert "buffer too small" in refused(do(session, frame(0), COMMIT))
    do(session, append(voice(0.5)))
    assert ask(session)[0]["times"] == [0.0]


def test_what_comes_too_fast_is_dropped_and_told_once() -> None:
    session = make(by_hand=True, frames_per_second=2)
    found = do(session, append(voice(2.0)), *(frame(at) for at in range(0, 2000, 100)))
    [event] = events(found)
    assert (event["type"], event["reason"]) == ("input_image_buffer.dropped", "rate")
    assert "2 a second" in event["message"]
    assert ask(session)[0]["times"] == [0.0, 0.5, 1.0, 1.5]


def test_a_long_turn_is_thinned_to_an_even_rhythm() -> None:
    session = make(by_hand=True, frames=8)
    found = do(session, append(voice(10.0)), *(frame(at) for at in range(0, 10_000, 500)))
    assert [event["reason"] for event in events(found)] == ["limit"]
    assert ask(session)[0]["times"] == [0.0, 2.0, 4.0, 6.0, 8.0]
    do(session, append(voice(1.0)), *(frame(at) for at in range(10_000, 11_000, 500)))
    assert session.reply is not None
    session.finished(session.reply.id, 0.0, {})
    assert ask(session)[0]["times"] == [0.0, 0.5]


def test_frames_are_thinned_by_their_bytes_too() -> None:
    session = make(by_hand=True, history_mib=1)
    big = bytes(100_000)
    do(session, append(voice(9.0)), *(frame(at, big) for at in range(0, 9000, 1000)))
    assert session.frames.size <= 2**19
    assert ask(session)[0]["times"] == [0.0, 2.0, 4.0, 6.0, 8.0]
    assert "over the limit of 0.5 MiB" in refused(do(session, frame(9000, bytes(2**19 + 1))))


def test_a_frame_of_an_earlier_turn_is_late() -> None:
    session = make(by_hand=True)
    do(session, append(voice(2.0)), frame(1000), COMMIT, frame(1900))
    [event] = events(do(session, frame(1500)))
    assert event["reason"] == "late"
    do(session, append(voice(1.0)))
    [part] = ask(session)
    assert (part["times"], part["frames"]) == ([0.0], [{"data": b"picture 1900"}])


def test_while_no_sound_comes_the_newest_frame_is_kept() -> None:
    """A client that is muted sends none; its clock stands still."""
    session = make(by_hand=True)
    do(session, append(voice(1.05)), frame(1005), append(voice(0.1)))
    for number in range(1, 101):
        do(session, frame(data=b"%d" % number), now=number * 0.1)
    assert [each["data"] for each in ask(session)[0]["frames"]] == [b"99"]


def test_memory_is_counted_and_given_back() -> None:
    memory = Room(200_000)
    session = make(by_hand=True, memory=memory)
    do(session, frame(0, bytes(60_000)))
    assert memory.used == 60_000
    assert "memory_mib" in refused(do(session, frame(500, bytes(60_000))))
    do(session, {"type": "input_image_buffer.clear"})
    assert memory.used == 0
    do(session, frame(0, bytes(60_000)), append(voice(0.2)), COMMIT)
    assert 60_000 < memory.used < 75_000
    session.close()
    assert memory.used == 0


def test_older_turns_lose_their_frames_first() -> None:
    """Down to a half, so that what is cached of the conversation is not lost in each turn."""
    session = make(by_hand=True, frames=8)
    counts = []
    for turn in range(6):
        begin = turn * 1000
        do(session, append(voice(1.0)), *(frame(begin + at) for at in (0, 250, 500)), COMMIT)
        counts.append([sum(len(part.frames) for part in item.content) for item in session.conversation.items])
    assert counts == [[3], [3, 3], [0, 0, 3], [0, 0, 3, 3], [0, 0, 0, 0, 3], [0, 0, 0, 0, 3, 3]]
    assert all(item.content[0].type == "input_audio" for item in session.conversation.items)
    sizes = session.conversation.size
    assert sizes == sum(item.size for item in session.conversation.items)


def test_frames_are_forgotten_by_their_bytes_before_turns_are() -> None:
    session = make(by_hand=True, history_mib=1)
    for number in range(9):
        do(session, append(voice(0.2)), frame(number * 200, bytes(200_000)), COMMIT)
    counts = [sum(len(part.frames) for part in item.content) for item in session.conversation.items]
    assert counts == [0] * 8 + [1]


def test_a_buffer_is_bounded_whatever_comes() -> None:
    buffer = FrameBuffer.of(RealtimeLimits(frames=8, history_mib=1))
    generator = np.random.default_rng(0)
    for number in range(2000):
        at = int(generator.integers(0, 120_000))
        if not buffer.is_full(at, number):
            buffer.add(at, bytes(int(generator.integers(1, 2**19))), number)
        buffer.move(number, number + 100)
    assert len(buffer.take(2000)) <= 8
    assert buffer.size == 0


TIMES = [0, 120, 350, 700, 1000, 1010, 1600, 2100, 2400]
PIECES = [silence(0.5), *[voice(0.1)] * 20, *[silence(0.1)] * 8]


def heard(order: list[int], by_hand: bool, most: int) -> dict[str, Any]:
    """Return the part that the pipeline is given. ``order``: for each frame, how many pieces of sound come before it."""
    session = make(by_hand=by_hand, frames=most)
    waiting = list(zip(order, TIMES, strict=True))
    found: list[Action] = []
    for number, piece in enumerate([*PIECES, silence(0.0)]):
        while waiting and waiting[0][0] <= number:
            found += do(session, frame(waiting.pop(0)[1]))
        found += do(session, append(piece))
    if by_hand:
        found += do(session, COMMIT, {"type": "response.create"})
    [part] = content_of(found)
    return part


@pytest.mark.parametrize(("by_hand", "most"), [(True, 64), (True, 4), (False, 64)])
@settings(max_examples=25, deadline=None)
@given(order=st.lists(st.integers(0, 24), min_size=len(TIMES), max_size=len(TIMES)).map(sorted))
def test_what_is_seen_does_not_depend_on_when_it_comes(by_hand: bool, most: int, order: list[int]) -> None:
    """Frames may come before or after the sound of their time, until their turn ends."""
    assert heard(order, by_hand, most) == heard([0] * len(TIMES), by_hand, most)
