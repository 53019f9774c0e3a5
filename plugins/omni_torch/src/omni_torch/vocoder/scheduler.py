"""The scheduler of a vocoder: collects frames of codes, decodes them in chunks, streams sound."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, Protocol, TypeVar

import torch
from attrs import define, field

from omni_core.api import AudioChunk, AudioResult, ConfigError, OmniRequest, StagePayload, StreamingScheduler
from omni_torch.vocoder.deadlines import policy_of
from omni_torch.vocoder.passes import NextChunk, Passes, next_chunk
from omni_torch.vocoder.playout import Playout

Stream = TypeVar("Stream")

CUT = "the speech was cut at max_new_tokens"
"""The notice of speech that a limit has ended."""


class Vocoder(Protocol[Stream]):
    """A network from frames of codes to sound. The state that a request's next chunk needs is in a ``Stream``.

    Attributes:
        device: the ``torch.device`` on which it computes.
        sample_rate: of the sound, in Hz.
        codebooks: codes per frame.
        codebook_size: codes are from 0 to this, exclusive.
    """

    device: torch.device
    sample_rate: int
    codebooks: int
    codebook_size: int

    def begin(self) -> Stream:
        """Make a request's stream, before its first frame."""

    def decode(self, work: list[tuple[Stream, torch.Tensor]]) -> list[torch.Tensor]:
        """Decode the next frames of several streams.

        Args:
            work: each stream with its new frames, ``[frames, codebooks]`` int64, at least one.

        Returns:
            Each stream's new samples, float32 ``[n]`` on the CPU; none if more frames are needed first.
        """


@define(eq=False)
class _Sound(Generic[Stream]):
    """One request's frames, waiting and decoded."""

    stream: Stream
    context: torch.Tensor | None = None
    has_heard: bool = False  # the stream knows the context
    return_codes: bool = False
    is_cut: bool = False
    waiting: list[torch.Tensor] = field(factory=list)
    decoded: list[torch.Tensor] = field(factory=list)  # chunk by chunk, as they were decoded
    frames: int = 0  # of these
    waves: list[torch.Tensor] = field(factory=list)
    said: str = ""
    until: float | None = None  # when a listener who began to play at the first sound runs out of it


def _is_number(value: object, *kinds: type) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


class VocoderScheduler(StreamingScheduler[_Sound[Stream]]):
    """Streams :class:`AudioChunk`; their concatenation is the :class:`AudioResult`'s samples exactly.

    Its input is a stream of frames, ``[codebooks]`` int64 each. The first chunk may be ``[frames, codebooks]``: a context, such as the
    recording of a voice, which the network hears before them and whose sound is not sent. The payload marks the end of speech, which was
    cut if its ``finish_reason`` is ``length``; its request's ``params["return_codes"]`` asks for the frames beside the sound. If it has
    ``said``, the text of the speech, that is streamed behind the sound, ``{"said": text}``, for a stage that aligns them.

    A turn is one pass, in which requests take turns if they do not all fit. With a ``policy``, the first sound of a request is kept until
    what comes after it will be in time (:mod:`omni_torch.vocoder.playout`), and passes are the same while all who listen stay in time
    by that.
    Otherwise those whose listeners run out of sound first come first, and no more of them share a pass than can wait for all of its
    sound; a request of which nothing is decoded begins when, as far as passes can be predicted, those that are being heard stay in time.

    Args:
        initial_chunk: frames of the first chunk: small, so that sound starts soon.
        chunk: frames of a later chunk at most: larger, because a pass has a cost of its own.
        growth: frames of a later chunk over those of all before it, between ``initial_chunk`` and ``chunk``. A listener hears no pause if
            frames come 1 + ``growth`` times as fast as they are heard. ``None``: every later chunk has ``chunk`` frames, for fewer passes.
        max_running: requests decoded in one pass, which bounds its memory. By default all that have a whole chunk.
        policy: ``package.module:attribute`` of a callable that returns a :class:`omni_torch.vocoder.deadlines.DeadlinePolicy`, or ``None``
            for requests in the order in which they came, the default.

    Attributes:
        clock: returns the time in seconds.

    Raises:
        ConfigError: a chunk of no frames, no growth, or passes for no request.
    """

    def __init__(
        self,
        vocoder: Vocoder[Stream],
        *,
        initial_chunk: int,
        chunk: int,
        growth: float | None = 1.0,
        max_running: int | None = None,
        policy: str | None = None,
    ) -> None:
        super().__init__()
        self.clock: Callable[[], float] = time.monotonic
        for name, value in (("initial_chunk", initial_chunk), ("chunk", chunk)):
            if not _is_number(value, int) or value < 1:
                raise ConfigError(f"{name}: must be at least 1 frame, is {value!r}")
        if growth is not None and not (_is_number(growth, int, float) and 0 < growth < math.inf):
            raise ConfigError(f"growth: must be a number greater than 0, or null, is {growth!r}")
        if max_running is not None and (not _is_number(max_running, int) or max_running < 1):
            raise ConfigError(f"max_running: must be at least 1, is {max_running!r}")
        self._vocoder, self._initial_chunk, self._chunk = vocoder, initial_chunk, chunk
        self._growth, self._max_running = growth, max_running
        self._policy = policy_of(policy)
        self._order = Passes(max_running)
        self._playout: Playout[AudioChunk] | None = None if self._policy is None else Playout(self._policy)
        self._starts = math.inf  # when the first sound of another request goes out
        self._heard: dict[str, _Sound[Stream]] = {}
        self._held: set[str] = set()
        self._held_until = 0.0
        self._passes = self._decoded_streams = self._decoded_frames = self._samples = 0
        self._late = 0.0

    def start(self) -> None:
        if self._vocoder.device.type == "cuda":  # kernels start on the current device, and each thread has its own
            torch.cuda.set_device(self._vocoder.device)
        super().start()

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Sound[Stream]:
        if self._policy is not None:
            self._policy.begin(request_id, request or OmniRequest(), self.clock())
        return _Sound(self._vocoder.begin())

    def on_payload(self, state: _Sound[Stream], payload: StagePayload) -> None:
        state.return_codes = bool(payload.request.params.get("return_codes"))
        data = payload.data if isinstance(payload.data, Mapping) else {}
        state.is_cut, state.said = data.get("finish_reason") == "length", data.get("said", "")

    def on_chunk(self, state: _Sound[Stream], chunk: torch.Tensor, metadata: dict[str, Any] | None) -> None:
        codebooks, size = self._vocoder.codebooks, self._vocoder.codebook_size
        is_context = chunk.dim() == 2 and state.context is None and not state.waiting and not state.frames
        if chunk.shape[-1:] != (codebooks,) or not (chunk.dim() == 1 or is_context):
            raise ValueError(f"a frame has {codebooks} codes, this one has shape {list(chunk.shape)}")
        if not bool(((chunk >= 0) & (chunk < size)).all()):
            raise ValueError(f"codes must be from 0 to {size - 1}, this frame has {chunk.tolist()}")
        if is_context:
            state.context = chunk
        else:
            state.waiting.append(chunk)

    def statistics(self) -> dict[str, float]:
        """Return counters: passes of the network, the streams and the frames that they decoded; the seconds of sound, and those in
        which a listener who plays at once has had none (``late_seconds``).
        """
        counted: dict[str, float] = {
            "steps": self._passes,
            "computed": self._decoded_streams,
            "frames": self._decoded_frames,
        }
        counted |= {"sound_seconds": self._samples / self._vocoder.sample_rate, "late_seconds": self._late}
        return {**super().statistics(), **{name: float(value) for name, value in counted.items()}}

    def step(self, states: dict[str, _Sound[Stream]]) -> dict[str, BaseException]:
        """Decode a chunk of some of the requests that have one, in one pass; the others are left for the next turns."""
        failures: dict[str, BaseException] = {}
        self.unfinished = {name: None for name, state in states.items() if self._frames_due(name, state)}
        if not self.unfinished and self._starts == math.inf:
            self._held = set()
            return failures
        due = {name: states[name] for name in self.unfinished if not self.is_aborted(name)}
        now = self.clock()
        if now >= self._starts:
            self._start(now)
        if due and due.keys() == self._held and now < self._held_until:
            self.wait = min(self._held_until, self._starts) - now
            return failures
        chosen, self._held_until = self._chosen(due, now)
        if chosen:
            self._decode({name: due[name] for name in chosen}, failures)
            waited = [*(name for name in due if name not in chosen), *chosen]  # those of this pass take their turn last
            self.unfinished = {name: None for name in waited if name in failures or self._frames_due(name, due[name])}
            now = self.clock()
            self._start(now)
        self._held = set() if chosen else set(due)
        if due and self.unfinished:
            self.wait = 0.0 if chosen else max(0.0, min(self._held_until, self._starts) - now)
        elif self._starts < math.inf:
            self.wait = max(0.0, self._starts - now)
        return failures

    def _join(self, frames: list[torch.Tensor]) -> torch.Tensor:
        """Return the frames of a chunk, ``[frames, codebooks]``; a simulation needs their number only."""
        return torch.stack(frames)

    def _for_client(self, wave: torch.Tensor) -> Any:
        """Return a waveform as the client gets it: in NumPy, so that a client need not import torch for the first sound."""
        return wave.float().numpy(force=True)

    def _whole(self, state: _Sound[Stream]) -> AudioResult:
        """Return all of a request."""
        samples = torch.cat(state.waves) if state.waves else torch.empty(0)
        empty = torch.empty(0, self._vocoder.codebooks, dtype=torch.int64)
        codes = torch.cat(state.decoded) if state.decoded else empty
        return AudioResult(
            self._for_client(samples),
            self._vocoder.sample_rate,
            codes if state.return_codes else None,
            notices=[CUT] if state.is_cut else [],
            usage={"completion_audio_tokens": len(codes)},
        )

    def finish(self, request_id: str, state: _Sound[Stream]) -> AudioResult:
        if self._playout is not None:
            now = self.clock()
            for piece in self._playout.flush(request_id, now):
                self._send(request_id, state, piece, now)
            self._playout.end(request_id)
        if state.said:
            self.emit(request_id, {"said": state.said})
        return self._whole(state)

    def forget(self, request_id: str) -> None:
        super().forget(request_id)
        self._heard.pop(request_id, None)
        if self._policy is not None and self._playout is not None:
            self._playout.forget(request_id)
            self._policy.end(request_id)

    def _frames_due(self, request_id: str, state: _Sound[Stream]) -> int:
        """Return the frames of a request's next chunk if they have come, or if no more will come: those that are left."""
        wanted = self._wanted(state)
        if len(state.waiting) >= wanted:
            return wanted
        return len(state.waiting) if state.waiting and self.is_whole(request_id) else 0

    def _wanted(self, state: _Sound[Stream]) -> int:
        """Return the frames of a request's next chunk."""
        return next_chunk(state.frames, self._initial_chunk, self._chunk, self._growth)

    def _chosen(self, due: dict[str, _Sound[Stream]], now: float) -> tuple[list[str], float]:
        """Return the requests of the next pass, and when to look again if there are none because all are held back for others."""
        policy, playout = self._policy, self._playout
        if policy is None or playout is None:
            return list(due)[: self._max_running], now
        chunks: dict[str, NextChunk] = {}
        for name, state in {**due, **self._heard}.items():
            is_heard = name in self._heard
            may_wait = not is_heard and not playout.is_kept(name) and policy.may_wait(name, now)
            frames = self._frames_due(name, state) or (0 if self.is_whole(name) else self._wanted(state))
            chunks[name] = NextChunk(policy.due(name, now), frames, name in due, is_heard, may_wait)
        return self._order.choose(chunks, now)

    def _decode(self, states: dict[str, _Sound[Stream]], failures: dict[str, BaseException]) -> None:
        """Decode a chunk of each, or its remaining frames; put the errors of those that fail into ``failures``."""
        chunks = {name: self._join(state.waiting[: self._wanted(state)]) for name, state in states.items()}
        begin = self.clock()
        self._passes += 1
        self._decoded_streams += len(chunks)
        self._decoded_frames += sum(map(len, chunks.values()))
        try:
            for state in states.values():
                self._hear_context(state)
            waves = self._vocoder.decode([(states[name].stream, chunk) for name, chunk in chunks.items()])
        except BaseException as error:
            if len(states) == 1:
                failures.update(dict.fromkeys(states, error))
            else:
                self._decode_alone(states, chunks, failures)
            return
        if self._policy is not None:
            self._order.computed(len(chunks), sum(map(len, chunks.values())), self.clock() - begin)
        for (name, chunk), wave in zip(chunks.items(), waves, strict=True):
            self._decoded(name, states[name], chunk, wave)

    def _hear_context(self, state: _Sound[Stream]) -> None:
        if state.context is not None and not state.has_heard:
            self._vocoder.decode([(state.stream, state.context)])
            state.has_heard = True

    def _decode_alone(
        self, states: dict[str, _Sound[Stream]], chunks: dict[str, torch.Tensor], failures: dict[str, BaseException]
    ) -> None:
        """Decode one by one, after a shared pass has failed.

        That pass may have advanced some streams, so each is restarted and decodes its earlier chunks again first.
        """
        for name, state in states.items():
            try:
                state.stream, state.has_heard = self._vocoder.begin(), False
                self._hear_context(state)
                for chunk in state.decoded:
                    self._vocoder.decode([(state.stream, chunk)])
                [wave] = self._vocoder.decode([(state.stream, chunks[name])])
            except BaseException as error:
                failures[name] = error
            else:
                self._decoded(name, state, chunks[name], wave)

    def _decoded(self, request_id: str, state: _Sound[Stream], frames: torch.Tensor, wave: torch.Tensor) -> None:
        del state.waiting[: len(frames)]
        state.decoded.append(frames)
        state.frames += len(frames)
        state.waves.append(wave)
        self._samples += len(wave)
        if len(wave):
            now, piece = self.clock(), AudioChunk(self._for_client(wave), self._vocoder.sample_rate)
            pieces = [piece]
            if self._playout is not None:
                seconds = len(wave) / self._vocoder.sample_rate
                pieces = self._playout.add(request_id, piece, seconds, self.running, now)
            for each in pieces:
                self._send(request_id, state, each, now)

    def _start(self, now: float) -> None:
        """Send the first sound of the requests whose time has come."""
        if self._playout is None:
            return
        ready, self._starts = self._playout.due(self.running, now)
        for name, piece in ready:
            self._send(name, self.state_of(name), piece, now)

    def _send(self, request_id: str, state: _Sound[Stream], piece: AudioChunk, now: float) -> None:
        if state.until is not None:
            self._late += max(0.0, now - state.until)
        state.until = max(now, state.until or now) + len(piece.samples) / piece.sample_rate
        if self._policy is not None:
            self._heard[request_id] = state
        self.emit(request_id, piece)
