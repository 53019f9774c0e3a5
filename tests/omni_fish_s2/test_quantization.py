"""The decoders with int8 weights: the quantised layers, and the logits of a prompt, which stay close."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from fish_cases import CASES
from fish_driving import GREEDY, create_semantic_ar, request_message, speak
from torch import nn

from omni_core.errors import ConfigError
from omni_fish_s2.slow import SlowDecoder
from omni_fish_s2.tiny_checkpoint import write_tiny_checkpoint
from omni_torch import few_rows, packed_linear
from omni_torch.few_rows import BFloat16Embedding, BFloat16Linear
from omni_torch.quantized_linear import LEAST_VALUES, Int8WeightLinear

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


def test_an_unknown_name_is_refused(tiny: dict[str, Path]) -> None:
    with pytest.raises(ConfigError, match=r"quantization: 'fp8' is unknown; there are: int8_weight_only"):
        create_semantic_ar(str(tiny["a"]), quantization="fp8")
