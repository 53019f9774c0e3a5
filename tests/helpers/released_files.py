"""The shapes of the released checkpoint's tensors, and a stand-in for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from released import RELEASED

from omni_testing.stand_in import write_stand_in

Shapes = dict[str, tuple[int, ...]]

ENCODERS: Shapes = {
    "thinker.visual.all": (538_631_408,),
    "thinker.audio_tower.all": (647_927_168,),
    "code2wav.all": (216_016_577,),
}
"""One tensor for each of the encoders and the vocoder, with all of their values."""


def released_shapes(raw: dict[str, Any]) -> Shapes:
    """The decoders' tensors under their on-disk names, from the config alone."""
    thinker, talker = raw["thinker_config"]["text_config"], raw["talker_config"]["text_config"]
    shapes: Shapes = {
        **dict(_decoder("thinker.model.", thinker)),
        "thinker.model.embed_tokens.weight": (thinker["vocab_size"], thinker["hidden_size"]),
        "thinker.lm_head.weight": (thinker["vocab_size"], thinker["hidden_size"]),
        **dict(_decoder("talker.model.", talker)),
        "talker.model.codec_embedding.weight": (talker["vocab_size"], talker["hidden_size"]),
        "talker.codec_head.weight": (talker["vocab_size"], talker["hidden_size"]),
    }
    for part in ("text_projection", "hidden_projection"):
        wide, inner, narrow = thinker["hidden_size"], talker["intermediate_size"], talker["hidden_size"]
        shapes |= {f"talker.{part}.linear_fc1.weight": (inner, wide), f"talker.{part}.linear_fc1.bias": (inner,)}
        shapes |= {f"talker.{part}.linear_fc2.weight": (narrow, inner), f"talker.{part}.linear_fc2.bias": (narrow,)}
    predictor, groups = raw["talker_config"]["code_predictor_config"], raw["talker_config"]["num_code_groups"]
    shapes |= dict(_decoder("talker.code_predictor.model.", predictor))
    codes = (predictor["vocab_size"], predictor["hidden_size"])
    shapes |= {f"talker.code_predictor.model.codec_embedding.{each}.weight": codes for each in range(groups - 1)}
    shapes |= {f"talker.code_predictor.lm_head.{each}.weight": codes for each in range(groups - 1)}
    return shapes


def _decoder(prefix: str, config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    rows = {
        name: config[f"num_{kind}_heads"] * head_dim
        for name, kind in zip("qkv", ("attention", "key_value", "key_value"), strict=True)
    }
    for number in range(config["num_hidden_layers"]):
        layer = f"{prefix}layers.{number}."
        for name, count in rows.items():
            yield f"{layer}self_attn.{name}_proj.weight", (count, hidden)
        yield f"{layer}self_attn.o_proj.weight", (hidden, rows["q"])
        yield from ((f"{layer}self_attn.{name}_norm.weight", (head_dim,)) for name in "qk")
        yield from ((f"{layer}{name}_layernorm.weight", (hidden,)) for name in ("input", "post_attention"))
        sizes = {"": config["intermediate_size"]}
        if "num_experts" in config:
            sizes = {f"experts.{each}.": config["moe_intermediate_size"] for each in range(config["num_experts"])}
            yield f"{layer}mlp.gate.weight", (config["num_experts"], hidden)
        if shared := config.get("shared_expert_intermediate_size"):
            sizes["shared_expert."] = shared
            yield f"{layer}mlp.shared_expert_gate.weight", (1, hidden)
        for part, inner in sizes.items():
            yield from ((f"{layer}mlp.{part}{name}_proj.weight", (inner, hidden)) for name in ("gate", "up"))
            yield f"{layer}mlp.{part}down_proj.weight", (hidden, inner)
    yield f"{prefix}norm.weight", (hidden,)


def write_released(folder: Path) -> Path:
    """Write a stand-in for the released checkpoint; return its folder."""
    named = {"architectures": ["Qwen3OmniMoeForConditionalGeneration"], "model_type": "qwen3_omni_moe", **RELEASED}
    write_stand_in(folder, named, released_shapes(RELEASED) | ENCODERS)
    return folder
