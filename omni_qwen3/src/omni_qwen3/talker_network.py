"""The talker's network: a decoder over the first codes of frames, its projections and its code predictor."""

from __future__ import annotations

from functools import partial

import torch
from torch import nn

from omni_qwen3.checkpoint import load_module, open_checkpoint
from omni_qwen3.code_predictor import CodePredictor
from omni_qwen3.config import DecoderConfig, QwenConfig, TalkerConfig
from omni_qwen3.layer_weights import describe
from omni_qwen3.layers import DecoderLayer, Rotary, activation
from omni_torch.api import DecoderModel, RMSNorm, embedding, filled_on, load_prepared, quantize_for


class Projection(nn.Module):
    """Two linear layers from the thinker's width to the talker's."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.thinker_hidden_size, config.text.intermediate_size)
        self.linear_fc2 = nn.Linear(config.text.intermediate_size, config.text.hidden_size)
        self.activation = activation(config.text.activation)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.linear_fc2(self.activation(self.linear_fc1(x)))
        return projected


class TalkerDecoder(nn.Module):
    """Codec embedding, layers, norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.codec_embedding = embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, layer) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class Talker(DecoderModel):
    """An :class:`omni_core.model_runner.ARModel` over first codes, with its projections and code predictor."""

    def __init__(self, config: TalkerConfig) -> None:
        model = TalkerDecoder(config.text)
        super().__init__(
            config.text, model, Rotary(config.text), partial(describe, config.text, model.layers, model.norm)
        )
        self.text_projection = Projection(config)
        self.hidden_projection = Projection(config)
        self.codec_head = nn.Linear(config.text.hidden_size, config.text.vocab_size, bias=False)
        self.code_predictor = CodePredictor(config.predictor, config.code_groups)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self.model.codec_embedding(ids)
        return embeds

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.codec_head(hidden)
        return logits


def read_special(model_path: str, config: QwenConfig) -> torch.Tensor:
    """Return the thinker's embeddings of tts_bos, tts_eos and tts_pad: ``[3, thinker_hidden]`` in the checkpoint's
    dtype.
    """
    tokens = [config.tts_bos, config.tts_eos, config.tts_pad]
    return open_checkpoint(model_path).read_rows("thinker.model.embed_tokens.weight", tokens)


def load_talker(
    model_path: str,
    config: QwenConfig,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    quantization: str | None = None,
) -> Talker:
    """Load the talker and its code predictor as :func:`omni_qwen3.thinker_network.load_thinker` loads the thinker."""
    place = filled_on(quantization, device)

    def make() -> Talker:
        with torch.device("meta"):
            return Talker(config.talker)

    def fill(model: Talker, kind: torch.dtype | None) -> Talker:
        return load_module(model, open_checkpoint(model_path), {"": "talker."}, dtype=kind, device=place)

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
