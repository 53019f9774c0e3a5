"""The vocoder stage: decodes frames of codes to sound, streamed, several requests in one pass."""

from __future__ import annotations

from typing import Any

import torch

from omni_core.api import AudioResult, InvalidRequestError, RequestTooLargeError, StagePayload
from omni_fish_s2.codec import SAMPLE_RATE
from omni_fish_s2.codec.memory import Memory, StreamState
from omni_fish_s2.codec.networks import CodecDecoder
from omni_fish_s2.codec.weights import FILE, CodecFile, load_codec
from omni_fish_s2.payloads import TextError
from omni_torch.api import VocoderScheduler

FRAMES_PER_PASS = {"cpu": 64}
"""The number of frames, over all streams, of one pass on a CPU, beyond which they exceed its caches; unlimited
elsewhere.
"""


class Vocoder:
    """Decodes chunks of frames; each stream keeps the state of its layers, so no frame is decoded twice."""

    sample_rate = SAMPLE_RATE

    def __init__(self, model_path: str, *, device: str = "cpu", dtype: str = "float32") -> None:
        file = CodecFile(f"{model_path}/{FILE}")
        self._network = load_codec(CodecDecoder, file, dtype=getattr(torch, dtype), device=device)
        self.device = torch.device(device)
        self.codebooks, self.codebook_size = file.config.codebooks, file.config.semantic_codebook
        self.samples_per_frame = file.config.samples_per_frame

    def begin(self) -> StreamState:
        return StreamState()

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
            most = max(1, FRAMES_PER_PASS.get(self.device.type, len(indices) * length) // length)
            for begin in range(0, len(indices), most):
                together = indices[begin : begin + most]
                for index, wave in zip(together, self._pass([work[index] for index in together]), strict=True):
                    waves[index] = wave
        return waves

    def _pass(self, work: list[tuple[StreamState, torch.Tensor]]) -> list[torch.Tensor]:
        """Decode chunks of one length together."""
        memory = Memory([stream for stream, _ in work])
        codes = torch.stack([frames.T for _, frames in work]).to(self.device)
        batch = self._network(codes, memory).float().cpu()
        memory.save()
        return [wave.clone() for wave in batch]


class SpeechVocoder(VocoderScheduler[StreamState]):
    """Raises the error of a text when what was complete of it is heard."""

    def __init__(self, vocoder: Vocoder, **options: Any) -> None:
        super().__init__(vocoder, **options)
        self._errors: dict[str, TextError] = {}

    def on_payload(self, state: Any, payload: StagePayload) -> None:
        super().on_payload(state, payload)
        if isinstance(payload.data, dict) and "error" in payload.data:
            self._errors[payload.request_id] = payload.data["error"]

    def finish(self, request_id: str, state: Any) -> AudioResult:
        result = super().finish(request_id, state)
        if (error := self._errors.get(request_id)) is not None:
            raise (RequestTooLargeError if error["too_large"] else InvalidRequestError)(error["message"])
        return result

    def forget(self, request_id: str) -> None:
        super().forget(request_id)
        self._errors.pop(request_id, None)


def create_vocoder(
    model_path: str,
    device: str = "cpu",
    dtype: str = "float32",
    initial_chunk: int = 4,
    chunk: int = 20,
    growth: float | None = 1.0,
    max_running: int | None = None,
    policy: str | None = None,
) -> SpeechVocoder:
    """The vocoder stage; see :class:`VocoderScheduler` for the options."""
    vocoder = Vocoder(model_path, device=device, dtype=dtype)
    return SpeechVocoder(
        vocoder, initial_chunk=initial_chunk, chunk=chunk, growth=growth, max_running=max_running, policy=policy
    )
