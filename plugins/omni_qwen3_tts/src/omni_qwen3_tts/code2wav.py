"""The code2wav stage: decodes codec frames to sound incrementally, with the same result as decoding all frames at once.

The network is causal, so it runs on new frames only: the transformer with the keys and values of its window, the convolutions with
their last inputs. A frame's 1920 samples are complete with the frame.
"""

from __future__ import annotations

from functools import partial

import torch

from omni_qwen3_tts.checkpoint import sources
from omni_qwen3_tts.codec.config import SAMPLE_RATE, read_codec
from omni_qwen3_tts.codec.decoder import CodecDecoder, Utterance
from omni_qwen3_tts.config import CODEC
from omni_torch.api import VocoderScheduler, load_module, open_checkpoint, return_freed_memory


class Vocoder:
    """Decodes chunks of frames; chunks equal a single decode."""

    sample_rate = SAMPLE_RATE

    def __init__(self, model_path: str, *, device: str = "cpu", dtype: str = "float32") -> None:
        config = read_codec(model_path)
        with torch.device("meta"):
            network = CodecDecoder(config)
        checkpoint, kind = open_checkpoint(f"{model_path}/{CODEC}"), getattr(torch, dtype)
        self._network = load_module(network, checkpoint, partial(sources, "decoder."), dtype=kind, device=device)
        self.device = torch.device(device)
        self.codebooks, self.codebook_size = config.codebooks, config.codebook_size
        self.samples_per_frame = config.samples_per_frame
        with torch.inference_mode():  # kernels lay out the weights at their first call
            self.decode([(self.begin(), torch.zeros(1, self.codebooks, dtype=torch.int64))])
        return_freed_memory()

    def begin(self) -> Utterance:
        """Return the state of a new request."""
        return Utterance()

    @torch.inference_mode()
    def decode(self, work: list[tuple[Utterance, torch.Tensor]]) -> list[torch.Tensor]:
        """Decode the next frames of several utterances.

        Args:
            work: each utterance with its new frames, ``[frames, codebooks]`` int64, at least one.

        Returns:
            Each utterance's new samples, float32 ``[n]``.
        """
        utterances = [utterance for utterance, _ in work]
        hidden = self._network.transform([each.to(self.device) for _, each in work], utterances)
        waves: list[torch.Tensor] = [torch.empty(0)] * len(work)
        for length in {len(each) for each in hidden}:  # chunks of equal length share one pass through the convolutions
            indices = [index for index, each in enumerate(hidden) if len(each) == length]
            together = torch.stack([hidden[index].T for index in indices])
            batch = self._synthesize(together, [utterances[index] for index in indices]).float().cpu()
            for index, wave in zip(indices, batch, strict=True):
                waves[index] = wave.clone()
        return waves

    def _synthesize(self, hidden: torch.Tensor, utterances: list[Utterance]) -> torch.Tensor:
        """Compute the samples of the next frames, ``[B, latent, T]``, and move the utterances' memories."""
        memory = self._network.sound.new_memory(len(hidden), hidden)
        for row, utterance in zip(memory, utterances, strict=True):
            if utterance.memory is not None:
                row.copy_(utterance.memory)
        made = self._network.synthesize(hidden, memory)
        for utterance, each in zip(utterances, memory, strict=True):
            utterance.memory = each.clone() if len(utterances) > 1 else each
        return made


def create_code2wav(
    model_path: str,
    device: str = "cpu",
    dtype: str = "float32",
    initial_chunk: int = 2,
    chunk: int = 24,
    growth: float | None = 1.0,
    max_running: int | None = None,
    policy: str | None = None,
) -> VocoderScheduler[Utterance]:
    """The stage; see :class:`VocoderScheduler` and :class:`Vocoder` for the options."""
    vocoder = Vocoder(model_path, device=device, dtype=dtype)
    return VocoderScheduler(
        vocoder, initial_chunk=initial_chunk, chunk=chunk, growth=growth, max_running=max_running, policy=policy
    )
