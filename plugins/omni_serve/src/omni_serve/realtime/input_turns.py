"""The sound of the user: decoded, kept as long as it may belong to a turn, and cut into turns by voice activity or by hand."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from attrs import define, field, frozen

from omni_serve.encoders import Samples
from omni_serve.errors import ApiError, invalid
from omni_serve.realtime.audio import INPUT_RATE, LEAST_MS, InputAudio
from omni_serve.realtime.buffer import InputBuffer
from omni_serve.realtime.config import AudioInput
from omni_serve.realtime.frames import Frame, FrameBuffer
from omni_serve.realtime.sentence_end import SentenceEnd
from omni_serve.realtime.vad import Detector, TurnDetector

_BEFORE_MS = 500
"""Sound before a turn that is kept beyond its prefix: a detector finds out late that a voice has begun."""


@frozen
class TurnBegun:
    """The user begins to speak. ``start_ms``: where the turn's sound begins, since the beginning of the session."""

    start_ms: int


@frozen
class TurnSound:
    """The next sound of the turn in progress, at :data:`INPUT_RATE`."""

    samples: Samples


@frozen
class TurnEnded:
    """The user has spoken.

    Attributes:
        samples: the turn, at :data:`INPUT_RATE`.
        frames: what was seen meanwhile.
        rest: the end of the samples, that no :class:`TurnSound` had.
    """

    end_ms: int
    samples: Samples
    frames: list[Frame]
    rest: Samples


Heard = TurnBegun | TurnSound | TurnEnded


@define(eq=False)
class InputTurns:
    """The sound of one session.

    Args:
        config: of the input.
        most_seconds: of one turn.
        detector: makes the voice detector of a session.
        frames: what is seen meanwhile.
        is_live: the sound of a turn that is to be written down is handed out while it comes.
    """

    config: AudioInput
    most_seconds: float
    detector: Callable[[], Detector]
    frames: FrameBuffer
    is_live: bool = False
    _sound: InputAudio = field(init=False)
    _buffer: InputBuffer = field(factory=InputBuffer, init=False)
    _turns: TurnDetector | None = field(default=None, init=False)
    _given: int = field(default=0, init=False)

    def __attrs_post_init__(self) -> None:
        self._sound = InputAudio(self.config.format.wire)
        self._detect()

    @property
    def seconds(self) -> float:
        """Seconds of sound in the buffer."""
        return len(self._buffer) / INPUT_RATE

    @property
    def size(self) -> int:
        """Bytes of sound in the buffer, and of frames."""
        return len(self._buffer) * 4 + self.frames.size

    @property
    def speaking(self) -> bool:
        """Return if the user speaks."""
        return self._turns is not None and self._turns.speaking

    def configure(self, config: AudioInput) -> bool:
        """Take another configuration; return if turns are found in another way now, which ends the one in progress.

        Where they are to be written down in another way, the turn in progress is handed out once more from its beginning.
        """
        before, self.config = self.config, config
        if config.format != before.format:
            self._buffer.add(self._sound.flush())
            self._sound = InputAudio(config.format.wire)
        if (config.turn_detection, config.transcription) != (before.turn_detection, before.transcription):
            self._given = self._buffer.start
        if config.turn_detection == before.turn_detection:
            return False
        self._detect()
        return True

    def append(self, data: bytes) -> Iterator[Heard]:
        """Take sound in the format of the wire; yield what happens in it. All of it must be taken.

        Raises:
            ApiError: 413, turns are committed by hand and this one is too long.
        """
        try:
            yield from self._append(data)
        finally:
            self.frames.move(_ms(self._buffer.start), _ms(self._buffer.end))

    def _append(self, data: bytes) -> Iterator[Heard]:
        vad, most = self.config.turn_detection, int(self.most_seconds * INPUT_RATE)
        if vad is None or self._turns is None:
            samples = self._sound.write(data)
            room = max(0, most - len(self._buffer))
            self._buffer.add(samples[:room])
            yield from self._new()
            if len(samples) > room:
                raise ApiError(
                    413,
                    f"audio: a turn may have {self.most_seconds:g} s; the rest is dropped; commit it or clear the buffer",
                    param="audio",
                    code="input_audio_buffer_full",
                )
            return
        samples = self._sound.write(data)
        # In pieces, so that several turns may come in one event and the buffer stays small.
        for start in range(0, len(samples), INPUT_RATE):
            piece = samples[start : start + INPUT_RATE]
            self._buffer.add(piece)
            for border in self._turns.feed(piece):
                if border.kind == "started":
                    self._buffer.drop(border.at - _samples(vad.prefix_padding_ms))
                    yield TurnBegun(_ms(self._buffer.start))
                else:
                    yield self._ended(border.at)
            if not self._turns.speaking:
                self._buffer.drop(self._turns.at - _samples(vad.prefix_padding_ms + _BEFORE_MS))
            elif len(self._buffer) >= most:
                self._turns.stop()
                yield self._ended(self._buffer.end)
            else:
                yield from self._new()

    def said(self, text: str) -> None:
        """Take the text of the turn in progress, as far as it is written."""
        if self._turns is not None and self._turns.rule is not None:
            self._turns.rule.said(text)

    def commit(self) -> TurnEnded:
        """Return what is in the buffer, as a turn with all frames.

        Raises:
            ApiError: 400, it is too short to be one.
        """
        self._buffer.add(self._sound.flush())
        if self.seconds * 1000 < LEAST_MS:
            raise invalid(
                f"Error committing input audio buffer: buffer too small. Expected at least {LEAST_MS}ms of audio, but buffer "
                f"only has {self.seconds * 1000:.0f}ms of audio.",
                None,
                "input_audio_buffer_commit_empty",
            )
        if self._turns is not None:
            self._turns.stop()
        turn = self._ended(self._buffer.end, with_later_frames=True)
        self.frames.move(turn.end_ms, turn.end_ms)
        return turn

    def clear(self) -> None:
        """Forget what has not become a turn."""
        self._sound.flush()
        self._buffer.take()
        self.frames.clear()
        self.frames.move(_ms(self._buffer.start), _ms(self._buffer.end))
        if self._turns is not None:
            self._turns.stop()

    def _new(self) -> Iterator[TurnSound]:
        """Yield the sound of the turn in progress that was not handed out."""
        start, end = max(self._given, self._buffer.start), self._buffer.end
        if self.is_live and self.config.transcription is not None and end > start:
            self._given = end
            yield TurnSound(self._buffer.between(start, end))

    def _ended(self, at: int, *, with_later_frames: bool = False) -> TurnEnded:
        """Take the turn out of the buffer, with the frames up to its end, or with all."""
        begin, end = _ms(self._buffer.start), _ms(at)
        rest = self._buffer.between(max(self._given, self._buffer.start), at)
        frames = self.frames.take(begin) if with_later_frames else self.frames.take(begin, end)
        return TurnEnded(end, self._buffer.take(at), frames, rest)

    def _detect(self) -> None:
        vad, self._turns = self.config.turn_detection, None
        if vad is not None:
            at = self._buffer.end
            usual, eagerness = vad.silence_duration_ms, vad.eagerness
            rule = None if eagerness is None else SentenceEnd(usual, eagerness)
            self._turns = TurnDetector(self.detector(), vad.threshold, usual, at=at, rule=rule)


def _samples(milliseconds: int) -> int:
    return milliseconds * INPUT_RATE // 1000


def _ms(samples: int) -> int:
    return max(0, samples) * 1000 // INPUT_RATE
