"""Weights of 8 bits with scales: checkpoints that hold them, and the layers that a stage on a GPU makes of any."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import LAYERS, logits_of
from quantized_checkpoints import write_scaled
from qwen_stages import create_thinker
from safetensors.torch import load_file, save_file
from torch import nn

from omni_core.errors import ConfigError
from omni_qwen3 import external_decoder, thinker_network
from omni_qwen3.checkpoint import open_checkpoint
from omni_qwen3.config import read_config
from omni_qwen3.external_decoder import load_external
from omni_qwen3.layers import Experts
from omni_qwen3.thinker_network import Thinker, load_thinker
from omni_torch.checkpoints.weights import Checkpoint
from omni_torch.operations.few_rows import widened
from omni_torch.processes.tensor_parallel import ALONE, TensorParallel
from omni_torch.quantization import quantized_linear
from omni_torch.quantization.quantized_linear import quantize_for
from omni_torch.quantization.scaled_checkpoints import ScaledCheckpoint
from omni_torch.quantization.scaled_linear import GPU_QUANTIZATIONS, ScaledLinear

FORMATS: dict[str, dict[str, Any]] = {
    "fp8 in blocks": {"block": (24, 48)},
    "fp8 in blocks, scales as divisors": {"block": (24, 48), "divisors": True},
    "fp8 with a scale per tensor": {"strategy": "tensor"},
    "llm-compressor, per output": {"method": "compressed-tensors", "strategy": "channel"},
    "llm-compressor, in blocks": {"method": "compressed-tensors", "strategy": "block", "block": (16, 32)},
    "llm-compressor, int8": {"method": "compressed-tensors", "strategy": "channel", "kind": torch.int8},
}


def load(folder: Path, **options: Any) -> Thinker:
    return load_thinker(str(folder), read_config(folder), **options)


@pytest.mark.parametrize("name", FORMATS)
def test_weights_are_those_that_the_format_defines(tiny: dict[str, Path], tmp_path: Path, name: str) -> None:
    """Of ranks as well. Blocks are cut off at the ends: the sizes are multiples of nothing."""
    write_scaled(tiny["a"], tmp_path / "narrow", LAYERS, plain=tmp_path / "plain", **FORMATS[name])
    for parallel in (ALONE, TensorParallel(1, 2)):
        made, exact = (load(tmp_path / each, parallel=parallel).state_dict() for each in ("narrow", "plain"))
        assert made.keys() == exact.keys()
        for each, tensor in made.items():
            torch.testing.assert_close(tensor, exact[each], rtol=1e-6, atol=0)
    stored = {each.dtype for each in load_file(tmp_path / "narrow" / "model.safetensors").values()}
    assert FORMATS[name].get("kind", torch.float8_e4m3fn) in stored


@pytest.fixture(scope="module")
def narrow(tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("narrow") / "checkpoint"
    write_scaled(tiny["a"], target, LAYERS, block=(24, 48))
    return target


WEIGHTS = {"num_bits": 8, "type": "float", "strategy": "channel"}


@pytest.mark.parametrize(
    ("section", "message"),
    [
        (
            {"quant_method": "fp8", "fmt": "e5m2"},
            r"quantization_config\.fmt is 'e5m2', which cannot be read; there are: e4m3",
        ),
        ({"quant_method": "fp8", "weight_block_size": [128]}, r"weight_block_size is \[128\], .* such as \[128, 128\]"),
        ({"quant_method": "compressed-tensors"}, "config_groups is None"),
        (
            {"format": "marlin-24", "config_groups": {"g": {"weights": WEIGHTS}}},
            r"quantization_config\.format is 'marlin-24', which cannot be read; there are: float-quantized, int-quantized, "
            "naive-quantized, pack-quantized",
        ),
        (
            {"config_groups": {"g": {"format": "nvfp4-pack-quantized", "weights": WEIGHTS}}},
            "format is 'nvfp4-pack-quantized'",
        ),
        (
            {"config_groups": {"g": {"weights": WEIGHTS}}, "sparsity_config": {"format": "sparse-24-bitmask"}},
            "sparse-24-bitmask",
        ),
        (
            {"config_groups": {"g": {"weights": WEIGHTS}}, "transform_config": {"config_groups": {"R1": {}}}},
            r"transform_config is .* there are: none",
        ),
        (
            {"config_groups": {"g": {"weights": {**WEIGHTS, "num_bits": 4}}}},
            r"config_groups\.g\.weights is .*; there are: num_bits 8",
        ),
        ({"config_groups": {"g": {"weights": {**WEIGHTS, "symmetric": False}}}}, r"g\.weights\.symmetric is False"),
        ({"config_groups": {"g": {"weights": {**WEIGHTS, "strategy": "group"}}}}, r"g\.weights\.strategy is 'group'"),
        (
            {
                "config_groups": {
                    name: {"weights": {**WEIGHTS, "strategy": "block", "block_structure": [size, size]}}
                    for name, size in (("g", 64), ("h", 128))
                }
            },
            "blocks of one shape",
        ),
    ],
)
def test_other_ways_of_quantisation_are_named(
    narrow: Path, tmp_path: Path, section: dict[str, Any], message: str
) -> None:
    copy = Path(shutil.copytree(narrow, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "compressed-tensors", **section}
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message) as raised:
        load(copy)
    assert str(copy) in str(raised.value)


@pytest.mark.parametrize(
    ("part", "change", "message"),
    [
        ("weight_scale_inv", lambda each: None, r"up_proj.weight' is torch.float8_e4m3fn .* scales, .weight_scale_inv or .weight_scale"),
        ("weight_scale_inv", lambda each: each[:, :-1], r"weight_scale_inv' is torch.float32 .* asks for \[2, 2\], blocks of \[24, 48\]"),
        ("weight_scale_inv", lambda each: each * torch.nan, "asks for finite numbers"),
        ("weight_scale_inv", lambda each: each * 0, "asks for numbers other than 0 for values other than 0"),
        ("weight_zero_point", lambda each: torch.tensor([0, 1, 0]), r"weight_zero_point' .* asks for no zero points"),
        ("weight", lambda each: each.float(), "up_proj.weight' is torch.float32 .* asks for a matrix of float8_e4m3fn or int8"),
    ],
)  # fmt: skip
def test_missing_and_wrong_tensors_are_named(
    narrow: Path, tmp_path: Path, part: str, change: Any, message: str
) -> None:
    copy = Path(shutil.copytree(narrow, tmp_path / "copy"))
    tensors = load_file(copy / "model.safetensors")
    name = f"thinker.model.layers.1.mlp.experts.3.up_proj.{part}"
    assert tensors["thinker.model.layers.1.mlp.experts.3.up_proj.weight_scale_inv"].shape == (2, 2)
    tensors[name] = change(tensors.get(name))
    save_file({key: each.contiguous() for key, each in tensors.items() if each is not None}, copy / "model.safetensors")
    with pytest.raises(ConfigError, match=message) as raised:
        load(copy)
    assert str(copy / "model.safetensors") in str(raised.value)


def test_a_checkpoint_whose_config_says_nothing_of_its_scales_is_refused(narrow: Path, tmp_path: Path) -> None:
    """Its values would be read as weights."""
    copy = Path(shutil.copytree(narrow, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    del config["quantization_config"]
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ConfigError, match=r"is stored as float8_e4m3fn, with scales that config\.json does not describe"
    ):
        load(copy)


def test_scales_of_zeros_may_be_zero_and_floats_have_the_dtype_that_is_asked_for(tmp_path: Path) -> None:
    values = torch.ones(4, 32)
    values[1] = 0
    scales = torch.tensor([[0.5], [0.0], [2.0], [3.0]])
    save_file(
        {"x.weight": values.to(torch.float8_e4m3fn), "x.weight_scale": scales, "y.weight": torch.ones(2)},
        tmp_path / "model.safetensors",
    )
    section = {"quant_method": "compressed-tensors", "config_groups": {"g": {"weights": WEIGHTS}}}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": section}))
    checkpoint = open_checkpoint(tmp_path)
    for dtype in (None, torch.bfloat16):
        found = checkpoint.read(["x.weight", "y.weight"], dtype=dtype)
        assert found["x.weight"].dtype == (dtype or torch.float32)
        assert found["y.weight"].dtype == torch.float32, "stored ones keep theirs"
        assert torch.equal(found["x.weight"].float(), values * scales)


def test_what_has_no_scales_is_refused_and_divisors_are_told_by_scales_that_are_used(tmp_path: Path) -> None:
    values = torch.zeros(2, 4)
    values[:, 2:] = 1
    tensors = {
        "x.weight": values.to(torch.float8_e4m3fn), "x.weight_scale_inv": torch.tensor([[0.0, 100.0]]),
        "y.weight": torch.ones(2, 2).to(torch.int8), "rows.weight": torch.ones(3, 4).to(torch.float8_e4m3fn),
        "rows.weight_scale": torch.full((3, 1), 0.5),
    }  # fmt: skip
    save_file(tensors, tmp_path / "model.safetensors")
    section = {"quant_method": "fp8", "weight_block_size": [2, 2]}
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": section}))
    checkpoint = open_checkpoint(tmp_path)
    torch.testing.assert_close(checkpoint.read(["x.weight"])["x.weight"], values / 100)
    assert torch.equal(checkpoint.read_rows("rows.weight", [2, 0]), torch.full((2, 4), 0.5))
    with pytest.raises(ConfigError, match=r"'y\.weight' is torch\.int8 .* scales"):
        checkpoint.read(["y.weight"])
    with pytest.raises(ConfigError, match="is stored as float8_e4m3fn, with scales that config"):
        Checkpoint(tmp_path).read(["x.weight"])
    with pytest.raises(ConfigError, match="is stored as float8_e4m3fn, with scales that config"):
        Checkpoint(tmp_path).read_rows("rows.weight", [0])


def test_a_stage_reads_weights_in_its_dtype(narrow: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The host holds no network in float32 on the way."""
    asked: list[torch.dtype | None] = []
    plain = ScaledCheckpoint.read

    def read(self: ScaledCheckpoint, names: Any, part_of: Any = None, dtype: torch.dtype | None = None) -> Any:
        asked.append(dtype)
        return plain(self, names, part_of, dtype)

    monkeypatch.setattr(ScaledCheckpoint, "read", read)
    load(narrow, dtype="bfloat16")
    assert asked == [torch.bfloat16]


def test_a_decoder_of_another_distribution_reads_what_the_format_defines(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_scaled(tiny["a"], tmp_path / "narrow", LAYERS, plain=tmp_path / "plain")
    name, shape, found = "layers.1.self_attn.qkv_proj.weight", torch.Size([0]), []

    def build(text: Any, read: Any, head: torch.Tensor, **options: Any) -> Any:
        found.append(read(name, shape))

    monkeypatch.setattr(external_decoder, "load", lambda reference: build)
    for folder in ("narrow", "plain"):
        config = read_config(tmp_path / folder)
        load_external("other:decoder", str(tmp_path / folder), config, dtype="float32", device="cpu")
    torch.testing.assert_close(*found, rtol=1e-6, atol=0)
    assert found[0].abs().max() < 100


# --- the layers of a stage on a GPU --------------------------------------------------------------------------------------
@pytest.fixture
def as_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make a stage on the CPU have the layers of one on a GPU; the tiny model's weights are large enough for them."""
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    monkeypatch.setattr(quantized_linear, "LEAST_VALUES", 0)
    monkeypatch.setattr(thinker_network, "quantize_for", lambda name, device: quantize_for(name, "cuda:0"))


def dequantized(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of a plain network with the values of a narrow one."""
    state = {}
    for name, module in model.named_modules():
        if isinstance(module, ScaledLinear):
            state[f"{name}.weight"] = widened(module._weight, module.scales, torch.float32)
            if module._bias is not None:
                state[f"{name}.bias"] = module._bias
        elif isinstance(module, Experts):
            for kind, scales in (("gate_up", module.gate_up_scales), ("down", module.down_scales)):
                assert scales is not None
                state[f"{name}.{kind}_proj"] = getattr(module, f"{kind}_proj").float() * scales.unsqueeze(-1)
    plain = {
        name: each for name, each in model.state_dict().items() if not name.endswith(("_weight", "_scales", "_bias"))
    }
    return {**plain, **state}


@pytest.mark.usefixtures("as_on_a_gpu")
@pytest.mark.parametrize("name", GPU_QUANTIZATIONS)
def test_a_network_computes_with_what_its_weights_were_rounded_to(tiny: dict[str, Path], name: str) -> None:
    model, plain = load(tiny["a"], quantization=name), load(tiny["a"])
    assert not [each for each in model.modules() if type(each) is nn.Linear and each.in_features % 16 == 0]
    mixtures = [each for each in model.modules() if isinstance(each, Experts)]
    assert mixtures
    assert all(each.gate_up_proj.dtype == each.down_proj.dtype != torch.float32 for each in mixtures)
    pairs = zip(mixtures[0].matrices(), mixtures[0].gate_up_scales, mixtures[0].down_scales, strict=True)  # type: ignore[arg-type]
    for (first, second), *scales in pairs:
        assert torch.equal(first.scales, scales[0])
        assert torch.equal(second.scales, scales[1])
    exact = logits_of(plain)
    plain.load_state_dict(dequantized(model))
    rounded, made = logits_of(plain), logits_of(model)
    assert (made - rounded).norm() < 1e-5 * exact.norm(), "the same products"
    assert 1e-3 * exact.norm() < (rounded - exact).norm() < 0.2 * exact.norm()


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_rank_rounds_its_own_experts(tiny: dict[str, Path]) -> None:
    parallel = TensorParallel(1, 2)
    mine = load(tiny["a"], quantization="int8_weight_only", parallel=parallel, expert_parallel=True)
    whole = load(tiny["a"], quantization="int8_weight_only")
    for name, module in mine.named_modules():
        if isinstance(module, Experts):
            held, all_of = module._held, whole.get_submodule(name)
            assert held is not None
            for each in ("gate_up_proj", "gate_up_scales", "down_proj", "down_scales"):
                assert torch.equal(getattr(module, each), getattr(all_of, each)[held.start : held.stop])


@pytest.mark.usefixtures("as_on_a_gpu")
def test_a_checkpoint_in_fp8_per_output_is_not_rounded_again(tiny: dict[str, Path], tmp_path: Path) -> None:
    write_scaled(tiny["a"], tmp_path / "narrow", LAYERS, method="compressed-tensors", strategy="channel")
    stored = load_file(tmp_path / "narrow" / "model.safetensors")
    model = load(tmp_path / "narrow", quantization="float8_weight_only", dtype="bfloat16")
    name = "model.layers.1.self_attn.o_proj"
    values = stored[f"thinker.{name}.weight"]
    layer = model.get_submodule(name)
    assert isinstance(layer, ScaledLinear)
    assert torch.equal(layer.matrix.weight.view(torch.uint8), values.view(torch.uint8))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("name", GPU_QUANTIZATIONS)
def test_a_gpu_computes_with_what_the_weights_were_rounded_to(
    tiny: dict[str, Path], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantized_linear, "LEAST_VALUES", 0)
    model = load(tiny["a"], quantization=name, dtype="bfloat16", device="cuda:0")
    assert {each.device.type for each in model.state_dict().values()} == {"cuda"}
    plain = load(tiny["a"])
    plain.load_state_dict(dequantized(model.cpu()))
    exact = logits_of(plain)
    with torch.device("cuda:0"):
        made = logits_of(model.cuda())
    assert (made.cpu() - exact).norm() < 0.05 * exact.norm()


def test_a_name_is_checked_before_the_weights_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))
    with pytest.raises(ConfigError, match=r"quantization: 'float8_weight_only' needs a GPU of compute capability 8\.9"):
        create_thinker(str(tmp_path / "missing"), quantization="float8_weight_only", device="cuda:0")
