"""The work that plans are made with is that of diffusers' and transformers' networks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from attrs import evolve
from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel
from torch.utils.flop_counter import FlopCounterMode
from transformers import Qwen2_5_VLConfig, Qwen2_5_VLForConditionalGeneration

from omni_core.errors import ConfigError
from omni_diffusion.qwen_image.autoencoder import _for_one_frame, _frame
from omni_diffusion.qwen_image.works import decoder_work, denoiser_work, encoder_work, read_config, works_of
from omni_torch.placement.work import Ask, Counts, PassWork

TEXT = {
    "vocab_size": 100, "hidden_size": 128, "intermediate_size": 320, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "mrope_section": [4, 6, 6]},
}  # fmt: skip
TRANSFORMER = {
    "in_channels": 16, "out_channels": 4, "num_layers": 3, "attention_head_dim": 32, "num_attention_heads": 4,
    "joint_attention_dim": 48, "axes_dims_rope": (8, 12, 12),
}  # fmt: skip
VAE = {"base_dim": 16, "z_dim": 4, "dim_mult": [1, 2, 4, 4], "num_res_blocks": 2}


def flops_of(function: Any) -> float:
    with torch.no_grad(), FlopCounterMode(display=False) as counted:
        function()
    return float(counted.get_total_flops())


def asked(work: PassWork, positions: int) -> float:
    return work.demand(Counts(positions=positions, pairs=positions**2), 2).flops


def matrices(network: torch.nn.Module, *without: str) -> int:
    return sum(
        each.numel() for name, each in network.named_parameters() if each.ndim > 1 and not name.startswith(without)
    )


def test_a_step_of_the_denoising_network() -> None:
    """Beside what each position takes, modulations are computed once for a row: less than a hundredth of 600 positions."""
    with torch.device("meta"):
        network = QwenImageTransformer2DModel(**TRANSFORMER).eval()
        rows = {"hidden_states": torch.zeros(2, 576, 16), "encoder_hidden_states": torch.zeros(2, 24, 48)}
        counted = flops_of(lambda: network(**rows, timestep=torch.zeros(2), img_shapes=[[(1, 24, 24)]] * 2))
    work = denoiser_work(TRANSFORMER)
    assert asked(work, 600) == pytest.approx(counted, rel=0.01)
    assert asked(evolve(work, pair=0.0), 600) < 0.8 * counted, "attention counts"
    assert work.weights == matrices(network)


def test_the_released_denoising_network() -> None:
    with torch.device("meta"):
        network = QwenImageTransformer2DModel()
    assert denoiser_work({}).weights == matrices(network)


@pytest.mark.parametrize("config", [VAE, {"base_dim": 8, "z_dim": 16, "dim_mult": [1, 2, 4], "num_res_blocks": 1}])
def test_the_decoder(config: dict[str, Any]) -> None:
    """As it runs here: the last slices of convolutions over frames, for one frame."""
    levels = len(config["dim_mult"])
    with torch.device("meta"):
        network = AutoencoderKLQwenImage(**config, temperal_downsample=[False, True, True][: levels - 1])
        layers = torch.nn.ModuleList([network.decoder, network.post_quant_conv]).eval()
        _for_one_frame(layers)
        latents = torch.zeros(1, config["z_dim"], 24, 24)
        counted = flops_of(lambda: layers[0](layers[1](_frame(latents))))
    work = decoder_work(config)
    assert asked(work, 24 * 24) == pytest.approx(counted, rel=1e-6)
    slices = sum(each.weight.numel() for each in layers.modules() if hasattr(each, "weight") and each.weight.ndim == 4)
    assert work.weights == slices


def test_the_text_encoder() -> None:
    with torch.device("meta"):
        vision = {"depth": 1, "hidden_size": 16, "intermediate_size": 32, "num_heads": 2, "out_hidden_size": 128}
        network = Qwen2_5_VLForConditionalGeneration(Qwen2_5_VLConfig(text_config=TEXT, vision_config=vision)).eval()
        ids = torch.zeros(2, 40, dtype=torch.long)
    decoder = network.model.language_model
    counted = flops_of(lambda: decoder(inputs_embeds=decoder.embed_tokens(ids), use_cache=False)) / 2
    work = encoder_work({"text_config": TEXT, "vision_config": vision})
    assert work.weights == matrices(decoder, "embed_tokens")
    assert work.weights + work.unread == sum(each.numel() for each in network.parameters() if each.ndim > 1), (
        "all are in memory"
    )
    assert asked(evolve(work, pair=2 * work.pair), 40) == pytest.approx(counted, rel=1e-3), (
        "without a kernel for masks all pairs count"
    )


def test_a_request() -> None:
    works = works_of({"text_config": TEXT}, TRANSFORMER, VAE)
    usual = works.visits(Ask(text=60))
    assert usual["denoise"].positions == 64 * 64 + 60
    assert usual["denoise"].outputs == 50
    assert usual["decode"].positions == 128 * 128
    assert usual["encode"].positions == 60 + 34
    small = works.visits(Ask(text=60, drawn=256 * 256, steps=8))
    assert (small["denoise"].positions, small["denoise"].outputs, small["decode"].positions) == (256 + 60, 8, 1024)
    edited = works.visits(Ask(text=60, pixels=1))
    assert edited["denoise"].positions == 2 * 4096 + 60 + 1337
    assert edited["encode"].positions == 60 + 1337 + 64


def test_a_component_without_a_config_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"vae/config\.json"):
        read_config(str(tmp_path), "vae")
    (tmp_path / "vae").mkdir()
    (tmp_path / "vae" / "config.json").write_text(json.dumps({"base_dim": 7}))
    assert read_config(str(tmp_path), "vae") == {"base_dim": 7}


def test_no_torch_is_imported() -> None:
    code = "import sys, omni_diffusion.qwen_image.pipeline as module; assert module.works; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
