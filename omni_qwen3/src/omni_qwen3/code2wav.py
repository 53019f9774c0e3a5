"""The code2wav stage: decodes codec frames to sound incrementally, with the same result as decoding all frames at once.

The network is causal, so it runs on new frames only: the transformer with the keys and values of its window, the convolutions with
their last inputs. The last 555 samples that a decode lacks (its transposed convolutions trim both ends) come with the next chunk; no
gap is left.
"""

from __future__ import annotations

import torch
from attrs import define, field

from omni_core.api import ConfigError
from omni_qwen3.checkpoint import load_module, open_checkpoint
from omni_qwen3.code2wav_network import Code2Wav
from omni_qwen3.config import read_config
from omni_torch.api import FrameWindow, VocoderScheduler, return_freed_memory


@define(eq=False)
class Utterance:
    """The decoder state of one request.

    Attributes:
        window: of the transformer, over the frames decoded.
        memory: ``[memory_size]``, the last inputs of the convolutions; ``None`` before the first chunk.
    """

    window: FrameWindow = field(factory=FrameWindow)
    memory: torch.Tensor | None = None


class Vocoder:
    """Decodes chunks of frames; chunks equal a single decode."""

    sample_rate = 24_000
    """Hz. Not in the checkpoint's config; one frame of 1920 samples is 80 ms."""

    def __init__(self, model_path: str, *, device: str = "cpu", dtype: str = "float32") -> None:
        config = read_config(model_path).vocoder
        if config is None:
            raise ConfigError("config.json.code2wav_config: missing; is this a Qwen3-Omni checkpoint with speech?")
        with torch.device("meta"):
            network = Code2Wav(config)
        kind = getattr(torch, dtype)
        self._network = load_module(network, open_checkpoint(model_path), {"": "code2wav."}, dtype=kind, device=device)
        self.device = torch.device(device)
        self.codebooks, self.codebook_size = config.codebooks, config.codebook_size
        self.samples_per_frame = network.samples_per_frame
        with torch.inference_mode():  # kernels lay out the weights at their first call
            self._network.synthesize(torch.zeros(1, config.hidden_size, 1, dtype=kind, device=device))
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
        frames, windows = [each.to(self.device) for _, each in work], [utterance.window for utterance, _ in work]
        hidden = self._network.transform(frames, windows)
        waves: list[torch.Tensor] = [torch.empty(0)] * len(work)
        # Chunks of equal length share one pass through the convolutions; a first chunk has fewer samples.
        shapes = [(len(each), utterance.memory is not None) for utterance, each in work]
        for shape in set(shapes):
            indices = [index for index, other in enumerate(shapes) if other == shape]
            together = torch.stack([hidden[index].T for index in indices])
            batch = self._synthesize(together, [work[index][0] for index in indices]).float().cpu()
            for index, wave in zip(indices, batch, strict=True):
                waves[index] = wave.clone()
        return waves

    def _synthesize(self, hidden: torch.Tensor, utterances: list[Utterance]) -> torch.Tensor:
        """Compute the samples of the next frames, ``[B, hidden, T]``, and move the utterances' memories."""
        kept = [utterance.memory for utterance in utterances if utterance.memory is not None]
        memory = torch.stack(kept) if kept else self._network.sound.new_memory(len(hidden), hidden)
        made = self._network.synthesize(hidden, memory, begun=bool(kept))
        for utterance, each in zip(utterances, memory, strict=True):
            utterance.memory = each.clone() if len(utterances) > 1 else each
        return made


def create_code2wav(
    model_path: str,
    device: str = "cpu",
    dtype: str = "float32",
    initial_chunk: int = 4,
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
