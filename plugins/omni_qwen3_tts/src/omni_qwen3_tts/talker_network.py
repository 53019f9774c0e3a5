"""The talker's network: a decoder over the first codes of frames, its embeddings of text, and its code predictor."""

from __future__ import annotations

from functools import partial

import torch
import torch.nn.functional as F
from torch import nn

from omni_qwen3_tts.checkpoint import sources
from omni_qwen3_tts.code_predictor import CodePredictor
from omni_qwen3_tts.config import DecoderConfig, TTSConfig
from omni_qwen3_tts.layers import DecoderLayer, Rotary, describe
from omni_torch.api import (
    DecoderModel,
    RMSNorm,
    embedding,
    filled_on,
    load_module,
    load_prepared,
    open_checkpoint,
    quantize_for,
)


class Projection(nn.Module):
    """Two linear layers from the width of text to the talker's."""

    def __init__(self, text: int, talker: int) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(text, text)
        self.linear_fc2 = nn.Linear(text, talker)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return projected


class TalkerDecoder(nn.Module):
    """Embeddings of codes and of text, layers, norm."""

    def __init__(self, config: DecoderConfig, text_vocabulary: int, text_width: int) -> None:
        super().__init__()
        self.codec_embedding = embedding(config.vocab_size, config.hidden_size)
        self.text_embedding = embedding(text_vocabulary, text_width)
        self.layers = nn.ModuleList([DecoderLayer(config, layer) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class Talker(DecoderModel):
    """An :class:`omni_core.model_runner.ARModel` over first codes."""

    def __init__(self, config: TTSConfig) -> None:
        talker = config.talker
        model = TalkerDecoder(talker, config.text_vocab_size, config.text_hidden_size)
        rotary = Rotary(talker.head_dim, talker.rope_theta)
        super().__init__(talker, model, rotary, partial(describe, talker, model.layers, model.norm))
        self.text_projection = Projection(config.text_hidden_size, talker.hidden_size)
        self.codec_head = nn.Linear(talker.hidden_size, talker.vocab_size, bias=False)
        self.code_predictor = CodePredictor(config.predictor, config.code_groups, talker.hidden_size)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self.model.codec_embedding(ids)
        return embeds

    def embed_text(self, ids: torch.Tensor) -> torch.Tensor:
        """Return the rows of tokens of text, ``[n]`` int64 to ``[n, hidden]``."""
        rows: torch.Tensor = self.text_projection(self.model.text_embedding(ids).to(self.dtype))
        return rows

    def embed_frames(self, codes: torch.Tensor) -> torch.Tensor:
        """Return the rows of frames, ``[n, groups]`` int64 to ``[n, hidden]``: the sums of the embeddings of their codes."""
        return self.embed(codes[:, 0]) + self.code_predictor.embedded(codes[:, 1:])

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.codec_head(hidden)
        return logits


def load_talker(
    model_path: str, config: TTSConfig, *, dtype: str = "float32", device: str = "cpu", quantization: str | None = None
) -> Talker:
    """Load the talker and its code predictor.

    Args:
        dtype: of the weights: float32, bfloat16, float16.
        quantization: as of :func:`omni_torch.quantization.quantized_linear.quantize_for`.

    Raises:
        ConfigError: a tensor is missing or has a wrong shape.
    """
    place = filled_on(quantization, device)

    def make() -> Talker:
        with torch.device("meta"):
            return Talker(config)

    def fill(model: Talker, kind: torch.dtype | None) -> Talker:
        return load_module(model, open_checkpoint(model_path), partial(sources, "talker."), dtype=kind, device=place)

    return load_prepared(
        make,
        fill,
        model_path,
        network="talker",
        dtype=getattr(torch, dtype),
        options={"quantization": quantization},
        quantize=quantize_for(quantization, device),
        device=device,
    )
