"""The released dimensions, on meta tensors: every tensor belongs to a network that a stage loads, and the counts are the published ones."""

from __future__ import annotations

from typing import Any

import torch
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

TEXT = {
    "vocab_size": 152_064,
    "hidden_size": 3584,
    "intermediate_size": 18_944,
    "num_hidden_layers": 28,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [16, 24, 24]},
}
"""Qwen2.5-VL-7B, the text encoder of the released checkpoint."""

VISION = {"depth": 32, "hidden_size": 1280, "intermediate_size": 3420, "num_heads": 16, "out_hidden_size": 3584}


def billions(network: Any) -> float:
    return float(sum(each.numel() for each in network.parameters())) / 1e9


def test_the_networks_have_the_published_sizes() -> None:
    with torch.device("meta"):
        encoder = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=TEXT, vision_config=VISION))
        network = QwenImageTransformer2DModel()
        autoencoder = AutoencoderKLQwenImage()
    assert round(billions(network), 1) == 20.4
    assert round(billions(encoder), 1) == 8.3
    assert round(billions(autoencoder), 3) == 0.127
    assert {name.split(".")[0] for name in network.state_dict()} == {
        "img_in", "norm_out", "proj_out", "time_text_embed", "transformer_blocks", "txt_in", "txt_norm",
    }  # fmt: skip
    assert len({name.split(".")[1] for name in network.state_dict() if name.startswith("transformer_blocks.")}) == 60
