"""The vocoder stage: frames of codes to sound, streamed, several requests in one pass."""

from __future__ import annotations

from typing import Any

import torch
from attrs import define, field

from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import AudioChunk, AudioResult
from omni_core.scheduling.streaming import StreamingScheduler
from omni_fish_s2.codec import SAMPLE_RATE
from omni_fish_s2.codec.memory import Memory, StreamState
from omni_fish_s2.codec.networks import CodecDecoder
from omni_fish_s2.codec.weights import FILE, CodecFile, load_codec

FRAMES_PER_PASS = {"cpu": 64}
"""How many frames of all streams one pass takes: on a CPU, more no longer fit its caches. Elsewhere as many as there are."""


class Vocoder:
    """Decodes chunks of frames; each stream remembers what its layers need, so no frame is decoded twice."""

    def __init__(self, model_path: str, *, device: str = "cpu", dtype: str = "float32") -> None:
        file = CodecFile(f"{model_path}/{FILE}")
        self._network = load_codec(CodecDecoder, file, dtype=getattr(torch, dtype), device=device)
        self._device = device
        self.codebooks, self.codebook = file.config.codebooks, file.config.semantic_codebook
        self.samples_per_frame = file.config.samples_per_frame

    @torch.inference_mode()
    def decode(self, work: list[tuple[StreamState, torch.Tensor]]) -> list[torch.Tensor]:
        """Decode the next frames of several streams.

        Args:
            work: each stream with its new frames, ``[frames, codebooks]`` int64, at least one.

        Returns:
            Each stream's new samples, float32 ``[frames * samples_per_frame]``.
        """
        waves: list[torch.Tensor] = [torch.empty(0)] * len(work)
        # Chunks of equal length share a pass.
        for length in {len(frames) for _, frames in work}:
            indices = [index for index, (_, frames) in enumerate(work) if len(frames) == length]
            most = max(1, FRAMES_PER_PASS.get(torch.device(self._device).type, len(indices) * length) // length)
            for begin in range(0, len(indices), most):
                together = indices[begin : begin + most]
                for index, wave in zip(together, self._pass([work[index] for index in together]), strict=True):
                    waves[index] = wave
        return waves

    def _pass(self, work: list[tuple[StreamState, torch.Tensor]]) -> list[torch.Tensor]:
        """Chunks of one length, together."""
        memory = Memory([stream for stream, _ in work])
        codes = torch.stack([frames.T for _, frames in work]).to(self._device)
        batch = self._network(codes, memory).float().cpu()
        memory.save()
        return [wave.clone() for wave in batch]


@define(eq=False)
class _Sound:
    """One request's frames, decoded and waiting."""

    request_id: str
    return_codes: bool
    stream: StreamState = field(factory=StreamState)
    waiting: list[torch.Tensor] = field(factory=list)
    decoded: list[torch.Tensor] = field(factory=list)
    waves: list[torch.Tensor] = field(factory=list)


class VocoderScheduler(StreamingScheduler[_Sound]):
    """Streams :class:`AudioChunk`; their concatenation is the :class:`AudioResult`'s samples exactly.

    Args:
        initial_chunk: frames of the first chunk: small, so that sound starts soon.
        chunk: frames of every later chunk: larger, because a pass has a cost of its own.
    """

    def __init__(self, vocoder: Vocoder, *, initial_chunk: int, chunk: int) -> None:
        super().__init__()
        for name, value in (("initial_chunk", initial_chunk), ("chunk", chunk)):
            if value < 1:
                raise ConfigError(f"{name}: must be at least 1 frame, is {value}")
        self._vocoder, self._initial_chunk, self._chunk = vocoder, initial_chunk, chunk

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Sound:
        params = request.params if request is not None else {}
        return _Sound(request_id, bool(params.get("return_codes")))

    def on_payload(self, state: _Sound, payload: StagePayload) -> None:
        # Its arrival says that speech has ended; the frames came as a stream (none, if nothing was said).
        state.return_codes = bool(payload.request.params.get("return_codes"))

    def on_chunk(self, state: _Sound, chunk: torch.Tensor, metadata: dict[str, Any] | None) -> None:
        if chunk.shape != (self._vocoder.codebooks,):
            raise ValueError(f"a frame has {self._vocoder.codebooks} codes, this one has shape {list(chunk.shape)}")
        if not bool(((chunk >= 0) & (chunk < self._vocoder.codebook)).all()):
            raise ValueError(f"codes must be from 0 to {self._vocoder.codebook - 1}, this frame has {chunk.tolist()}")
        state.waiting.append(chunk)

    def step(self, states: dict[str, _Sound]) -> dict[str, BaseException]:
        """Decode every request that has a chunk's worth of frames, together."""
        due = [state for state in states.values() if len(state.waiting) >= self._wanted(state)]
        return self._decode([(state, self._wanted(state)) for state in due])

    def _wanted(self, state: _Sound) -> int:
        return self._chunk if state.decoded else self._initial_chunk

    def _decode(self, work: list[tuple[_Sound, int]]) -> dict[str, BaseException]:
        """Decode the first frames of each. Frames were checked as they came, so a failure here is nobody's in particular."""
        batch = [(state, torch.stack(state.waiting[:count])) for state, count in work]
        if not batch:
            return {}
        try:
            waves = self._vocoder.decode([(state.stream, frames) for state, frames in batch])
        except BaseException as error:
            return {state.request_id: error for state, _ in batch}
        for (state, frames), wave in zip(batch, waves, strict=True):
            del state.waiting[: len(frames)]
            state.decoded.append(frames)
            state.waves.append(wave)
            self.emit(state.request_id, AudioChunk(wave, SAMPLE_RATE))
        return {}

    def finish(self, request_id: str, state: _Sound) -> AudioResult:
        while state.waiting:
            errors = self._decode([(state, min(len(state.waiting), self._wanted(state)))])
            if errors:
                raise errors[request_id]
        samples = torch.cat(state.waves) if state.waves else torch.empty(0)
        empty = torch.empty(0, self._vocoder.codebooks, dtype=torch.int64)
        codes = torch.cat(state.decoded) if state.decoded else empty
        return AudioResult(samples, SAMPLE_RATE, codes if state.return_codes else None)


def create_vocoder(
    model_path: str,
    device: str | None = None,
    gpu_id: int | None = None,
    dtype: str = "float32",
    initial_chunk: int = 4,
    chunk: int = 20,
) -> VocoderScheduler:
    """The vocoder stage; see :class:`VocoderScheduler` for the options."""
    place = device or ("cpu" if gpu_id is None else f"cuda:{gpu_id}")
    return VocoderScheduler(Vocoder(model_path, device=place, dtype=dtype), initial_chunk=initial_chunk, chunk=chunk)
