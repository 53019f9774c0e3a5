"""The config of the released S2-Pro, as far as networks depend on it (second-hand: from printed copies)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

RELEASED: dict[str, Any] = {
    "model_type": "fish_qwen3_omni",
    "dtype": "bfloat16",
    "pad_token_id": 151669,
    "eos_token_id": 151645,
    "audio_pad_token_id": 151677,
    "semantic_start_token_id": 151678,
    "semantic_end_token_id": 155773,
    "text_config": {
        "vocab_size": 155776, "n_layer": 36, "n_head": 32, "n_local_heads": 8, "head_dim": 128, "dim": 2560,
        "intermediate_size": 9728, "rope_base": 1000000, "norm_eps": 1e-6, "max_seq_len": 32768, "tie_word_embeddings": True,
        "attention_qkv_bias": False, "attention_o_bias": False, "attention_qk_norm": True,
    },
    "audio_decoder_config": {
        "vocab_size": 4096, "n_layer": 4, "n_head": 32, "n_local_heads": 8, "head_dim": 128, "dim": 2560,
        "intermediate_size": 9728, "num_codebooks": 10, "max_seq_len": 11, "text_dim": 2560, "attention_qkv_bias": False,
        "attention_o_bias": False, "attention_qk_norm": False,
    },
}  # fmt: skip


NAMES = json.loads((Path(__file__).parents[1] / "omni_fish_s2/golden" / "released_names.json").read_text())


def on_disk(name: str) -> str:
    """The released name of a parameter of the reference."""
    if name.startswith("fast_"):
        return "audio_decoder." + name.removeprefix("fast_")
    if name.startswith("codebook_embeddings."):
        return "audio_decoder." + name
    return "text_model.model." + name


def folded(names: dict[str, list[int]]) -> dict[str, tuple[int, ...]]:
    """Return weight normalisation's two tensors as the one that they make."""
    made = {}
    for name, shape in names.items():
        if name.endswith((".original0", ".weight_g")):
            continue
        stem = name.removesuffix(".parametrizations.weight.original1").removesuffix(".weight_v")
        made[stem if stem == name else f"{stem}.weight"] = tuple(shape)
    return made
