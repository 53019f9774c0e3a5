"""Opens files of sound and video with PyAV, and measures them by their packets: what headers say of lengths is not believed."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from math import inf
from statistics import median
from typing import IO, Any

import av
import av.error
from attrs import frozen

FORMATS = (
    "wav,w64,aiff,au,caf,mp3,flac,ogg,aac,ac3,eac3,amr,ape,tta,wv,mpc,mpc8,dsf,nistsphere,voc,ircam,iff,sox,matroska,webm,mov,mp4,m4a,3gp,3g2,mj2,avi,mpeg,mpegts,"
    "asf,flv,mxf,gif,ivf,h264,hevc,av1"
)
"""FFmpeg's formats of sound and video that are read. Others are playlists and descriptions, which open files and sockets."""

OPTIONS = {
    "format_whitelist": FORMATS,
    "protocol_whitelist": "",
    "probesize": "1000000",
    "analyzeduration": "5000000",
}

MOST_PACKETS = 800_000
"""Packets of one file. Sound has fifty a second, or fewer."""


class TooManyPacketsError(Exception):
    """A file has more than :data:`MOST_PACKETS` packets."""


def opened(stream: IO[bytes]) -> av.container.InputContainer:
    """Open a file.

    Raises:
        av.error.FFmpegError: it is of no format of :data:`FORMATS`, or damaged.
    """
    stream.seek(0)
    return av.open(stream, "r", metadata_errors="replace", options=OPTIONS)


def stream_of(container: av.container.InputContainer, kind: str) -> Any:
    """Return the best stream of a kind, ``audio`` or ``video``, that can be decoded; ``None``: there is none."""
    best = container.streams.best(kind)
    return None if best is None or best.codec_context is None else best


def packets(container: av.container.InputContainer, *streams: av.stream.Stream) -> Iterator[av.Packet]:
    """Yield the packets of streams; the last of each is empty and makes its decoder give what it holds. Where a file is cut, it ends.

    Raises:
        TooManyPacketsError: there are more than :data:`MOST_PACKETS`.
    """
    found = container.demux(*streams)
    for _ in range(MOST_PACKETS):
        try:
            yield next(found)
        except StopIteration:
            return
        except (av.error.InvalidDataError, av.error.EOFError):
            return
        except IndexError:  # PyAV knows no track that begins in the middle of a broadcast
            found = container.demux(*streams)
    raise TooManyPacketsError


def decoded(packet: av.Packet) -> list[av.AudioFrame | av.VideoFrame]:
    """Return what a packet holds; nothing of one that is damaged, as players do."""
    try:
        return list(packet.decode())
    except (av.error.InvalidDataError, av.error.EOFError):
        return []


@frozen
class Measured:
    """The extent of a stream by its packets.

    Attributes:
        seconds: from the first frame to the end of the last.
        start: of the first frame, on the file's own clock.
        end: of the last packet of all the tracks that were read, on that clock.
        times: of each frame, in seconds from the first one.
    """

    seconds: float
    start: float = 0.0
    end: float = 0.0
    times: tuple[float, ...] = ()


def measured(container: av.container.InputContainer, stream: av.stream.Stream, *others: av.stream.Stream) -> Measured:
    """Read all packets of a stream, and decode none.

    Args:
        others: read too; only ``end`` counts them.

    Raises:
        TooManyPacketsError: there are more than :data:`MOST_PACKETS`.
    """
    pictures = isinstance(stream, av.video.stream.VideoStream)
    times: list[float] = []
    lengths: list[float] = []
    last, end = (0.0, 0.0), 0.0
    begun, earliest = not pictures, -inf
    for packet in packets(container, stream, *others):
        begun = begun or (packet.is_keyframe and packet.stream == stream)
        if not packet.size or packet.is_discard:  # an edit list leaves frames out, also whole ones that others need
            continue
        time, length = time_of(packet, stream, len(lengths)), length_of(packet)
        end = max(end, time + length)
        if packet.stream != stream or not begun:
            continue
        lengths.append(length)
        if pictures and not times and packet.is_keyframe:
            earliest = time  # a picture before the first whole one needs others, which are not there
        if time >= earliest:
            times.append(time)
            last = max(last, (time, length))
    if not times:
        return Measured(0.0)
    times.sort()
    first = times[0]
    if not pictures and all(lengths):  # time stamps may be anything
        return Measured(max(sum(lengths), 0.0), first, end)
    shown = last[1] or (median(after - before for before, after in pairwise(times)) if len(times) > 1 else 0.0)
    seconds = max(round(times[-1] - first + shown, 6), 0.0)  # 702.0 - 700.0 of floats is more than 2
    return Measured(seconds, first, max(end, times[-1] + shown), tuple(time - first for time in times))


def length_of(packet: av.Packet) -> float:
    """Return how long a packet is heard or seen, in seconds. It may be negative.

    FFmpeg has the last packet of Ogg, which takes off what is padding, in unsigned 32 bits.
    """
    ticks = packet.duration or 0
    if packet.stream.type == "audio" and 2**31 <= ticks < 2**32:
        ticks -= 2**32
    return float(ticks * (packet.time_base or 0))


def time_of(piece: av.Packet | av.VideoFrame, stream: av.stream.Stream, number: int) -> float:
    """Return when a picture is shown, in seconds on the file's clock.

    Args:
        number: of the picture, for files whose pictures have no time.
    """
    at = piece.pts if piece.pts is not None else piece.dts
    if at is not None and piece.time_base is not None:
        return float(at * piece.time_base)
    rate = getattr(stream, "average_rate", None)
    return number / float(rate) if rate else 0.0
