"""Decodes videos that are given as pictures with a time each, as a camera or a screen that is watched live has them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from math import isfinite
from statistics import median
from typing import Any

import numpy as np
import numpy.typing as npt

from omni_media.images import images
from omni_media.sound import Samples, sound
from omni_media.source import Fits, Limits, MediaSource, Spent

Pixels = npt.NDArray[np.uint8]

Taken = Callable[[Sequence[float], float], tuple[list[float], float]]
"""Returns which of the times of frames are taken, and at how many per second."""


def timed_frames(
    source: MediaSource, limits: Limits, resize: Callable[[Pixels], Pixels], fits: Fits, taken: Taken
) -> tuple[Pixels, float]:
    """Decode the ``frames`` of a part that has their ``times``; what is not taken is not decoded.

    Returns:
        uint8 ``[T, H, W, 3]``, all in the size of the first, and their rate.

    Raises:
        InvalidRequestError: the times do not fit the frames, or a frame cannot be decoded, or is over a limit (RequestTooLargeError).
    """
    times = _times(source)
    shown = median(after - before for before, after in pairwise(times)) if len(times) > 1 else 0.0
    starts = [time - times[0] for time in times]
    seconds = round(starts[-1] + shown, 6)
    if seconds > limits.max_video_seconds:
        most, name = limits.max_video_seconds, limits.option("max_video_seconds")
        raise source.too_large(f"{seconds:.1f} s of video are over the limit of {most:g} s ({name})")
    wanted, rate = taken(starts, seconds)
    numbers = dict(zip(starts, range(len(starts)), strict=True))
    made: list[Pixels] = []
    size, before = (0, 0), -1
    for number in (numbers[each] for each in wanted):
        if number == before:
            made.append(made[-1])
            continue
        where = f"{source.where}.frames[{number}]"
        [picture] = images(MediaSource("image", _frame(source, number), where, Spent()), limits)
        if not made:
            size = picture.size
            fits(len(wanted), size[1], size[0])
        source.spend("request_frame_pixels", picture.width * picture.height, limits)
        made.append(resize(np.array(picture if picture.size == size else picture.resize(size))))
        before = number
    return np.stack(made), rate


def sound_of(source: MediaSource, rate: int, limits: Limits) -> Samples | None:
    """Return the ``sound`` of a part of frames, ``None`` without one. It begins with the first frame, whose time is on its clock."""
    part = source.part.get("sound")
    if part is None:
        return None
    samples = sound(MediaSource("audio", part, f"{source.where}.sound", source.spent), rate, limits)
    early = round(_times(source)[0] * rate)
    return samples[early:] if early > 0 else np.pad(samples, (-early, 0))


def _times(source: MediaSource) -> list[float]:
    """Return the time of each frame in seconds. Raises InvalidRequestError: they are none, or not in order."""
    frames, given = source.part["frames"], source.part["times"]
    if not isinstance(frames, list) or not isinstance(given, list) or len(given) != len(frames) or not given:
        raise source.fail("`times` must be a list of seconds, one for each picture in the list `frames`")
    if not all(isinstance(each, int | float) and isfinite(each) for each in given):
        raise source.fail("`times` must be numbers of seconds")
    times = [float(each) for each in given]
    for before, after in pairwise(times):
        if not after > before:
            raise source.fail(f"`times` must rise from frame to frame; {after:g} s comes after {before:g} s")
    if abs(times[0]) > 3600:
        raise source.fail(f"`times` must begin within an hour of the sound, begin at {times[0]:g} s")
    return times


def _frame(source: MediaSource, number: int) -> Any:
    part = source.part["frames"][number]
    if not isinstance(part, dict):
        raise source.fail(f"`frames[{number}]` must be a picture, as a part of a message: {{'data': bytes}}")
    return part
