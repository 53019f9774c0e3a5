"""Decodes videos with PyAV: frames sampled by time, upright, and the sound track where it is asked for."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from math import ceil, isfinite
from typing import IO, Any

import av
import av.error
import numpy as np
import numpy.typing as npt
from attrs import define, frozen

from omni_media.containers import Measured, TooManyPacketsError, decoded, measured, opened, packets, stream_of, time_of
from omni_media.sound import Samples, SoundTrack
from omni_media.source import LIMITS, Fits, Limits, MediaSource, source_of
from omni_media.timed import sound_of, timed_frames

Frames = npt.NDArray[np.uint8]

PACKET_PIXELS = 50_000
"""Pixels that reading a packet of a file is counted as: small frames take time too."""

Resize = Callable[[Frames], Frames]

_CLOSE = 1e-6


@frozen
class Video:
    """Sampled frames, uint8 ``[T, H, W, 3]`` in RGB, at ``fps`` frames per second, and the sound if it was asked for and is there.

    The first sample of ``sound`` (float32 ``[n]``) is heard with the first frame.
    """

    frames: Frames
    fps: float
    sound: Samples | None = None


def frames(
    part: Mapping[str, Any] | MediaSource,
    fps: float = 2.0,
    limits: Limits = LIMITS,
    *,
    sound_rate: int | None = None,
    resize: Resize = lambda frame: frame,
    fits: Fits = lambda *size: None,
) -> Video:
    """Decode the frames of a content part, sampled by time from the first one on: see :func:`sampled`.

    Args:
        part: ``path``, ``data`` (the bytes of a file), ``frames`` (uint8 ``[T, H, W, 3]``, at ``fps``), or a list of them, each a
            part of an image, with ``times`` (a list of seconds) and perhaps ``sound``, a part of audio: see :func:`held`.
        fps: frames that are taken per second; fewer where there would be more than ``limits.max_video_frames``.
        limits: checked by the file's packets, and as it is decoded.
        sound_rate: in Hz; ``None``: the sound is left out.
        resize: makes each frame ``[H, W, 3]`` the size in which it is kept, as soon as it is decoded.
        fits: called with ``frames, height, width`` before anything is decoded, and again where a frame has another size than the file
            said; may raise RequestTooLargeError.

    Raises:
        InvalidRequestError: not a video, damaged, truncated, ``fps`` is no rate, or over a limit
            (RequestTooLargeError); the message names the part.
    """
    source = source_of(part, "video")
    if not (fps > 0 and isfinite(fps) and isfinite(1 / fps)):
        raise source.fail(f"`fps` must be a finite number above 0, is {fps}")
    given = source.part.get("frames")
    if given is not None and source.part.get("times") is not None:
        if source.part.get("sound") is not None and sound_rate is None:
            raise source.fail(
                "the `sound` of a video is not heard here; send it as a part of its own, {'type': 'audio'}"
            )
        most = limits.max_video_frames
        made, rate = timed_frames(source, limits, resize, fits, lambda times, seconds: held(times, seconds, fps, most))
        return Video(made, rate, sound_of(source, sound_rate, limits) if sound_rate else None)
    if given is not None:
        array = np.asarray(given)
        if array.dtype != np.uint8 or array.ndim != 4 or array.shape[3] != 3 or not len(array):
            form = "uint8 [T, H, W, 3], or a list of pictures with `times`"
            raise source.fail(f"`frames` must be {form}; are {array.dtype} {list(array.shape)}")
        source.check_sides(array.shape[2], array.shape[1])
        fits(*array.shape[:3])
        source.spend("request_frame_pixels", array.size // 3, limits)
        return Video(np.stack([resize(frame) for frame in array]), fps)
    try:
        with source.open(limits) as stream:
            extent = _measured(source, limits, stream)
            wanted, fps = sampled(extent.times, extent.seconds, fps, limits.max_video_frames)
            reader = _Reader(source, limits, resize, fits, wanted, extent.start)
            with opened(stream) as container:
                return reader.read(container, fps, sound_rate)
    except av.error.FFmpegError as error:
        raise source.fail(f"not a video, or damaged: {error.strerror}") from error
    except TooManyPacketsError:
        raise source.too_large("the file has too many packets; store it again") from None


def sampled(times: Sequence[float], seconds: float, fps: float, most: int) -> tuple[list[float], float]:
    """Return the times of the frames that are taken of a video, and their rate.

    For each tick ``0, 1/fps, 2/fps, ...`` it is the first frame at or after it; in a pause, of more than a tick, the frame that is seen
    meanwhile. A video of fewer frames than ticks is taken whole, as by the reference's sampler: it is a shorter one.

    Args:
        times: of all frames, in order, from 0.
        seconds: until the last one ends.
        fps: ticks per second.
        most: frames; where there would be more, the rate is lowered.
    """
    if seconds * fps > most:
        fps = most / seconds
    return _at_ticks(times, seconds, max(1.0 / fps, seconds / max(len(times), 1)), most), fps


def held(times: Sequence[float], seconds: float, fps: float, most: int) -> tuple[list[float], float]:
    """Return the times of the frames that are taken of one that is watched live, and their rate.

    It is as in :func:`sampled`, but no video is a shorter one: in each pause the frame is taken again that is seen. Where frames are rarer
    than two ticks, the rate is a whole part of ``fps``, so that each is taken about twice.
    """
    fps /= max(1, round(seconds * fps / (2 * len(times))))
    if seconds * fps > most:
        fps = most / seconds
    return _at_ticks(times, seconds, 1.0 / fps, most), fps


def _at_ticks(times: Sequence[float], seconds: float, tick: float, most: int) -> list[float]:
    taken = []
    for number in range(min(max(ceil(seconds / tick - _CLOSE), 1), most)):
        at = number * tick
        after = bisect_left(times, at - _CLOSE)
        if after < len(times) and (times[after] - at < tick - _CLOSE or not after):
            taken.append(times[after])
        elif after and (after < len(times) or seconds - times[-1] > tick + _CLOSE):
            taken.append(times[after - 1])
    return taken


def _measured(source: MediaSource, limits: Limits, stream: IO[bytes]) -> Measured:
    """Return the extent of a video, checked. Nothing of it is decoded yet."""
    with opened(stream) as container:
        track = stream_of(container, "video")
        if track is None:
            raise source.fail("the file has no video track")
        most, name = limits.max_image_pixels, limits.option("max_image_pixels")
        if track.width * track.height > most:
            raise source.too_large(f"{track.width} x {track.height} pixels are over the limit of {most} ({name})")
        source.check_sides(track.width, track.height)
        extent = measured(container, track, *container.streams.audio)
        claimed = float(container.duration or 0) / av.time_base  # of the longest track
    seconds, limit = extent.seconds, limits.max_video_seconds
    if not extent.times:
        raise source.fail("the video has no frame that can be decoded")
    if seconds > limit:
        name = limits.option("max_video_seconds")
        raise source.too_large(f"{seconds:.1f} s of video are over the limit of {limit:g} s ({name})")
    source.spend("request_frame_pixels", PACKET_PIXELS * len(extent.times), limits)
    if max(seconds, extent.end) + 1.0 < claimed * 0.9:
        raise source.fail(f"the video is truncated: {extent.end:.1f} of {claimed:.1f} s are present")
    return extent


@define
class _Reader:
    """Decodes a video that has been measured. ``wanted``: the times that are taken, from the first frame's, ``start``, on."""

    source: MediaSource
    limits: Limits
    resize: Resize
    fits: Fits
    wanted: list[float]
    start: float
    size: tuple[int, int] | None = None
    matrix: Any = None

    def read(self, container: av.container.InputContainer, fps: float, sound_rate: int | None) -> Video:
        track = stream_of(container, "video")
        self.fits(len(self.wanted), track.height, track.width)
        # A stream may change the size of its frames, which the decoder then refuses before it has memory for them.
        track.codec_context.options = {"max_pixels": str(self.limits.max_image_pixels)}
        heard = stream_of(container, "audio") if sound_rate else None
        sound = SoundTrack(self.source, self.limits)
        taken: list[Frames] = []
        number = 0
        for packet in packets(container, *(each for each in (track, heard) if each is not None)):
            for frame in decoded(packet):
                if isinstance(frame, av.AudioFrame):
                    sound.add(frame)
                    continue
                self._take(frame, time_of(frame, track, number) - self.start, taken, track)
                number += 1
        if not taken:
            raise self.source.fail("the video has no frame that can be decoded")
        return Video(np.stack(taken), fps, self._placed(sound, sound_rate))

    def _take(self, frame: av.VideoFrame, time: float, taken: list[Frames], track: av.VideoStream) -> None:
        self.source.spend("request_frame_pixels", frame.width * frame.height, self.limits)
        times = 0
        while len(taken) + times < len(self.wanted) and self.wanted[len(taken) + times] <= time + _CLOSE:
            times += 1
        if not times:
            return
        if self.size is None:  # all are shown as the first: a stream may change its size, and say once how it is turned
            self.size = frame.width, frame.height
            self.matrix = frame.side_data.get("DISPLAYMATRIX")
            if self.size != (track.width, track.height):
                self.source.check_sides(*self.size)
                self.fits(len(self.wanted), frame.height, frame.width)
        pixels = frame.to_ndarray(format="rgb24", width=self.size[0], height=self.size[1])
        taken.extend([self.resize(np.ascontiguousarray(_upright(pixels, self.matrix)))] * times)

    def _placed(self, sound: SoundTrack, rate: int | None) -> Samples | None:
        """Return the sound with its first sample at the first frame: silence before a track that begins later."""
        if rate is None or sound.start is None or not sound.seconds:
            return None
        late = sound.start - self.start
        sound.check_length(max(late, 0.0) + sound.seconds)
        samples = sound.resampled(rate)
        early = round(-late * rate)
        return samples[early:] if early > 0 else np.pad(samples, (-early, 0))


def _upright(pixels: Frames, matrix: Any) -> Frames:
    """Return pixels as the display matrix of a frame, if there is one, places them, to the nearest quarter turn; it may mirror them too.

    The matrix, of nine int32, is ``a b u, c d v, x y w``: a pixel at x, y is shown at ``a x + c y``, ``b x + d y``.
    """
    if matrix is None:
        return pixels
    a, b, _, c, d = np.frombuffer(matrix, np.int32).tolist()[:5]
    if max(abs(b), abs(c)) > max(abs(a), abs(d)):
        pixels, a, d = pixels.swapaxes(0, 1), c, b
    return pixels[:: -1 if d < 0 else 1, :: -1 if a < 0 else 1]
