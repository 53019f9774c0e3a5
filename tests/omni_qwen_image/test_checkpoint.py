"""Checkpoints that are not whole: what is wrong and where."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from omni_core.errors import ConfigError
from omni_qwen_image.checkpoint import Checkpoint
from omni_qwen_image.decoder import create_decoder
from omni_qwen_image.denoiser import create_denoiser
from omni_qwen_image.pipeline import qwen_image


@pytest.fixture
def damaged(small: Path, tmp_path: Path) -> Path:
    shutil.copytree(small, tmp_path / "copy")
    return tmp_path / "copy"


def test_another_model_is_named(damaged: Path) -> None:
    (damaged / "model_index.json").write_text(json.dumps({"_class_name": "FluxPipeline"}))
    with pytest.raises(ConfigError, match="_class_name is 'FluxPipeline'; QwenImagePipeline and"):
        Checkpoint.open(str(damaged))
    (damaged / "model_index.json").unlink()
    with pytest.raises(ConfigError, match=r"model_index\.json: there is no such file"):
        Checkpoint.open(str(damaged))


def test_weights_that_are_missing_are_not_made_up(damaged: Path) -> None:
    (file,) = (damaged / "transformer").glob("*.safetensors")
    weights = load_file(file)
    del weights["proj_out.weight"]
    save_file(weights, file, {"format": "pt"})
    with pytest.raises(ConfigError, match=r"transformer: 1 weights are missing .*proj_out\.weight"):
        create_denoiser(str(damaged))


def test_a_component_that_cannot_be_read_is_named(damaged: Path) -> None:
    (damaged / "vae/config.json").write_text("{")
    with pytest.raises(ConfigError, match=r"vae cannot be read"):
        create_decoder(str(damaged))
    shutil.rmtree(damaged / "vae")
    with pytest.raises(ConfigError, match=r"vae: the checkpoint has no such folder"):
        create_decoder(str(damaged))
    (damaged / "scheduler/scheduler_config.json").write_text("[]")
    with pytest.raises(ConfigError, match=r"scheduler_config\.json must hold an object"):
        create_denoiser(str(damaged))


def test_stages_share_the_import_of_their_networks(small: Path) -> None:
    from diffusers import AutoencoderKLQwenImage, QwenImageTransformer2DModel

    networks = [QwenImageTransformer2DModel.__module__, AutoencoderKLQwenImage.__module__]
    assert all(stage.preload == networks for stage in qwen_image(str(small)).stages)
