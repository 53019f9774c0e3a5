"""Makes the thinker's and the talker's networks, and transformers' own networks, from a checkpoint's tensors.

A stage reads only the tensors of its own network. The encoders and token2wav are transformers' modules: they are made without values,
filled from the checkpoint, and their constant buffers computed as transformers computes them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from omni_core.api import ConfigError
from omni_qwen3.checkpoint import load_module, open_checkpoint
from omni_qwen3.config import DecoderConfig
from omni_qwen3.sharding import part_of
from omni_qwen25.config import OmniConfig, TalkerConfig, part_config
from omni_qwen25.decoder import parts_of
from omni_torch.api import (
    ALONE,
    DecoderModel,
    TensorParallel,
    filled_on,
    load_prepared,
    pack_decoder,
    pack_linears,
    quantize_for,
)


class Thinker(DecoderModel):
    """The thinker: text in the form of ids and encoder features, text out."""

    def __init__(self, config: DecoderConfig, parallel: TensorParallel = ALONE) -> None:
        super().__init__(*parts_of(config, parallel=parallel))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        return self.model.embed_tokens(ids)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.lm_head(hidden)


class Talker(DecoderModel):
    """The talker: rows of the thinker's width in, each the sum of a text side and a code's embedding; codes out."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__(*parts_of(config.decoder, config.embedding_size))
        self.thinker_to_talker_proj = nn.Linear(config.embedding_size, config.decoder.hidden_size)
        self.codec_head = nn.Linear(config.decoder.hidden_size, config.decoder.vocab_size, bias=False)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        """Return projected embeddings of codes without a text side, ``[n, hidden]``."""
        return self.project(self.code_rows(ids))

    def code_rows(self, ids: torch.Tensor) -> torch.Tensor:
        """Return embeddings of codes, ``[n, embedding_size]``."""
        return self.model.embed_tokens(ids)

    def project(self, rows: torch.Tensor) -> torch.Tensor:
        """Return inputs of the decoder, ``[n, hidden]``, for rows ``[n, embedding_size]``."""
        return self.thinker_to_talker_proj(rows)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.codec_head(hidden).float()


def load_thinker(
    model_path: str,
    config: OmniConfig,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    parallel: TensorParallel = ALONE,
    quantization: str | None = None,
) -> Thinker:
    """Load the thinker's decoder, or a rank's slices of it, with the weights of ``quantization``, kept for later starts.

    Raises:
        ConfigError: a tensor is missing or of another shape; or the ranks or this machine cannot compute it so.
    """
    place = filled_on(quantization, device)

    def make() -> Thinker:
        with torch.device("meta"):
            return Thinker(config.thinker, parallel)

    def fill(model: Thinker, kind: torch.dtype | None) -> Thinker:
        names = {"model.": "thinker.model.", "lm_head.": "thinker.lm_head."}
        parts = part_of(config.thinker, parallel)
        return load_module(model, open_checkpoint(model_path), names, dtype=kind, device=place, part_of=parts)

    model = load_prepared(
        make,
        fill,
        model_path,
        network="thinker",
        dtype=getattr(torch, dtype),
        options={"quantization": quantization, "rank": f"{parallel.rank} of {parallel.size}"},
        quantize=quantize_for(quantization, device),
        device=device,
    )
    pack_linears(model, pack_decoder)
    return model


def load_talker(
    model_path: str,
    config: TalkerConfig,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    quantization: str | None = None,
) -> Talker:
    """Load the talker as :func:`load_thinker` loads the thinker."""
    place = filled_on(quantization, device)

    def make() -> Talker:
        with torch.device("meta"):
            return Talker(config)

    def fill(model: Talker, kind: torch.dtype | None) -> Talker:
        return load_module(model, open_checkpoint(model_path), {"": "talker."}, dtype=kind, device=place)

    model = load_prepared(
        make,
        fill,
        model_path,
        network="talker",
        dtype=getattr(torch, dtype),
        options={"quantization": quantization},
        quantize=quantize_for(quantization, device),
        device=device,
    )
    pack_linears(model, pack_decoder)
    return model


def read_text_rows(model_path: str, ids: list[int]) -> torch.Tensor:
    """Return rows of the thinker's embedding, ``[len(ids), hidden]`` in the checkpoint's dtype."""
    return open_checkpoint(model_path).read_rows("thinker.model.embed_tokens.weight", ids)


PARTS = {
    "visual": ("Qwen2_5OmniVisionEncoder", ("thinker_config", "vision_config"), "thinker.visual."),
    "audio": ("Qwen2_5OmniAudioEncoder", ("thinker_config", "audio_config"), "thinker.audio_tower."),
    "dit": (
        "Qwen2_5OmniToken2WavDiTModel",
        ("token2wav_config", "dit_config"),
        "token2wav.code2wav_dit_model.",
    ),
    "bigvgan": (
        "Qwen2_5OmniToken2WavBigVGANModel",
        ("token2wav_config", "bigvgan_config"),
        "token2wav.code2wav_bigvgan_model.",
    ),
}
"""Transformers' networks: the class, the section of its config, and the beginning of its tensors' names on disk."""


def describe_part(config: OmniConfig, name: str) -> Any:
    """Return one of :data:`PARTS` on the meta device, without values."""
    from transformers.models.qwen2_5_omni import modeling_qwen2_5_omni as classes

    kind, section, _ = PARTS[name]
    with torch.device("meta"):
        return getattr(classes, kind)(part_config(config, *section))


def load_part(model_path: str, config: OmniConfig, name: str, *, dtype: torch.dtype, device: str) -> Any:
    """Load one of :data:`PARTS`. Raises ConfigError if a tensor is missing or of another shape."""
    network = describe_part(config, name)
    load_module(network, open_checkpoint(model_path), {"": PARTS[name][2]}, dtype=dtype, device=device)
    for module in network.modules():
        constant = [key for key, each in module.named_buffers(recurse=False) if each.is_meta]
        for key in constant:
            module._buffers[key] = torch.empty_like(module._buffers[key], device=device)
        if constant:
            with torch.no_grad():
                network._init_weights(module)
    return network


def check_dtype(dtype: str) -> None:
    """Refuse another dtype for token2wav than the reference computes it in.

    Raises:
        ConfigError: it is not float32.
    """
    if dtype != "float32":
        raise ConfigError(f"dtype: token2wav computes in float32, as in the reference, not in {dtype}")
