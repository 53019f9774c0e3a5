"""The network of the vocoder: a causal transformer with a sliding window over codec frames, then convolutions that upsample to samples.

The names of the parameters are those of the released checkpoint, with query, key and value, and gate and up joined. For inference only.
"""

from __future__ import annotations

from functools import partial

import torch

from omni_qwen3.encoder_config import VocoderConfig
from omni_qwen3.layers import MLP
from omni_torch.api import FrameTransformer, FrameWindow, SoundDecoder, decode_sound, embedding


class Code2Wav(SoundDecoder):
    """The vocoder: codes to samples in two steps, of which only the first has a memory."""

    def __init__(self, config: VocoderConfig) -> None:
        hidden = config.hidden_size
        super().__init__(hidden, config.decoder_size, config.upsampling, config.rates, trims=True)
        mlp = partial(MLP, hidden, config.intermediate_size, config.activation)
        self.pre_transformer = FrameTransformer(config, mlp)
        self.code_embedding = embedding(config.codebooks * config.codebook_size, hidden)
        self._codebooks, self._codebook_size = config.codebooks, config.codebook_size

    def transform(self, frames: list[torch.Tensor], windows: list[FrameWindow]) -> list[torch.Tensor]:
        """Transform the next frames of several utterances: ``[frames, codebooks]`` int64 to ``[frames, hidden]`` each."""
        counts, codes = [len(each) for each in frames], torch.cat(frames)
        first = torch.arange(self._codebooks, device=codes.device) * self._codebook_size
        embedded = self.code_embedding(codes + first).mean(1)
        return list(self.pre_transformer(embedded, counts, windows).split(counts))

    def synthesize(self, hidden: torch.Tensor, memory: torch.Tensor | None = None, begun: bool = False) -> torch.Tensor:
        """Upsample ``[B, hidden, T]`` to samples from -1 to 1, ``[B, samples]``; the end that needs the next frame is not made.

        Args:
            memory: of the streams' convolutions, which is written (:meth:`SoundStack.new_memory`); by default that of a beginning.
            begun: True if the memory is of frames before.
        """
        if memory is None:
            memory = self.sound.new_memory(len(hidden), hidden)
        return decode_sound(hidden, memory, begun, self.sound).clamp(min=-1, max=1)[:, 0]
