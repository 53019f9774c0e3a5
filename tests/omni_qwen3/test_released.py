"""Every tensor of the released 30B-A3B checkpoint is read by exactly one of our stages, in its shape. On meta tensors."""

from __future__ import annotations

import json
import re
from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from released import RELEASED
from released_files import ENCODERS, released_shapes
from safetensors import safe_open
from tiers import few
from torch import nn
from transformers import Qwen3OmniMoeConfig, Qwen3OmniMoeForConditionalGeneration

from omni_qwen3.audio_network import AudioEncoder
from omni_qwen3.checkpoint import sources
from omni_qwen3.code2wav_network import Code2Wav
from omni_qwen3.config import QwenConfig, parse_config, read_config
from omni_qwen3.talker_network import Talker
from omni_qwen3.thinker_network import Thinker
from omni_qwen3.vision_network import VisionEncoder

Shapes = dict[str, tuple[int, ...]]


def reference_model(raw: dict[str, Any]) -> nn.Module:
    with torch.device("meta"):
        model: nn.Module = Qwen3OmniMoeForConditionalGeneration(Qwen3OmniMoeConfig(**json.loads(json.dumps(raw))))
    return model


def on_disk(model: nn.Module) -> Shapes:
    """The reference's tensors under the names that released checkpoints use: experts one by one, older prefixes."""
    shapes: Shapes = {}
    for name, tensor in model.state_dict().items():
        name = name.replace("thinker.model.language_model.", "thinker.model.")
        name = re.sub(r"thinker\.model\.(audio_tower|visual)\.", r"thinker.\1.", name)
        if name.endswith("experts.gate_up_proj"):
            for expert in range(tensor.shape[0]):
                for part in ("gate_proj", "up_proj"):
                    shapes[name.replace("gate_up_proj", f"{expert}.{part}.weight")] = (
                        tensor.shape[1] // 2,
                        tensor.shape[2],
                    )
        elif name.endswith("experts.down_proj"):
            for expert in range(tensor.shape[0]):
                shapes[name.replace("down_proj", f"{expert}.down_proj.weight")] = tuple(tensor.shape[1:])
        else:
            shapes[name] = tuple(tensor.shape)
    return shapes


def ours(config: QwenConfig) -> list[tuple[str, Shapes]]:
    """Our part of the checkpoint by stage."""
    assert config.vocoder is not None
    with torch.device("meta"):
        own: dict[str, tuple[nn.Module, str]] = {
            "thinker": (Thinker(config.thinker), "thinker."),
            "talker_ar": (Talker(config.talker), "talker."),
            "image_encoder": (VisionEncoder(config.vision), "thinker.visual."),
            "audio_encoder": (AudioEncoder(config.audio), "thinker.audio_tower."),
            "code2wav": (Code2Wav(config.vocoder), "code2wav."),
        }
    return [(stage, read_by(stage, module, prefix, config)) for stage, (module, prefix) in own.items()]


def read_by(stage: str, module: nn.Module, prefix: str, config: QwenConfig) -> Shapes:
    """The tensors that a module reads."""
    shapes: Shapes = {}
    for name, tensor in module.state_dict().items():
        for source, shape in sources(name, tensor.shape):
            if shape is None:  # q, k and v: only their sum is fixed by the fused tensor
                shape = (rows_of(stage, name, source, config), *tensor.shape[1:])
            shapes[prefix + source] = shape
    return shapes


def rows_of(stage: str, name: str, source: str, config: QwenConfig) -> int:
    """The rows of a projection to queries, keys or values."""
    if stage == "audio_encoder":
        return config.audio.hidden_size
    decoders = {"thinker": config.thinker, "talker_ar": config.talker.text, "code2wav": config.vocoder}
    attention = config.talker.predictor if "code_predictor" in name else decoders[stage]
    assert attention is not None
    return (attention.heads if ".q_proj." in source else attention.kv_heads) * attention.head_dim


def account(config: QwenConfig, expected: Shapes) -> None:
    read: Shapes = {}
    for stage, shapes in ours(config):
        twice = read.keys() & shapes.keys()
        assert not twice, f"{stage} reads what another stage reads: {sorted(twice)[:3]}"
        read |= shapes
    assert not sorted(expected.keys() - read.keys())[:5], "left over"
    assert not sorted(read.keys() - expected.keys())[:5], "missing"
    assert {name: (read[name], shape) for name, shape in expected.items() if read[name] != shape} == {}


def test_every_tensor_of_the_released_config_is_accounted_for() -> None:
    reference = reference_model(RELEASED)
    expected = on_disk(reference)
    assert len(expected) > 27_000
    account(parse_config(RELEASED), expected)
    others = tuple(name.removesuffix("all") for name in ENCODERS)
    assert released_shapes(RELEASED) == {name: each for name, each in expected.items() if not name.startswith(others)}
    for prefix, (values,) in zip(others, ENCODERS.values(), strict=True):
        assert sum(prod(each) for name, each in expected.items() if name.startswith(prefix)) == values


@pytest.mark.parametrize("shape", few("abc", 2))
def test_the_names_are_those_that_are_really_written(tiny: dict[str, Path], shape: str) -> None:
    """The rule above, checked against files that transformers wrote."""
    written: Shapes = {}
    for path in tiny[shape].glob("*.safetensors"):
        with safe_open(path, "pt") as shard:
            written |= {name: tuple(shard.get_slice(name).get_shape()) for name in shard.keys()}  # noqa: SIM118
    config = read_config(tiny[shape])
    reference = reference_model(config.raw)
    assert on_disk(reference) == written
    account(config, written)


def test_released_numbers_are_read_as_they_are() -> None:
    config = parse_config(RELEASED)
    assert (config.thinker.heads, config.thinker.kv_heads, config.thinker.head_dim, config.thinker.rope_theta) == (
        32,
        4,
        128,
        1e6,
    )
    assert config.thinker.mrope_section == (24, 20, 20)
    assert (config.talker.text.shared_expert_size, config.talker.code_groups, config.talker.accept_hidden_layer) == (
        768,
        16,
        24,
    )
    assert config.talker.predictor.experts == 0
    assert config.talker.speakers["ethan"] == 2302
    assert (config.vision.side, config.vision.deepstack, config.vision.patch_values) == (48, (8, 16, 24), 1536)
    assert (config.audio.window, config.audio.attention_windows, config.audio.tokens(3000)) == (100, 8, 390)
    assert config.vocoder is not None
    assert (config.vocoder.head_dim, config.vocoder.norm_eps, config.vocoder.rope_theta) == (64, 1e-5, 1e4)
