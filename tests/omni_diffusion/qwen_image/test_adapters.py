"""LoRA adapters, chosen per request: equal to diffusers with the adapter loaded, and batches that do not mix them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import QwenImagePipeline, QwenImageTransformer2DModel
from peft import LoraConfig
from peft.utils import get_peft_model_state_dict
from stages_in_turn import Stages

from omni_core.errors import ConfigError, InvalidRequestError
from omni_diffusion.qwen_image.denoiser import create_denoiser

REQUEST: dict[str, Any] = {"prompt": "a red circle", "width": 64, "height": 64, "steps": 3, "seed": 1}


@pytest.fixture(scope="module")
def adapters(small: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Two adapters with random weights, in diffusers' format."""
    folder, paths = tmp_path_factory.mktemp("adapters"), {}
    for seed, name in enumerate(("sketch", "Oil")):
        torch.manual_seed(seed)
        network = QwenImageTransformer2DModel.from_pretrained(small / "transformer")
        network.add_adapter(
            LoraConfig(r=4, lora_alpha=8, target_modules=["to_q", "to_v", "to_out.0"], init_lora_weights=False)
        )
        QwenImagePipeline.save_lora_weights(folder / name, transformer_lora_layers=get_peft_model_state_dict(network))
        paths[name] = str(folder / name)
    return paths


def test_an_adapter_is_that_of_diffusers_and_no_other_requests(small: Path, adapters: dict[str, str]) -> None:
    plain, *_ = Stages(small).run(REQUEST)
    stages = Stages(small, adapters=adapters)
    found = stages.run(REQUEST, {**REQUEST, "adapter": "sketch"}, {**REQUEST, "adapter": "oil"}, REQUEST)
    pipe = QwenImagePipeline.from_pretrained(small)
    pipe.set_progress_bar_config(disable=True)
    pipe.load_lora_weights(adapters["sketch"], adapter_name="sketch")
    expected = pipe(
        REQUEST["prompt"],
        negative_prompt=" ",
        width=64,
        height=64,
        num_inference_steps=3,
        generator=torch.Generator().manual_seed(1),
        output_type="latent",
    ).images
    assert torch.allclose(found[1][0], expected, rtol=1e-5, atol=1e-5)
    for latents in (found[0][0], found[3][0]):
        assert torch.allclose(latents, plain[0], rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found[1][0], found[2][0], atol=1e-3)
    assert not torch.allclose(found[1][0], plain[0], atol=1e-3)


def test_an_unknown_adapter_is_refused_by_name(small: Path, adapters: dict[str, str]) -> None:
    with pytest.raises(InvalidRequestError, match=r"params\.adapter: must be one of: Oil, sketch, is 'sketsh'"):
        Stages(small, adapters=adapters).run({**REQUEST, "adapter": "sketsh"})
    with pytest.raises(InvalidRequestError, match=r"params\.adapter: no such parameter"):
        Stages(small).run({**REQUEST, "adapter": "sketch"})


def test_a_file_that_is_no_adapter_is_an_error_at_the_start(small: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adapters\.sketch: there is no file or folder /nowhere"):
        create_denoiser(str(small), adapters={"sketch": "/nowhere"})
    (tmp_path / "pytorch_lora_weights.safetensors").write_bytes(b"nonsense")
    with pytest.raises(ConfigError, match=r"adapters\.sketch: .* cannot be read"):
        create_denoiser(str(small), adapters={"sketch": str(tmp_path)})
