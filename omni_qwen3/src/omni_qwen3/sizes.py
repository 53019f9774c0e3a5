"""Sizes of the weights of Qwen3-Omni from its ``config.json`` alone, for plans of a checkpoint whose weights are not there."""

from __future__ import annotations

from pathlib import Path

from omni_core.api import ConfigError
from omni_qwen3.config import DecoderConfig, QwenConfig
from omni_qwen3.works import works_of
from omni_torch.api import INDEX, SINGLE, PassWork, TensorInfo


def is_config_alone(model: str) -> bool:
    """Return whether a checkpoint is a folder without weights."""
    folder = Path(model).expanduser()
    return folder.is_dir() and not any((folder / name).exists() for name in (INDEX, SINGLE))


def with_weights(folder: str) -> str:
    """Return the folder. Raises ConfigError if it holds no weights, which only a plan does not need."""
    if is_config_alone(folder):
        raise ConfigError(f"{folder} holds no weights: neither {INDEX} nor {SINGLE}")
    return folder


def tensors_of(model: QwenConfig) -> dict[str, TensorInfo]:
    """Return a tensor for each kind of weight, of all layers together, under a name that begins and ends as those of the checkpoint."""
    thinker, talker, predictor = model.thinker, model.talker.text, model.talker.predictor
    wide, inner, groups = model.talker.thinker_hidden_size, talker.intermediate_size, model.talker.code_groups - 1
    values = {
        **decoder_sizes("thinker.model.", thinker),
        "thinker.model.embed_tokens.weight": thinker.vocab_size * thinker.hidden_size,
        "thinker.lm_head.weight": thinker.vocab_size * thinker.hidden_size,
        **decoder_sizes("talker.model.", talker),
        "talker.model.codec_embedding.weight": talker.vocab_size * talker.hidden_size,
        "talker.codec_head.weight": talker.vocab_size * talker.hidden_size,
        "talker.projections.linear_fc1.weight": 2 * inner * wide,
        "talker.projections.linear_fc2.weight": 2 * inner * talker.hidden_size,
        **decoder_sizes("talker.code_predictor.model.", predictor),
        "talker.code_predictor.model.codec_embedding.weight": groups * predictor.vocab_size * predictor.hidden_size,
        "talker.code_predictor.lm_head.weight": groups * predictor.vocab_size * predictor.hidden_size,
    }
    prefixes = {"image_encoder": "thinker.visual.", "audio_encoder": "thinker.audio_tower.", "code2wav": "code2wav."}
    works = works_of(model, set(prefixes)).stages
    for name, prefix in prefixes.items():
        work = works.get(name)
        if isinstance(work, PassWork):
            values[f"{prefix}all.weight"] = work.weights + work.unread
    return {name: TensorInfo("BF16", count) for name, count in values.items() if count}


def decoder_sizes(prefix: str, config: DecoderConfig) -> dict[str, int]:
    """Return the values of a decoder's layers by kind of weight."""
    hidden, layers = config.hidden_size, config.layers
    sparse = sum(config.is_sparse(layer) for layer in range(layers))
    queries, keys = config.heads * config.head_dim, config.kv_heads * config.head_dim
    rows = {"q_proj": queries, "k_proj": keys, "v_proj": keys, "o_proj": queries}
    found = {f"{prefix}layers.self_attn.{name}.weight": layers * count * hidden for name, count in rows.items()}
    found[f"{prefix}layers.norm.weight"] = layers * 2 * (hidden + config.head_dim) + hidden
    found[f"{prefix}layers.mlp.gate.weight"] = sparse * config.experts * hidden
    widths = {
        "mlp": (layers - sparse) * config.intermediate_size,
        "mlp.experts": sparse * config.experts * config.moe_intermediate_size,
        "mlp.shared_expert": sparse * config.shared_expert_size,
    }
    for part, width in widths.items():
        for name in ("gate_proj", "up_proj", "down_proj"):
            found[f"{prefix}layers.{part}.{name}.weight"] = width * hidden
    return found
