"""Checkpoints that are not whole: what is wrong and where."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from omni_core.errors import ConfigError
from omni_diffusion.qwen_image.checkpoint import Checkpoint
from omni_diffusion.qwen_image.decoder import create_decoder
from omni_diffusion.qwen_image.denoiser import create_denoiser
from omni_diffusion.qwen_image.encoder import Encoder, create_encoder
from omni_diffusion.qwen_image.pipeline import qwen_image


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


def changed(path: Path, **values: object) -> None:
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def test_code_in_a_checkpoint_is_neither_run_nor_asked_for(damaged: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    questions: list[object] = []
    monkeypatch.setattr("builtins.input", lambda *text: questions.append(text) or "y")
    for component, names in (("tokenizer", "tokenizer_config.json"), ("text_encoder", "config.json")):
        (damaged / component / "own.py").write_text(f"open({str(damaged / 'ran')!r}, 'w').close()\nclass Own: ...\n")
        code = {"AutoTokenizer": ["own.Own", None], "AutoConfig": "own.Own", "AutoModel": "own.Own"}
        changed(damaged / component / names, auto_map=code)
    changed(damaged / "tokenizer/tokenizer_config.json", tokenizer_class="Own")
    with pytest.raises(ConfigError, match=r"tokenizer cannot be read: ValueError: .* contains custom code"):
        create_encoder(str(damaged))
    assert (questions, (damaged / "ran").exists()) == ([], False)


def test_a_config_chooses_no_kernel_of_the_hub(damaged: Path) -> None:
    path = damaged / "text_encoder/config.json"
    parts = {name: {**json.loads(path.read_text()).get(name, {})} for name in ("text_config", "vision_config")}
    own = {"attn_implementation": "owner/kernel", "_attn_implementation": "owner/kernel"}
    changed(path, **own, **{name: {**each, **own} for name, each in parts.items() if each})
    network = Encoder(Checkpoint.open(str(damaged)), "cpu", None, 0)._network
    assert {each.config._attn_implementation for each in network.modules() if hasattr(each, "config")} == {"sdpa"}


def test_networks_are_read_from_safetensors_of_their_own_folder_alone(damaged: Path) -> None:
    (damaged / "text_encoder/adapter_config.json").write_text('{"base_model_name_or_path": "owner/name"}')
    with pytest.raises(ConfigError, match=r"adapter_config\.json: a checkpoint's networks have no adapters"):
        create_encoder(str(damaged))
    (damaged / "text_encoder/adapter_config.json").unlink()
    for component, create, name in (
        ("text_encoder", create_encoder, "pytorch_model.bin"),
        ("transformer", create_denoiser, "diffusion_pytorch_model.bin"),
        ("vae", create_decoder, "diffusion_pytorch_model.bin"),
    ):
        weights: dict[str, torch.Tensor] = {}
        for file in [*(damaged / component).glob("*.safetensors*")]:
            weights |= load_file(file) if file.suffix == ".safetensors" else {}
            file.unlink()
        torch.save(weights, damaged / component / name)
        with pytest.raises(ConfigError, match=f"{component} cannot be read: .*safetensors"):
            create(str(damaged))
