"""The thinker's network: the text decoder of Qwen3-Omni, whole or one tensor parallel rank of it."""

from __future__ import annotations

from functools import partial
from itertools import chain

import torch
from torch import nn

from omni_core.api import ForwardBatch, ForwardOutput
from omni_qwen3.checkpoint import load_module, open_checkpoint, weights_of
from omni_qwen3.config import DecoderConfig, QwenConfig
from omni_qwen3.layer_weights import describe
from omni_qwen3.layers import DecoderLayer, Rotary
from omni_qwen3.narrow import keep_narrow
from omni_qwen3.sharding import local_config, part_of
from omni_torch.api import (
    ALONE,
    DecoderModel,
    GgufCheckpoint,
    RMSNorm,
    TensorParallel,
    embedding,
    file_identity,
    filled_on,
    load_prepared,
    quantize_for,
)


class ThinkerDecoder(nn.Module):
    """Embedding, layers, norm; deepstack features are added to the first layers' outputs at visual rows."""

    def __init__(self, config: DecoderConfig, parallel: TensorParallel) -> None:
        super().__init__()
        self.embed_tokens = embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, layer, parallel) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class Thinker(DecoderModel):
    """An :class:`omni_core.model_runner.ARModel`.

    ``batch.extra`` may hold ``deepstack``: ``(rows, [features per layer])``, and ``capture``: the layer count whose raw
    output is wanted (``hidden_states`` index of the reference). Sharded, every rank has the whole embedding and head, so that
    hidden states and logits are the same everywhere. ``expert_parallel``: see :func:`omni_qwen3.sharding.local_config`.
    """

    def __init__(
        self, config: DecoderConfig, parallel: TensorParallel = ALONE, *, expert_parallel: bool = False
    ) -> None:
        config = local_config(config, parallel, expert_parallel)
        model = ThinkerDecoder(config, parallel)
        super().__init__(config, model, Rotary(config), partial(describe, config, model.layers, model.norm))
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self.model.embed_tokens(ids)
        return embeds

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        assert batch.input_embeds is not None
        x = batch.input_embeds
        cos, sin = self.rotary(batch.positions, x.dtype)
        rows, features = batch.extra.get("deepstack", (None, []))
        capture = batch.extra.get("capture")
        if rows is None and (output := self.step.run(x, cos, sin, batch, capture)) is not None:
            return output
        captured = {0: x} if capture == 0 else {}
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, batch.attention)
            if capture == index + 1:
                captured[capture] = x
            if rows is not None and index < len(features):
                x = x.index_add(0, rows, features[index])
        hidden = self.model.norm(x)
        if capture == len(self.model.layers):
            captured[capture] = hidden  # the last of the reference's hidden_states is the normalised one
        return ForwardOutput(hidden, captured)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(hidden)
        return logits


ARCHITECTURES = ("qwen3vlmoe", "qwen3moe")
"""The names that GGUF files have for the thinker's: that of llama.cpp's converter, and that of a Qwen3 mixture of experts without pictures,
whose tensors have the same names.
"""

PREFIXES = {"model.": "thinker.model.", "lm_head.": "thinker.lm_head."}
"""The beginnings of the thinker's names on disk."""


def open_gguf(path: str, config: QwenConfig) -> GgufCheckpoint:
    """Return the tensors of a GGUF file of the thinker.

    Raises:
        ConfigError: as the class; or the file has other tensors than the thinker.
    """
    text = config.thinker
    stated = {"rope.dimension_sections": [*text.mrope_section, 0], "rope.freq_base": text.rope_theta}
    checkpoint = GgufCheckpoint(path, "thinker.", ARCHITECTURES, metadata_of(text), stated, config.folder)
    with torch.device("meta"):
        described = Thinker(text).state_dict()
    names = weights_of(checkpoint, PREFIXES)
    checkpoint.check_names(chain.from_iterable(names(name, each.shape) for name, each in described.items()))
    return checkpoint


def metadata_of(thinker: DecoderConfig) -> dict[str, int]:
    """Return what a GGUF file of this decoder says of its dimensions."""
    return {
        "block_count": thinker.layers, "embedding_length": thinker.hidden_size, "attention.head_count": thinker.heads,
        "attention.head_count_kv": thinker.kv_heads, "attention.key_length": thinker.head_dim, "expert_count": thinker.experts,
        "expert_used_count": thinker.experts_per_token,
    }  # fmt: skip


def load_thinker(
    model_path: str,
    config: QwenConfig,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    parallel: TensorParallel = ALONE,
    expert_parallel: bool = False,
    quantization: str | None = None,
    gguf: str | None = None,
) -> Thinker:
    """Load the thinker's decoder, or this rank's part of it, with the weights of ``quantization``, kept for later starts.

    Layouts of this machine's kernels are made by :func:`omni_torch.quantization.packed_linear.pack_linears`.

    Args:
        expert_parallel: each of several ranks holds some of the experts whole, in place of a slice of every one.
        gguf: a file that the weights are read from, in place of the checkpoint's.
    """

    place = filled_on(quantization, device)
    local = local_config(config.thinker, parallel, expert_parallel)
    whole_experts = local.local_experts is not None
    first = local.local_experts.start if local.local_experts is not None else 0
    checkpoint = open_checkpoint(model_path) if gguf is None else open_gguf(gguf, config)

    def make() -> Thinker:
        with torch.device("meta"):
            model = Thinker(config.thinker, parallel, expert_parallel=expert_parallel)
        if torch.device(device).type == "cpu" and (parallel.size == 1 or whole_experts):
            names = weights_of(checkpoint, PREFIXES, first)
            kind = getattr(torch, dtype)
            keep_narrow(model, checkpoint, names, quantization, kind, experts_only=whole_experts)
        return model

    def fill(model: Thinker, kind: torch.dtype | None) -> Thinker:
        parts = part_of(config.thinker, parallel, expert_parallel)
        return load_module(model, checkpoint, PREFIXES, dtype=kind, device=place, part_of=parts, first_expert=first)

    return load_prepared(
        make,
        fill,
        model_path,
        network="thinker",
        dtype=getattr(torch, dtype),
        options={"quantization": quantization, "rank": f"{parallel.rank} of {parallel.size}"}
        | ({"expert_parallel": True} if whole_experts else {})
        | ({} if gguf is None else {"gguf": file_identity(gguf)}),
        quantize=quantize_for(quantization, device),
        device=device,
    )
