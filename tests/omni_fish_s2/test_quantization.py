"""The decoders with int8 weights: the quantised layers, and the logits of a prompt, which stay close."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from fish_cases import CASES
from fish_driving import GREEDY, create_semantic_ar, request_message, speak
from quantized_checkpoints import write_scaled
from torch import nn

from omni_core.errors import ConfigError
from omni_fish_s2 import semantic
from omni_fish_s2.config import read_config
from omni_fish_s2.semantic import SpeechRunner
from omni_fish_s2.slow import SlowDecoder, load_decoders
from omni_testing.tiny.fish_s2 import write_tiny_checkpoint
from omni_torch.operations import few_rows
from omni_torch.operations.few_rows import BFloat16Embedding, BFloat16Linear
from omni_torch.quantization import packed_linear
from omni_torch.quantization.quantized_linear import LEAST_VALUES, Int8WeightLinear, quantize_for
from omni_torch.quantization.scaled_linear import GPU_QUANTIZATIONS, ScaledLinear

NAME = "int8_weight_only"


def first_logits(checkpoint: Path, quantization: str | None, least: int = 4) -> tuple[nn.Module, torch.Tensor]:
    """Return the model, and the logits of its first frame. ``least``: the frames that it makes at least."""
    stage = create_semantic_ar(str(checkpoint), quantization=quantization)
    model, seen = stage._runner.model, []
    compute_logits = model.compute_logits

    def record(hidden: torch.Tensor) -> torch.Tensor:
        logits = compute_logits(hidden)
        seen.append(logits.clone())
        return logits

    model.compute_logits = record  # type: ignore[method-assign]
    assert len(speak(stage, [request_message("r", checkpoint, CASES["plain"], GREEDY)])["r"]) >= least
    assert isinstance(model, nn.Module)
    return model, seen[0]


@pytest.mark.skipif(not torch.backends.cpu.get_cpu_capability().startswith("AVX"), reason="no int8 kernels here")
@pytest.mark.parametrize("shape", ["a", "b"])
def test_all_but_the_head_is_quantized_and_logits_stay_close(tiny: dict[str, Path], shape: str) -> None:
    """With a separate head (``b``), and with one that is the embeddings."""
    (model, got), (plain, expected) = (first_logits(tiny[shape], name) for name in (NAME, None))
    linears = {name: each for name, each in plain.named_modules() if isinstance(each, nn.Linear) and name != "output"}
    large = [name for name, each in linears.items() if each.weight.numel() >= LEAST_VALUES]
    assert large
    modules = dict(model.named_modules())
    assert all(isinstance(modules[name], Int8WeightLinear) for name in large)
    assert ("output" in modules) == (shape == "b")
    assert 0 < (got - expected).norm() / expected.norm() < 0.05


@pytest.mark.parametrize("shape", ["a", "b"])
def test_a_checkpoint_in_bfloat16_computes_in_float32_from_its_weights(
    shape: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = write_tiny_checkpoint(tmp_path / shape, shape=shape, dtype="bfloat16")
    plain, expected = first_logits(folder, None, least=2)
    monkeypatch.setattr(few_rows.few_rows_linear, "replaced", lambda device, dtype: True)
    monkeypatch.setattr(packed_linear, "LEAST_VALUES", 0)
    model, got = first_logits(folder, None, least=2)
    linears = {name for name, each in plain.named_modules() if isinstance(each, nn.Linear)}
    assert ("output" in linears) == (shape == "b"), "the head is the embeddings, or a matrix of its own"
    assert {name for name, each in model.named_modules() if isinstance(each, BFloat16Linear)} == linears
    assert {each.dtype for each in model.parameters()} == {torch.float32}
    torch.testing.assert_close(got, expected)
    modules = dict(model.named_modules())
    for name, layer in plain.named_modules():
        if isinstance(layer, nn.Embedding):
            assert isinstance(modules[name], BFloat16Embedding), name
            assert torch.equal(modules[name](torch.arange(len(layer.weight))), layer.weight), name
    assert isinstance(model, SlowDecoder)
    assert isinstance(plain, SlowDecoder)
    assert model.kv_layout == plain.kv_layout
    for rows in (1, 65):
        hidden = torch.randn(rows, model.hidden_size, generator=torch.Generator().manual_seed(rows))
        torch.testing.assert_close(model.compute_logits(hidden), plain.compute_logits(hidden))


@pytest.mark.parametrize("name", GPU_QUANTIZATIONS)
def test_the_layers_of_a_gpu_speak(tiny: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a CPU, which computes with what a stage on a GPU rounds weights to."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(semantic, "quantize_for", lambda name, device: quantize_for(name, "cuda:0" if name else device))
    (model, got), (_, expected) = (first_logits(tiny["a"], each, least=1) for each in (name, None))
    assert sum(isinstance(each, ScaledLinear) for each in model.modules()) > 4
    assert 0 < (got - expected).norm() / expected.norm() < 0.1


def test_nothing_of_a_stage_on_a_gpu_stays_on_the_cpu(tiny: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Not what is too small to be rounded either, although kernels of the CPU are there. The device is one without memory."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(few_rows.few_rows_linear, "replaced", lambda device, dtype: device == "cpu")
    feedback: Any = SimpleNamespace(bind=lambda model, device: None)
    runner = SpeechRunner.from_checkpoint(str(tiny["a"]), feedback, "meta", quantization="int8_weight_only")
    assert isinstance(runner.model, nn.Module)
    held = {}
    for name, module in runner.model.named_modules():
        held |= {f"{name}.{key}": each for key, each in vars(module).items() if isinstance(each, torch.Tensor)}
    held |= runner.model.state_dict()
    assert {name for name, each in held.items() if each.device.type == "cpu"} == {".candidates"}, "ids, for the host"
    linears = [each for each in runner.model.modules() if type(each) is nn.Linear]
    assert linears, "some are small"


def test_weights_in_fp8_are_those_that_the_format_defines(tiny: dict[str, Path], tmp_path: Path) -> None:
    pattern = r"(wqkv|wo|w1|w3)\.weight$"
    write_scaled(tiny["a"], tmp_path / "narrow", pattern, block=(24, 48), plain=tmp_path / "plain")
    made, exact = (
        load_decoders(str(tmp_path / each), read_config(str(tmp_path / each))).state_dict()
        for each in ("narrow", "plain")
    )
    for name, tensor in made.items():
        torch.testing.assert_close(tensor, exact[name], rtol=1e-6, atol=0)


def test_an_unknown_name_is_refused(tiny: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"quantization: 'fp8' is unknown; there are: int8_weight_only"):
        create_semantic_ar(str(tiny["a"]), quantization="fp8")
