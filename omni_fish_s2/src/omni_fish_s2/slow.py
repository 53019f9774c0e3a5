"""The slow decoder: predicts the semantic token of the next frame from text and finished frames. Holds its fast
decoder.
"""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from omni_core.api import ForwardBatch, ForwardOutput, KVLayout
from omni_fish_s2.checkpoint import load_module
from omni_fish_s2.config import FishConfig
from omni_fish_s2.fast import FastDecoder
from omni_fish_s2.layers import DecoderLayer, describe, rotary, whole
from omni_torch.api import DecoderStep, RMSNorm, embedding, matrix_of, stored_linear

PREFIXES = {
    "fast.": "audio_decoder.",
    "codebook_embeddings.": "audio_decoder.codebook_embeddings.",
    "": "text_model.model.",
}
"""Maps our parameters' prefixes to those on disk."""


class SlowDecoder(nn.Module):
    """Embedding, layers, norm, head: an :class:`omni_core.model_runner.ARModel` over the tokens that may follow.

    Attributes:
        candidates: ``[W]`` int64: the ids that a step may choose, in order of id: the end of the turn and the semantic
            tokens. Logits are computed for these alone.
    """

    def __init__(self, config: FishConfig) -> None:
        super().__init__()
        slow = config.slow
        self.config = config
        self.embeddings = embedding(config.vocab_size, slow.dim)
        self.codebook_embeddings = embedding(config.codebook_size * config.codebooks, slow.dim)
        self.layers = nn.ModuleList([DecoderLayer(slow, layer) for layer in range(slow.layers)])
        self.norm = RMSNorm(slow.dim, slow.norm_eps)
        if not config.tied:
            self.output = nn.Linear(slow.dim, config.vocab_size, bias=False)
        self.fast = FastDecoder(config)
        self._step = DecoderStep(partial(describe, slow, self.layers, self.norm), slow.layers)
        self.hidden_size, self.vocab_size = slow.dim, config.vocab_size
        semantic = list(range(config.semantic_begin, config.semantic_end + 1))
        self.candidates = torch.tensor(sorted([config.im_end, *semantic]), device="cpu")

    @property
    def kv_layout(self) -> KVLayout:
        slow = self.config.slow
        return KVLayout(slow.layers, slow.kv_heads, slow.head_dim, self.norm.weight.dtype)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self.embeddings(ids)
        return embeds

    def embed_frames(self, tokens: torch.Tensor, codes: torch.Tensor) -> torch.Tensor:
        """Embed ``[n]`` semantic tokens and their frames' ``[n, codebooks]`` codes: ``[n, dim]``."""
        offsets = torch.arange(self.config.codebooks, device=codes.device) * self.config.codebook_size
        summed = self.embeddings(tokens) + self.codebook_embeddings(codes + offsets).sum(dim=1)
        scaled: torch.Tensor = summed / (self.config.codebooks + 1) ** 0.5
        return scaled

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        assert batch.input_embeds is not None
        x = batch.input_embeds
        cos, sin = rotary(batch.positions, self.config.slow.head_dim, self.config.slow.rope_base)
        if self._step.is_installed(x):
            output = self._step.run(x, whole(cos, x.dtype), whole(sin, x.dtype), batch)
            if output is not None:
                return output
        for layer in self.layers:
            x = layer(x, cos, sin, batch.attention)
        return ForwardOutput(self.norm(x))

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits ``[m, W]``, one column per candidate, of ``[m, dim]``."""
        config = self.config
        head = matrix_of(self.embeddings if config.tied else self.output)
        assert head is not None, "it is not packed: single rows of it are read"
        semantic = stored_linear(hidden, head.weight[config.semantic_begin : config.semantic_end + 1])
        end = stored_linear(hidden, head.weight[config.im_end : config.im_end + 1])
        parts = [end, semantic] if config.im_end < config.semantic_begin else [semantic, end]
        return torch.cat(parts, dim=-1)


def load_decoders(
    model_path: str, config: FishConfig, *, dtype: torch.dtype | None = torch.float32, device: str = "cpu"
) -> SlowDecoder:
    """Load both decoders. ``dtype``: of their weights; ``None``: each has the one that it is stored in."""
    with torch.device("meta"):
        model = SlowDecoder(config)
    return load_module(model, model_path, PREFIXES, dtype=dtype, device=device)
