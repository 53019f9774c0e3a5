"""Frames with times are taken as those of a file, but a sparse video is not a shorter one; sound begins with the first frame."""

from __future__ import annotations

import asyncio
import io
from typing import Any

import numpy as np
import pytest
from media_files import RATE, TONE, numbers, pictured
from PIL import Image

from omni_core.api import MediaPolicy
from omni_core.errors import InvalidRequestError, RequestTooLargeError
from omni_media.api import Limits, frames
from omni_media.frames import held
from omni_media.reader import Reader


def png(number: int, size: tuple[int, int] = (32, 16)) -> bytes:
    """The frame of this number in :func:`media_files.pictured`."""
    pixels = np.full((size[1], size[0], 3), 4 * number % 256, np.uint8)
    pixels[: size[1] // 2, : size[0] // 4] = 255
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    return file.getvalue()


def timed(times: list[float], **more: Any) -> dict[str, Any]:
    return {"type": "video", "frames": [{"data": png(n)} for n in range(len(times))], "times": times, **more}


@pytest.mark.parametrize(
    "times",
    [
        [number / 25 for number in range(50)],
        [number / 2 for number in range(5)],
        [0.0, 0.3, 0.9, 1.1, 1.15, 1.7, 2.2, 2.6],
        [0.0],
    ],
)
@pytest.mark.parametrize("begin", [0.0, 7.25])
def test_they_equal_a_file(times: list[float], begin: float) -> None:
    file = frames({"data": pictured([begin + each for each in times])})
    ours = frames(timed([begin + each for each in times]))
    assert (ours.frames == file.frames).all()
    assert ours.fps == file.fps


HELD = {
    "a frame a second": ([0.0, 1.0, 2.0], 3.0, [0, 0, 1, 1, 2, 2], 2.0),
    "with a pause": ([0.0, 0.5, 1.0, 3.0], 3.5, [0, 0.5, 1, 1, 1, 1, 3], 2.0),
    "a frame in five seconds": ([0.0, 5.0], 10.0, [0, 0, 5, 5], 0.4),
    "one": ([0.0], 0.0, [0], 2.0),
    "many": ([n / 4 for n in range(80)], 20.0, [n * 2.0 for n in range(10)], 0.5),
}


@pytest.mark.parametrize("name", HELD)
def test_a_sparse_video_is_not_a_shorter_one(name: str) -> None:
    times, seconds, taken, rate = HELD[name]
    assert held(times, seconds, 2.0, 10) == (pytest.approx(taken), pytest.approx(rate))


def test_the_sound_begins_with_the_first_frame() -> None:
    file = frames({"data": pictured([0.5, 1.0, 1.5], sound=TONE)}, sound_rate=RATE)
    given = {"samples": TONE, "sample_rate": RATE}
    ours = frames(timed([0.5, 1.0, 1.5], sound=given), sound_rate=RATE)
    assert file.sound is not None
    assert ours.sound is not None
    assert len(ours.sound) == len(TONE) - RATE // 2 == len(file.sound)
    assert np.abs(ours.sound - file.sound).max() < 1e-3
    later = frames(timed([-0.25, 1.0], sound=given), sound_rate=RATE)
    assert later.sound is not None
    assert not later.sound[: RATE // 4].any()
    assert len(later.sound) == len(TONE) + RATE // 4


def test_sound_that_nobody_hears_is_an_error() -> None:
    with pytest.raises(InvalidRequestError, match="`sound` of a video is not heard here"):
        frames(timed([0.0], sound={"samples": TONE, "sample_rate": RATE}))


def test_frames_of_another_size_are_seen_in_that_of_the_first() -> None:
    part = {"frames": [{"data": png(1)}, {"data": png(2, (64, 64))}], "times": [0.0, 0.5]}
    found = frames(part).frames
    assert found.shape == (2, 16, 32, 3)
    assert numbers(found) == [1, 2]


WRONG = {
    "as many": ({"frames": [{"data": png(0)}], "times": [0.0, 1.0]}, "one for each picture"),
    "none": ({"frames": [], "times": []}, "one for each picture"),
    "order": (timed([0.0, 1.0, 1.0]), "must rise from frame to frame; 1 s comes after 1 s"),
    "not numbers": (timed([0.0, float("nan")]), "numbers of seconds"),
    "far from the sound": (timed([1e9]), "within an hour"),
    "bytes": ({"frames": [b"x"], "times": [0.0]}, r"`frames\[0\]` must be a picture"),
    "damaged": ({"frames": [{"data": png(0)}, {"data": png(1)[:60]}], "times": [0.0, 1.0]}, r"frames\[1\].*damaged"),
    "without times": ({"frames": [{"data": png(0)}]}, "or a list of pictures with `times`"),
}


@pytest.mark.parametrize("name", WRONG)
def test_what_is_wrong_is_told(name: str) -> None:
    part, words = WRONG[name]
    with pytest.raises(InvalidRequestError, match=words):
        frames(part)


@pytest.mark.parametrize(
    ("limits", "words"),
    [
        (Limits(max_video_seconds=1.0), "1.5 s of video"),
        (Limits(max_image_pixels=100), "32 x 16 pixels"),
        (Limits(max_request_frame_pixels=1000), "pixels of frames"),
    ],
)
def test_limits_hold(limits: Limits, words: str) -> None:
    with pytest.raises(RequestTooLargeError, match=words):
        frames(timed([0.0, 0.5, 1.0]), limits=limits)


def test_what_is_not_taken_is_not_decoded() -> None:
    part = timed([number / 25 for number in range(50)])
    part["frames"][1] = {"data": b"no picture"}
    assert numbers(frames(part).frames) == [0, 13, 25, 38]


def test_what_is_taken_twice_is_decoded_once() -> None:
    found = frames(timed([0.0, 1.0]), limits=Limits(max_request_frame_pixels=2 * 32 * 16))
    assert numbers(found.frames) == [0, 0, 1, 1]


def test_the_reader_takes_pictures_of_every_form() -> None:
    picture = Image.open(io.BytesIO(png(3)))
    given = {"frames": [png(1), picture, np.asarray(picture), {"data": png(4)}], "times": (0, 0.5, 1.0, 1.5)}
    sound = (TONE, RATE)
    policy = MediaPolicy(allow_paths=False)
    [by_value] = asyncio.run(Reader(policy).values("video", {**given, "sound": sound}))
    content = [{"type": "video", **given, "sound": sound}]
    [message] = asyncio.run(Reader(policy).messages([{"role": "user", "content": content}]))
    for part in (by_value, message["content"][0]):
        found = frames(part, sound_rate=RATE)
        assert numbers(found.frames) == [1, 3, 3, 4]
        assert found.sound is not None
        assert len(found.sound) == len(TONE)
    with pytest.raises(InvalidRequestError, match=r"video.frames\[0\]: files cannot be named here"):
        asyncio.run(Reader(policy).values("video", {"frames": ["a.png"], "times": [0]}))
    with pytest.raises(InvalidRequestError, match="a number for each"):
        asyncio.run(Reader(policy).values("video", {"frames": 3, "times": ["x"]}))
