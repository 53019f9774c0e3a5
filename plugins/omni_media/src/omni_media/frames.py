"""Decodes videos with PyAV: frames sampled at a fixed rate, and the sound track where a request asks for it."""

from __future__ import annotations

from collections.abc import Callable
from math import ceil

import av
import numpy as np
import numpy.typing as npt
from attrs import frozen

from omni_media.sound import Samples, averaged, to_mono_16k
from omni_media.source import Fits, Limits, MediaSource

Frames = npt.NDArray[np.uint8]

_OPTIONS = {
    "format_whitelist": "matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,avi,mpeg,mpegts,asf,flv,gif,ogg,ivf,h264,hevc,av1",
    "protocol_whitelist": "",
}
"""Formats of video alone: FFmpeg's playlists and descriptions of streams would open files and sockets that they name."""

PACKET_PIXELS = 50_000
"""Pixels that reading a packet of a file is counted as: small frames take time too."""

Resize = Callable[[Frames], Frames]


@frozen
class Video:
    """Sampled frames ``[T, H, W, 3]`` RGB at ``fps`` frames per second, and the sound (16 kHz mono) if requested and present."""

    frames: Frames
    fps: float
    sound: Samples | None = None


def load_video(
    source: MediaSource,
    limits: Limits,
    *,
    fps: float,
    with_sound: bool,
    resize: Resize = lambda frame: frame,
    fits: Fits = lambda *size: None,
) -> Video:
    """Load the video of a content part: ``path``, ``data`` (the bytes of a file), or ``frames`` (uint8 ``[T, H, W, 3]``
    at ``fps``).

    For each of the times ``0, 1/fps, 2/fps, ...`` the first frame at or after it is taken, and each frame at most once:
    a video with fewer frames per second than ``fps`` is treated as a shorter one, as by the reference's sampler. If
    there would be more than ``max_video_frames``, the rate is lowered evenly.

    Args:
        resize: makes each frame ``[H, W, 3]`` the size in which it is kept, as soon as it is decoded.
        fits: called with ``frames, height, width`` before anything is decoded, and when there are more frames than the file said;
            may raise RequestTooLargeError.

    Raises:
        InvalidRequestError: not a video, damaged, truncated or too long; the message names it.
    """
    given = source.part.get("frames")
    if given is not None:
        frames = np.asarray(given)
        if frames.dtype != np.uint8 or frames.ndim != 4 or frames.shape[3] != 3 or not len(frames):
            raise source.fail(f"`frames` must be uint8 [T, H, W, 3], are {frames.dtype} {list(frames.shape)}")
        source.check_sides(frames.shape[2], frames.shape[1])
        fits(*frames.shape[:3])
        source.spend("request_frame_pixels", frames.size // 3, limits)
        return Video(np.stack([resize(frame) for frame in frames]), fps)
    try:
        with source.open(limits) as stream, av.open(stream, options=_OPTIONS) as container:
            return _decode(source, limits, container, fps, with_sound, resize, fits)
    except av.error.FFmpegError as error:
        raise source.fail(f"not a video, or damaged: {error.strerror}") from error


def _decode(
    source: MediaSource,
    limits: Limits,
    container: av.container.InputContainer,
    fps: float,
    with_sound: bool,
    resize: Resize,
    fits: Fits,
) -> Video:
    if not container.streams.video:
        raise source.fail("the file has no video track")
    track = container.streams.video[0]
    duration = float(container.duration or 0) / av.time_base
    if duration > limits.max_video_seconds:
        raise source.too_large(
            f"{duration:.1f} s of video are over the limit of {limits.max_video_seconds:g} s (max_video_seconds)"
        )
    if track.width * track.height > limits.max_image_pixels:
        raise source.too_large(
            f"{track.width} x {track.height} pixels are over the limit of {limits.max_image_pixels} (max_image_pixels)"
        )
    source.check_sides(track.width, track.height)
    shown = float(track.duration * track.time_base) if track.duration and track.time_base else duration
    if shown * fps > limits.max_video_frames:  # of the video track only: the sound may be longer
        fps = limits.max_video_frames / shown
    expected = min(max(ceil(shown * fps - 1e-6), 1), limits.max_video_frames)
    fits(expected, track.height, track.width)
    # A stream may change the size of its frames, which the decoder then refuses before it has memory for them.
    track.codec_context.options = {"max_pixels": str(limits.max_image_pixels)}
    sounds = container.streams.audio[0] if with_sound and container.streams.audio else None
    frames: list[Frames] = []
    pieces: list[Samples] = []
    begin = end = longest = 0.0
    read = 0.0
    size: tuple[int, int] | None = None
    for packet in container.demux():  # of all tracks: the container's duration is that of its longest track
        if packet.pts is not None and packet.time_base is not None:
            read = max(read, float((packet.pts + (packet.duration or 0)) * packet.time_base))
        source.spend("request_frame_pixels", PACKET_PIXELS, limits)
        if packet.stream not in (track, sounds):
            continue
        for frame in packet.decode():
            if isinstance(frame, av.AudioFrame):
                source.spend("request_samples", frame.samples * len(frame.layout.channels), limits)
                pieces.append(averaged(_mono(frame)))
                continue
            source.spend("request_frame_pixels", frame.width * frame.height, limits)
            time = float(frame.time or 0.0)
            begin, end = end, max(end, time)
            longest = max(longest, end - begin)
            if time + 1e-6 >= len(frames) / fps and len(frames) < limits.max_video_frames:
                size = size or (frame.width, frame.height)
                if len(frames) >= expected or size != (track.width, track.height):
                    source.check_sides(*size)
                    fits(max(len(frames) + 1, expected), size[1], size[0])
                # All in the first one's size: a stream may change it.
                frames.append(resize(frame.to_ndarray(format="rgb24", width=size[0], height=size[1])))
            if end > limits.max_video_seconds:
                raise source.too_large(f"over the limit of {limits.max_video_seconds:g} s of video (max_video_seconds)")
    if not frames:
        raise source.fail("the video has no frame that can be decoded")
    # Some containers do not say how long a frame is shown; assume that the last one may be shown as long as any other.
    read = max(read, end + longest)
    if duration and read + 2.0 / fps < duration * 0.9:
        raise source.fail(f"the video is truncated: {read:.1f} of {duration:.1f} s are present")
    sound = None
    if pieces and sounds is not None:
        sound = to_mono_16k(source, limits, np.concatenate(pieces), sounds.rate)
    return Video(np.stack(frames), fps, sound)


def _mono(frame: av.AudioFrame) -> Samples:
    """Convert a decoded piece of sound to float32 ``[n, channels]``."""
    samples = frame.to_ndarray()
    channels = len(frame.layout.channels)
    if not frame.format.is_planar:
        samples = samples.reshape(-1, channels).T
    if samples.dtype.kind == "i":
        samples = samples.astype(np.float32) / (np.iinfo(samples.dtype).max + 1)
    elif samples.dtype.kind == "u":
        samples = (samples.astype(np.float32) - 128.0) / 128.0
    return samples.T.astype(np.float32)
