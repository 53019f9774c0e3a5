"""Tiny language models whose decoders have what the engine computes, or something else."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import torch
import transformers

from tiny_transformers import byte_tokenizer

SIZES = {
    "vocab_size": 264,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
IDS = {"pad_token_id": 256, "bos_token_id": 257, "eos_token_id": 258}
GROUPED = {**SIZES, "num_key_value_heads": 2}
WIDE = {**GROUPED, "head_dim": 16}
TURNS = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 6}
LATENT = {"q_lora_rank": None, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 16, "v_head_dim": 16}
OLD = {"vocab_size": 264, "n_embd": 64, "n_layer": 2, "n_head": 4}

CONFIGS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": GROUPED,
    "Qwen2ForCausalLM": {**GROUPED, "use_sliding_window": True, "sliding_window": 6, "max_window_layers": 1},
    "Qwen3ForCausalLM": WIDE,
    "Qwen3MoeForCausalLM": {**WIDE, "num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32},
    "Qwen2MoeForCausalLM": {
        **GROUPED,
        "use_sliding_window": True,
        "sliding_window": 6,
        "max_window_layers": 1,
        "num_experts": 4,
        "moe_intermediate_size": 32,
        "shared_expert_intermediate_size": 32,
    },
    "Gemma2ForCausalLM": {
        **WIDE, "sliding_window": 6, "query_pre_attn_scalar": 16, "attn_logit_softcapping": 2.0, "final_logit_softcapping": 1.0
    },
    "Gemma3ForCausalLM": {**WIDE, **TURNS, "query_pre_attn_scalar": 16},
    "MistralForCausalLM": {**GROUPED, "sliding_window": 6},
    "MixtralForCausalLM": {**GROUPED, "num_local_experts": 4, "num_experts_per_tok": 2},
    "GptOssForCausalLM": {
        **WIDE, **TURNS, "num_local_experts": 4, "num_experts_per_tok": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e4}
    },
    "GraniteForCausalLM": {
        **GROUPED, "logits_scaling": 4.0, "embedding_multiplier": 3.0, "attention_multiplier": 0.2, "residual_multiplier": 0.5
    },
    "Phi3ForCausalLM": {**GROUPED, "sliding_window": 6},
    "PhiForCausalLM": SIZES,
    "CohereForCausalLM": {**GROUPED, "logit_scale": 0.3},
    "Cohere2ForCausalLM": {**GROUPED, "sliding_window": 6, "sliding_window_pattern": 2},
    "Olmo2ForCausalLM": GROUPED,
    "SmolLM3ForCausalLM": GROUPED,
    "Glm4ForCausalLM": WIDE,
    "Starcoder2ForCausalLM": {**GROUPED, "sliding_window": 6, "tie_word_embeddings": False},
    "StableLmForCausalLM": GROUPED,
    "Ernie4_5ForCausalLM": {**GROUPED, "tie_word_embeddings": False},
    "GPTNeoXForCausalLM": SIZES,
    "GPT2LMHeadModel": OLD,
    "OPTForCausalLM": {
        "vocab_size": 264, "hidden_size": 64, "ffn_dim": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "word_embed_proj_dim": 32
    },
    "DeepseekV3ForCausalLM": {
        **SIZES, **LATENT, "num_key_value_heads": 4, "n_routed_experts": 4, "num_experts_per_tok": 2, "n_group": 1, "topk_group": 1,
        "moe_intermediate_size": 32,
    },
    # not for the engine
    "Llama4ForCausalLM": {**WIDE, "num_local_experts": 2, "intermediate_size_mlp": 64, "attention_chunk_size": 8},
    "Lfm2ForCausalLM": {**GROUPED, "layer_types": ["conv", "full_attention"]},
    "MambaForCausalLM": {"vocab_size": 264, "hidden_size": 64, "num_hidden_layers": 2},
    "BloomForCausalLM": {"vocab_size": 264, "hidden_size": 64, "n_layer": 2, "n_head": 4},
    "GPTJForCausalLM": {**OLD, "rotary_dim": 8},
}  # fmt: skip
"""Of each architecture, what its config has beside the ids of special tokens."""


def model_of(architecture: str, **more: Any) -> Any:
    """Return a tiny model, whose answers vary more than those of fresh weights."""
    kind: Any = getattr(transformers, architecture)
    model = kind(kind.config_class(**{**CONFIGS[architecture], **IDS, **more}))
    with torch.no_grad():
        for name, each in model.named_parameters():
            if name.endswith("sinks"):
                each.normal_()
            elif each.dim() > 1 and each is not model.get_input_embeddings().weight:
                each.mul_(4)
    return model.eval()


@cache
def _folders() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tiny-causal-")


@cache
def checkpoint(architecture: str) -> Path:
    """Return the folder of an architecture's checkpoint."""
    folder = Path(_folders().name) / architecture
    torch.manual_seed(0)
    model_of(architecture).save_pretrained(folder)
    byte_tokenizer().save_pretrained(folder)
    return folder
