"""The frames of a client's camera or screen, by their time on the clock of the sound: few are kept, and each turn gets its own.

Of each slot of time one frame is kept, the first that comes. Where a turn has too many, slots become twice as long, so that those that stay
are spread evenly over it; what stays does not depend on when the sound came in between.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from attrs import define, field, frozen

from omni_serve.errors import ApiError, invalid
from omni_serve.realtime.config import Offer, SessionConfig
from omni_serve.settings import RealtimeLimits

APPEND = "input_image_buffer.append"

BEFORE_MS = 5000
"""The age of a frame that is still what is seen when a turn begins."""

Dropped = Literal["rate", "limit", "late", "room"]

_REASONS: dict[Dropped, str] = {
    "rate": "Frames come faster than {per_second:g} a second (frames_per_second): of each {slot:g} ms the first is kept.",
    "limit": "A turn may have {most} frames (frames), of {mib:g} MiB: those of longer turns are thinned to an even rhythm.",
    "late": "A frame is from before the turn that is being spoken, which has a newer one: it came too late.",
    "room": "The model has no room for the frames of the conversation: all are forgotten, the sound stays. Send fewer or smaller ones.",
}


@frozen
class Frame:
    """An encoded picture. ``at``: its time in ms on the session's clock, or since its turn began. ``came``: when it arrived."""

    at: int
    data: bytes = field(repr=False)
    came: float = 0.0


@define(eq=False)
class FrameBuffer:
    """The frames that belong to no turn yet.

    Args:
        most: of one turn.
        most_bytes: of one turn, all together.
        per_second: that are kept.
        most_ahead_ms: of the sound that has come.

    Attributes:
        start, end: of the sound in the buffer, in ms on the session's clock.
    """

    most: int
    most_bytes: int
    per_second: float
    most_ahead_ms: int
    start: int = field(default=0, init=False)
    end: int = field(default=0, init=False)
    _slot_ms: float = field(init=False)
    _kept: dict[int, Frame] = field(factory=dict, init=False)
    _told: set[Dropped] = field(factory=set, init=False)

    def __attrs_post_init__(self) -> None:
        self._slot_ms = 1000 / self.per_second

    @classmethod
    def of(cls, limits: RealtimeLimits) -> FrameBuffer:
        """Return that of a session."""
        most_bytes, ahead = int(limits.history_mib * 2**20) // 2, int(limits.turn_seconds * 1000)
        return cls(limits.frames, most_bytes, limits.frames_per_second, ahead)

    @property
    def size(self) -> int:
        """Bytes of all frames."""
        return sum(len(frame.data) for frame in self._kept.values())

    @property
    def crowded(self) -> Dropped:
        """Return why a frame is dropped whose slot has one."""
        return "limit" if self._slot_ms > 1000 / self.per_second else "rate"

    def is_full(self, at: int, now: float) -> bool:
        """Return if a frame of this time would be dropped, whatever it shows.

        While no sound comes the clock stands still: then a newer frame takes the place of the last one, but no faster than others.
        """
        kept = self._kept.get(int(at // self._slot_ms))
        return kept is not None and not (at == self.end and now - kept.came >= 1 / self.per_second)

    def add(self, at: int, data: bytes, now: float) -> Dropped | None:
        """Add a frame; return why a frame was dropped, this one or others."""
        if self.is_full(at, now):
            return self.crowded
        slot = int(at // self._slot_ms)
        self._kept[slot] = Frame(at, data, now)
        self.move(self.start, self.end)
        if slot not in self._kept:
            return "late"
        is_over = False
        while len(self._kept) > self.most or self.size > self.most_bytes:
            is_over = True
            self._slot_ms *= 2
            self._keep(self._sorted())
        return "limit" if is_over else None

    def move(self, start: int, end: int) -> None:
        """Take note of the sound in the buffer. Of the frames before it the newest stays, as what is seen when it begins."""
        self.start, self.end = start, end
        frames = self._sorted()
        before = [frame for frame in frames if frame.at <= start]
        if len(before) > 1 or (before and before[0].at < start - BEFORE_MS):
            newest = [frame for frame in before[-1:] if frame.at >= start - BEFORE_MS]
            self._keep(newest + frames[len(before) :])

    def take(self, start: int, until: int | None = None) -> list[Frame]:
        """Remove and return the frames of a turn, the first of them from its beginning on.

        Args:
            start: of the turn.
            until: its end; later frames stay, and the newest of it is what is seen before the next turn. ``None``: all are taken.
        """
        self.move(start, self.end)
        frames = self._sorted()
        taken = [frame for frame in frames if until is None or frame.at < until]
        self._slot_ms = 1000 / self.per_second
        self._keep([] if until is None else taken[-1:] + frames[len(taken) :])
        return [Frame(frame.at - start if number else 0, frame.data) for number, frame in enumerate(taken)]

    def clear(self) -> None:
        """Forget all frames."""
        self._kept.clear()
        self._slot_ms = 1000 / self.per_second

    def tell(self, reason: Dropped | None) -> list[dict[str, Any]]:
        """Return the event that says why frames are dropped; each reason is told once in a session."""
        if reason is None or reason in self._told:
            return []
        self._told.add(reason)
        mib, slot = self.most_bytes / 2**20, 1000 / self.per_second
        message = _REASONS[reason].format(per_second=self.per_second, slot=slot, most=self.most, mib=mib)
        return [{"type": "input_image_buffer.dropped", "reason": reason, "message": message}]

    def _sorted(self) -> list[Frame]:
        return sorted(self._kept.values(), key=lambda frame: frame.at)

    def _keep(self, frames: list[Frame]) -> None:
        self._kept = {}
        for frame in frames:
            self._kept.setdefault(int(frame.at // self._slot_ms), frame)


def time_of(event: Mapping[str, Any], frames: FrameBuffer) -> int:
    """Return the time of the frame in an event: ``time_ms``, or where the sound is.

    Raises:
        ApiError: 400, it is no time, or too far ahead.
    """
    at = event.get("time_ms")
    if at is None:
        return frames.end
    if isinstance(at, bool) or not isinstance(at, int | float) or not 0 <= at <= frames.end + frames.most_ahead_ms:
        most = frames.most_ahead_ms / 1000
        raise invalid(
            f"time_ms: must be the time of the frame in ms, from 0 to {most:g} s after the sound, which is at {frames.end}",
            "time_ms",
            "invalid_value",
        )
    return int(at)


def is_dropped(event: Mapping[str, Any], frames: FrameBuffer, config: SessionConfig, offer: Offer, now: float) -> bool:
    """Return if an event has a frame that will be dropped: it need not be decoded.

    Raises:
        ApiError: 400: the session has no use for frames, or the time is none.
    """
    if event.get("type") != APPEND:
        return False
    if config.transcribes_only:
        raise invalid("type: this session only transcribes; it sees nothing", "type", "unsupported_event")
    if offer.sight is None:
        raise invalid(
            "image: this pipeline takes no images or video with sound",
            "image",
            "unsupported_value",
        )
    return frames.is_full(time_of(event, frames), now)


def receive_frame(
    event: Mapping[str, Any],
    frames: FrameBuffer,
    config: SessionConfig,
    offer: Offer,
    now: float,
    check_memory: Callable[[int], None],
) -> list[dict[str, Any]]:
    """Take an event of the buffer of frames; return the events that answer it.

    Args:
        event: a frame in it has been read and checked; one that is dropped is empty.

    Raises:
        ApiError: as :func:`is_dropped`; 413 or 429: there is no room.
    """
    if event["type"] != APPEND:
        frames.clear()
        return [{"type": "input_image_buffer.cleared"}]
    data: bytes = event["image"]
    if is_dropped(event, frames, config, offer, now) or not data:
        return frames.tell(frames.crowded)
    if len(data) > frames.most_bytes:
        most = f"{frames.most_bytes / 2**20:g} MiB (a half of history_mib)"
        raise ApiError(413, f"image: is over the limit of {most}", param="image", code="item_too_large")
    check_memory(len(data))
    return frames.tell(frames.add(time_of(event, frames), data, now))


def seen(frames: list[Frame], sound: bytes, offer: Offer) -> list[dict[str, Any]]:
    """Return the parts of a message for a turn with frames.

    Args:
        sound: of the turn, as a file.
    """
    heard = {"type": "audio", "data": sound}
    if offer.sight == "image":
        return [{"type": "image", "data": frames[-1].data}, heard]
    video = {
        "type": "video",
        "frames": [{"data": frame.data} for frame in frames],
        "times": [frame.at / 1000 for frame in frames],
    }
    return [{**video, "sound": {"data": sound}}] if offer.sight == "video with sound" else [video, heard]
