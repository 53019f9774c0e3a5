"""The scheduler of a vocoder: collects frames of codes, decodes them in chunks, streams sound."""

from __future__ import annotations

from typing import Any, Generic, Protocol, TypeVar

import numpy as np
import torch
from attrs import define, field

from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import AudioChunk, AudioResult
from omni_core.scheduling.streaming import StreamingScheduler

Stream = TypeVar("Stream")


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
    return_codes: bool = False
    waiting: list[torch.Tensor] = field(factory=list)
    decoded: list[torch.Tensor] = field(factory=list)  # chunk by chunk, as they were decoded
    waves: list[torch.Tensor] = field(factory=list)


class VocoderScheduler(StreamingScheduler[_Sound[Stream]]):
    """Streams :class:`AudioChunk`; their concatenation is the :class:`AudioResult`'s samples exactly.

    Its input is a stream of frames, ``[codebooks]`` int64 each. The payload only marks the end of speech; its request's
    ``params["return_codes"]`` asks for the frames beside the sound.

    Args:
        initial_chunk: frames of the first chunk: small, so that sound starts soon.
        chunk: frames of every later chunk: larger, because a pass has a cost of its own.

    Raises:
        ConfigError: a chunk of no frames.
    """

    def __init__(self, vocoder: Vocoder[Stream], *, initial_chunk: int, chunk: int) -> None:
        super().__init__()
        for name, value in (("initial_chunk", initial_chunk), ("chunk", chunk)):
            if value < 1:
                raise ConfigError(f"{name}: must be at least 1 frame, is {value}")
        self._vocoder, self._initial_chunk, self._chunk = vocoder, initial_chunk, chunk

    def start(self) -> None:
        if self._vocoder.device.type == "cuda":  # kernels start on the current device, and each thread has its own
            torch.cuda.set_device(self._vocoder.device)
        super().start()

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Sound[Stream]:
        return _Sound(self._vocoder.begin())

    def on_payload(self, state: _Sound[Stream], payload: StagePayload) -> None:
        state.return_codes = bool(payload.request.params.get("return_codes"))

    def on_chunk(self, state: _Sound[Stream], chunk: torch.Tensor, metadata: dict[str, Any] | None) -> None:
        codebooks, size = self._vocoder.codebooks, self._vocoder.codebook_size
        if chunk.shape != (codebooks,):
            raise ValueError(f"a frame has {codebooks} codes, this one has shape {list(chunk.shape)}")
        if not bool(((chunk >= 0) & (chunk < size)).all()):
            raise ValueError(f"codes must be from 0 to {size - 1}, this frame has {chunk.tolist()}")
        state.waiting.append(chunk)

    def step(self, states: dict[str, _Sound[Stream]]) -> dict[str, BaseException]:
        """Decode, in batches, every request that has a whole chunk of frames, until none has."""
        failures: dict[str, BaseException] = {}
        while due := {
            name: state
            for name, state in states.items()
            if name not in failures and len(state.waiting) >= self._wanted(state) and not self._is_aborted(name)
        }:
            self._decode(due, failures)
        return failures

    def finish(self, request_id: str, state: _Sound[Stream]) -> AudioResult:
        failures: dict[str, BaseException] = {}
        while state.waiting:
            self._decode({request_id: state}, failures)
            if failures:
                raise failures.pop(request_id)
        samples = torch.cat(state.waves) if state.waves else torch.empty(0)
        empty = torch.empty(0, self._vocoder.codebooks, dtype=torch.int64)
        codes = torch.cat(state.decoded) if state.decoded else empty
        return AudioResult(_samples(samples), self._vocoder.sample_rate, codes if state.return_codes else None)

    def _wanted(self, state: _Sound[Stream]) -> int:
        return self._chunk if state.decoded else self._initial_chunk

    def _decode(self, states: dict[str, _Sound[Stream]], failures: dict[str, BaseException]) -> None:
        """Decode a chunk of each, or its remaining frames; put the errors of those that fail into ``failures``."""
        chunks = {name: torch.stack(state.waiting[: self._wanted(state)]) for name, state in states.items()}
        try:
            waves = self._vocoder.decode([(states[name].stream, chunk) for name, chunk in chunks.items()])
        except BaseException as error:
            if len(states) == 1:
                failures.update(dict.fromkeys(states, error))
            else:
                self._decode_alone(states, chunks, failures)
            return
        for (name, chunk), wave in zip(chunks.items(), waves, strict=True):
            self._decoded(name, states[name], chunk, wave)

    def _decode_alone(
        self, states: dict[str, _Sound[Stream]], chunks: dict[str, torch.Tensor], failures: dict[str, BaseException]
    ) -> None:
        """Decode one by one, after a shared pass has failed.

        That pass may have advanced some streams, so each is restarted and decodes its earlier chunks again first.
        """
        for name, state in states.items():
            try:
                state.stream = self._vocoder.begin()
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
        state.waves.append(wave)
        if len(wave):
            self.emit(request_id, AudioChunk(_samples(wave), self._vocoder.sample_rate))


def _samples(wave: torch.Tensor) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Return a waveform as the client gets it: in NumPy, so that a client need not import torch for the first sound."""
    array: np.ndarray[Any, np.dtype[np.float32]] = wave.float().numpy(force=True)
    return array
