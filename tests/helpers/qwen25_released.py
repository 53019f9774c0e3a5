"""The configs of the released checkpoints, the shapes of their tensors, and stand-ins for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from omni_testing.stand_in import write_stand_in

ROPE = {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]}
RELEASED = {
    "7B": {
        "text": {"hidden_size": 3584},
        "talker": {"embedding_size": 3584, "hidden_size": 896, "num_attention_heads": 12, "num_hidden_layers": 24},
    },
    "3B": {
        "text": {"hidden_size": 2048, "num_hidden_layers": 36, "num_attention_heads": 16, "num_key_value_heads": 2,
            "intermediate_size": 11008, "vocab_size": 151936},
        "talker": {"embedding_size": 2048, "hidden_size": 896, "num_attention_heads": 12, "num_hidden_layers": 24},
    },
}  # fmt: skip
"""The dimensions in which the released configs differ from transformers' defaults (second-hand: from printed copies)."""


def released(size: str) -> dict[str, Any]:
    """Return a config with transformers' defaults for the rest."""
    from transformers import Qwen2_5OmniConfig

    dims = RELEASED[size]
    width = dims["text"]["hidden_size"]
    raw: dict[str, Any] = Qwen2_5OmniConfig(
        thinker_config={
            "text_config": {**dims["text"], "rope_parameters": ROPE},
            "audio_config": {"output_dim": width},
            "vision_config": {"hidden_size": 1280, "out_hidden_size": width},
        },
        talker_config={**dims["talker"], "rope_parameters": ROPE},
        token2wav_config={},
    ).to_dict()
    return raw


def released_shapes(raw: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a checkpoint's tensors by their names on disk, as transformers' model has them."""
    from transformers import Qwen2_5OmniConfig, Qwen2_5OmniForConditionalGeneration

    with torch.device("meta"):
        reference = Qwen2_5OmniForConditionalGeneration(Qwen2_5OmniConfig(**raw))
    names = {"thinker.model.audio_tower.": "thinker.audio_tower.", "thinker.model.visual.": "thinker.visual.",
        "thinker.model.language_model.": "thinker.model."}  # fmt: skip
    there = {}
    for name, tensor in reference.state_dict().items():
        for new, released_name in names.items():
            name = name.replace(new, released_name)
        there[name] = tuple(tensor.shape)
    return there


def write_released(folder: Path, size: str = "7B") -> Path:
    """Write a stand-in for a released checkpoint, whose weights are holes in sparse files; return its folder."""
    raw = released(size)
    write_stand_in(folder, {**raw, "architectures": ["Qwen2_5OmniModel"]}, released_shapes(raw))
    return folder
