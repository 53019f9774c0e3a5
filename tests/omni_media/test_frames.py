"""Frames are sampled by time from the first one on, upright, and the sound is heard where it begins."""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from typing import Any

import av
import numpy as np
import pytest
from media_files import RATE, TONE, numbers, pictured

from omni_core.errors import InvalidRequestError, RequestTooLargeError
from omni_media.api import Limits, frames
from omni_media.containers import measured, opened, stream_of
from omni_media.frames import sampled

STEADY = [number / 25 for number in range(50)]
TAKEN = [0, 13, 25, 38]
"""The frames at or after 0, 0.5, 1 and 1.5 s."""


@pytest.mark.parametrize("begin", [0.0, 1.5, 30.0, 700.0])
@pytest.mark.parametrize(("form", "codec"), [("matroska", "ffv1"), ("mp4", "mpeg4"), ("mpegts", "libx264")])
def test_the_clock_begins_with_the_first_frame(begin: float, form: str, codec: str) -> None:
    found = frames({"data": pictured([begin + each for each in STEADY], form=form, codec=codec)})
    assert numbers(found.frames) == TAKEN
    assert found.fps == 2.0


@pytest.mark.parametrize(
    "options", [{"movflags": "frag_keyframe+empty_moov"}, {"movflags": "frag_every_frame+empty_moov+default_base_moof"}]
)
def test_recorders_of_browsers_are_read(options: dict[str, str]) -> None:
    found = frames({"data": pictured(STEADY, form="mp4", codec="mpeg4", **options)})
    assert numbers(found.frames) == TAKEN


def test_in_a_pause_the_frame_is_taken_that_is_seen() -> None:
    times = [*(number / 25 for number in range(25)), *(5 + number / 25 for number in range(25))]
    found = numbers(frames({"data": pictured(times)}).frames)
    assert found == [0, 13, *[24] * 8, 25, 38]


SAMPLED = {
    "one frame": ([0.0], 0.0, [0.0]),
    "one that is seen for long": ([0.0], 60.0, [0.0]),
    "fewer than ticks": ([0.0, 5.0, 10.0], 15.0, [0.0, 5.0, 10.0]),
    "as many as ticks": ([0.0, 0.5, 1.0], 1.5, [0.0, 0.5, 1.0]),
    "the last is seen for long": ([0.0, 0.1, 0.2, 0.3, 0.4, 0.5], 2.5, [0.0, 0.5, 0.5, 0.5, 0.5]),
    "more than are allowed": ([n / 10 for n in range(200)], 20.0, [0.0, 2.5, 5.0, 7.5, 10.0, 12.5, 15.0, 17.5]),
}


@pytest.mark.parametrize("name", SAMPLED)
def test_what_is_taken(name: str) -> None:
    times, seconds, expected = SAMPLED[name]
    assert sampled(times, seconds, 2.0, 8)[0] == pytest.approx(expected)


def test_samples_are_near_their_ticks_whatever_the_clock_does() -> None:
    """No burst: each is the frame that is seen at its tick, or the first one after it."""
    draw = np.random.default_rng(0)
    for _ in range(200):
        times = np.concatenate([[0.0], np.cumsum(draw.choice([0.01, 0.04, 0.04, 0.4, 3.0], size=draw.integers(1, 80)))])
        taken, fps = sampled(times.tolist(), float(times[-1]) + 0.04, 2.0, 1000)
        tick = max(1 / fps, (times[-1] + 0.04) / len(times))
        for number, time in enumerate(taken):
            shown = times[np.searchsorted(times, number * tick + 1e-6) - 1]
            assert time == shown or 0 <= time - number * tick < tick


def turned(data: bytes, matrix: tuple[int, int, int, int]) -> bytes:
    """Return an mp4 with another rotation in the header of its track."""
    at = data.index(b"tkhd") + 4 + 40
    a, b, c, d = matrix
    return data[:at] + struct.pack(">9i", a << 16, b << 16, 0, c << 16, d << 16, 0, 0, 0, 1 << 30) + data[at + 36 :]


@pytest.mark.parametrize(
    ("matrix", "shown"),
    [
        ((1, 0, 0, 1), lambda frame: frame),
        ((0, 1, -1, 0), lambda frame: np.rot90(frame, -1)),
        ((-1, 0, 0, -1), lambda frame: np.rot90(frame, 2)),
        ((0, -1, 1, 0), lambda frame: np.rot90(frame, 1)),
        ((-1, 0, 0, 1), np.fliplr),
        ((1, 0, 0, -1), np.flipud),
        ((0, 1, 1, 0), lambda frame: frame.swapaxes(0, 1)),
        ((0, -1, -1, 0), lambda frame: np.rot90(frame, 2).swapaxes(0, 1)),
        ((0, 0, 0, 0), lambda frame: frame),
        ((-32768, 0, 0, 32767), np.fliplr),
    ],
)
def test_videos_of_telephones_are_upright(
    matrix: tuple[int, int, int, int], shown: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
) -> None:
    """The matrix of a recording in portrait turns it by 90 degrees clockwise, others mirror; see ISO/IEC 14496-12, 8.3.2."""
    data = pictured(STEADY, form="mp4", codec="mpeg4", size=(64, 32))
    plain = frames({"data": data}).frames
    found = frames({"data": turned(data, matrix)}).frames
    assert np.array_equal(found, [shown(frame) for frame in plain])


@pytest.mark.parametrize(
    ("said", "shown"), [("rotate=90", lambda frame: np.rot90(frame, 1)), ("flip=horizontal", np.fliplr)]
)
def test_a_stream_may_say_once_how_it_is_turned(
    said: str, shown: Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]]
) -> None:
    data = pictured(STEADY, form="h264", codec="libx264", size=(64, 32))
    with av.open(io.BytesIO(data), format="h264") as file:
        track = file.streams.video[0]
        turn = av.BitStreamFilterContext(f"h264_metadata=display_orientation=insert:{said}", in_stream=track)
        made = b"".join(bytes(out) for each in file.demux(track) for out in turn.filter(each if each.size else None))
    plain, found = frames({"data": data}).frames, frames({"data": made}).frames
    assert np.array_equal(found, [shown(frame) for frame in plain])


@pytest.mark.parametrize("fps", [0, -2.0, np.nan, np.inf, 1e-320])
@pytest.mark.parametrize("part", [{"data": pictured(STEADY)}, {"frames": np.zeros((2, 32, 32, 3), np.uint8)}])
def test_a_rate_that_is_none_is_named(part: dict[str, Any], fps: float) -> None:
    with pytest.raises(InvalidRequestError, match=r"the video: `fps` must be a finite number above 0, is "):
        frames(part, fps=fps)


@pytest.mark.parametrize("begin", [0.0, 1.0])
def test_sound_is_heard_where_it_begins(begin: float) -> None:
    times = [10.0 + each for each in STEADY]
    data = pictured(times, sound=TONE[:RATE], sound_begin=10.0 + begin)
    found = frames({"data": data}, sound_rate=RATE).sound
    assert found is not None
    late = round(begin * RATE)
    assert len(found) == late + RATE
    assert not found[:late].any()
    assert np.abs(found[late:] - TONE[:RATE]).max() < 1e-4


def test_sound_before_the_first_frame_is_left_out() -> None:
    data = pictured([0.5 + each for each in STEADY], sound=TONE, sound_begin=0.0)
    found = frames({"data": data}, sound_rate=RATE).sound
    assert found is not None
    assert np.abs(found - TONE[RATE // 2 :]).max() < 1e-4
    assert frames({"data": data}).sound is None


@pytest.mark.parametrize(
    ("form", "codec"),
    [("gif", "gif"), ("avi", "mpeg4"), ("webm", "libvpx-vp9"), ("h264", "libx264"), ("ivf", "libvpx")],
)
def test_other_formats_are_sampled_alike(form: str, codec: str) -> None:
    found = frames({"data": pictured(STEADY, form=form, codec=codec, size=(64, 32))})
    assert len(found.frames) == 4


def test_frames_that_cannot_be_decoded_are_not_counted() -> None:
    """A cut of a broadcast begins in a group of pictures; the first of the next one may refer to the one before."""
    options = {"g": "10", "bf": "3", "x264-params": "open-gop=1:b-adapt=0:keyint=10:scenecut=0"}
    whole = pictured(STEADY, form="mpegts", codec="libx264", size=(64, 32), codec_options=options)
    for cut in range(3, 20):
        data = io.BytesIO(whole[cut * 188 :])
        with opened(data) as file:
            found = measured(file, stream_of(file, "video"))
        with opened(data) as file:
            first = next(file.decode(video=0))
        assert found.start == first.time


def test_what_an_edit_list_leaves_out_is_not_taken() -> None:
    """Telephones cut recordings so."""
    times = [number / 25 - 1.0 for number in range(75)]
    data = pictured(times, form="mp4", codec="libx264", size=(64, 32), avoid_negative_ts="disabled", use_editlist="1")
    found = frames({"data": data}).frames
    assert numbers(found) == pytest.approx([25, 37, 50, 62], abs=2)


def test_a_track_that_begins_in_the_middle_of_a_broadcast_ends_nothing() -> None:
    """Cuts of broadcasts announce tracks late, behind what is read to find the first ones."""
    first = pictured(STEADY, form="mpegts", codec="libx264", size=(64, 32))
    other = {"mpegts_start_pid": "512", "mpegts_pmt_start_pid": "4000"}
    late = pictured(STEADY, form="mpegts", codec="libx264", size=(64, 32), **other)
    once = frames({"data": first * 60}, limits=Limits(max_video_seconds=1e6)).frames
    assert len(frames({"data": first * 60 + late + first * 60}, limits=Limits(max_video_seconds=1e6)).frames) >= len(
        once
    )


def test_limits_count_what_is_there() -> None:
    data = pictured([700 + each for each in STEADY])
    frames({"data": data}, limits=Limits(max_video_seconds=2.0))
    with pytest.raises(RequestTooLargeError, match=r"2\.0 s of video are over the limit of 1\.9 s"):
        frames({"data": data}, limits=Limits(max_video_seconds=1.9))
    with pytest.raises(RequestTooLargeError, match="max_image_pixels"):
        frames({"data": data}, limits=Limits(max_image_pixels=500))


def test_what_is_no_video_is_named() -> None:
    with pytest.raises(InvalidRequestError, match="the video: not a video, or damaged"):
        frames({"data": b"nothing of the kind"})
    whole = pictured([each / 10 for each in range(200)])
    with pytest.raises(InvalidRequestError, match=r"the video is truncated: \d+\.\d of 19\.9 s"):
        frames({"data": whole[: len(whole) // 2]})
