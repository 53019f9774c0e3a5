"""A Qwen3-Omni thinker's weights in the formats of other engines.

Runs in their environments, which need numpy and safetensors, and gguf for GGUF. Text positions are the same in all three sections of the
rotary angles, so a thinker is a Qwen3-MoE model.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file

PREFIX = "thinker."


def thinker_tensors(checkpoint: Path) -> dict[str, Any]:
    """Return the float32 tensors of the thinker's decoder, by their names in Qwen3-MoE."""
    found = {}
    for path in sorted(checkpoint.glob("*.safetensors")):
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length))
        for name, each in header.items():
            if name.startswith((PREFIX + "model.", PREFIX + "lm_head.")):
                found[name.removeprefix(PREFIX)] = _floats(path, 8 + length, each)
    return found


def _floats(path: Path, begin: int, info: dict[str, Any]) -> Any:
    """Return a tensor in float32; NumPy has no bfloat16."""
    if info["dtype"] not in ("BF16", "F32"):
        raise SystemExit(f"{path} has a tensor of {info['dtype']}; give a checkpoint in float32 or bfloat16")
    first, end = info["data_offsets"]
    raw = np.fromfile(path, np.uint8, end - first, offset=begin + first)
    wide = raw.view(np.uint16).astype(np.uint32) << 16 if info["dtype"] == "BF16" else raw.view(np.uint32)
    return wide.view(np.float32).reshape(info["shape"])


def text_config(checkpoint: Path) -> dict[str, Any]:
    document = json.loads((checkpoint / "config.json").read_text())
    config: dict[str, Any] = document["thinker_config"]["text_config"]
    return config


def rope_theta(config: dict[str, Any]) -> float:
    theta: float = config.get("rope_theta") or config["rope_parameters"]["rope_theta"]
    return theta


def write_qwen3_moe(checkpoint: Path, folder: Path) -> None:
    """Write a checkpoint of ``Qwen3MoeForCausalLM``."""
    config = text_config(checkpoint)
    kept = (
        "attention_bias", "attention_dropout", "decoder_sparse_step", "head_dim", "hidden_act", "hidden_size", "initializer_range",
        "intermediate_size", "max_position_embeddings", "mlp_only_layers", "moe_intermediate_size", "norm_topk_prob",
        "num_attention_heads", "num_experts", "num_experts_per_tok", "num_hidden_layers", "num_key_value_heads", "rms_norm_eps",
        "vocab_size",
    )  # fmt: skip
    made = {
        **{name: config[name] for name in kept},
        "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "tie_word_embeddings": False, "torch_dtype": "float32",
        "rope_theta": rope_theta(config), "bos_token_id": 0, "eos_token_id": config["vocab_size"] - 1,
    }  # fmt: skip
    folder.mkdir(parents=True)
    save_file(thinker_tensors(checkpoint), folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(made))


NAMES = {
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output", "self_attn.q_norm": "attn_q_norm", "self_attn.k_norm": "attn_k_norm",
    "mlp.gate": "ffn_gate_inp",
}  # fmt: skip
EXPERTS = {"gate_proj": "ffn_gate_exps", "up_proj": "ffn_up_exps", "down_proj": "ffn_down_exps"}


def write_gguf(checkpoint: Path, path: Path, kind: str) -> None:
    """Write a GGUF file of architecture ``qwen3moe`` without a vocabulary.

    ``kind``: the name of a GGML type, for all matrices but routers.
    """
    import gguf
    from gguf import quants

    config, tensors = text_config(checkpoint), thinker_tensors(checkpoint)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_value_length(config["head_dim"])
    writer.add_rope_freq_base(rope_theta(config))
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_expert_count(config["num_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    writer.add_tokenizer_model("none")
    writer.add_vocab_size(config["vocab_size"])

    def add(name: str, value: Any) -> None:
        plain = value.ndim == 1 or name.endswith("ffn_gate_inp.weight")
        chosen = gguf.GGMLQuantizationType["F32" if plain else kind]
        writer.add_tensor(name, quants.quantize(np.ascontiguousarray(value), chosen), raw_dtype=chosen)

    add("token_embd.weight", tensors["model.embed_tokens.weight"])
    add("output_norm.weight", tensors["model.norm.weight"])
    add("output.weight", tensors["lm_head.weight"])
    for layer in range(config["num_hidden_layers"]):
        begin = f"model.layers.{layer}."
        for ours, theirs in NAMES.items():
            add(f"blk.{layer}.{theirs}.weight", tensors[f"{begin}{ours}.weight"])
        for ours, theirs in EXPERTS.items():
            each = [tensors[f"{begin}mlp.experts.{number}.{ours}.weight"] for number in range(config["num_experts"])]
            add(f"blk.{layer}.{theirs}.weight", np.stack(each))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
