"""Checkpoints in GPTQ's and AWQ's formats: the weights that they define, in our layers, or an error that names what is wrong."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pytest
import torch
from networks import LAYERS, logits_of
from quantized_checkpoints import write_quantized
from safetensors.torch import load_file, save_file
from tiers import few

from omni_core.errors import ConfigError
from omni_qwen3.checkpoint import open_checkpoint
from omni_qwen3.config import read_config
from omni_qwen3.layers import Experts
from omni_qwen3.narrow import keep_narrow
from omni_qwen3.thinker_network import Thinker, load_thinker
from omni_torch.checkpoints.weights import Checkpoint
from omni_torch.operations.few_rows import Groups, widened
from omni_torch.processes.tensor_parallel import TensorParallel
from omni_torch.quantization.quantized_linear import GroupsLinear, Int4WeightLinear, Int8GroupsLinear

FORMATS: dict[str, dict[str, Any]] = {
    "gptq": {"group": 32},
    "gptq with zero points": {"group": 32, "symmetric": False},
    "gptq version 2": {"group": 32, "symmetric": False, "version": 2},
    "gptq with reordered inputs": {"group": 32, "symmetric": False, "reordered": True},
    "gptq, a scale per output": {"group": -1},
    "gptq in 8 bits": {"group": 32, "bits": 8},
    "gptq in 8 bits with zero points": {"group": 32, "bits": 8, "symmetric": False},
    "awq": {"group": 32, "method": "awq", "symmetric": False},
    "awq without zero points": {"group": 32, "method": "awq"},
    "llm-compressor": {"group": 32, "method": "compressed-tensors"},
    "llm-compressor with zero points": {"group": 32, "method": "compressed-tensors", "symmetric": False},
    "llm-compressor with reordered inputs": {"group": 32, "method": "compressed-tensors", "reordered": True},
    "llm-compressor, a scale per output": {"group": -1, "method": "compressed-tensors"},
    "llm-compressor in 8 bits": {"group": 32, "method": "compressed-tensors", "bits": 8},
}


def load(folder: Path) -> Thinker:
    return load_thinker(str(folder), read_config(folder))


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.parametrize("name", few(FORMATS, 6))
def test_logits_are_those_of_the_weights_that_the_format_defines(
    tiny: dict[str, Path], tmp_path: Path, name: str
) -> None:
    write_quantized(tiny["a"], tmp_path / "narrow", LAYERS, plain=tmp_path / "plain", **FORMATS[name])
    rounded, model = load(tmp_path / "plain"), load(tmp_path / "narrow")
    made, exact, plain = logits_of(model), logits_of(rounded), logits_of(load(tiny["a"]))
    narrow = {part: each for part, each in model.named_modules() if isinstance(each, GroupsLinear)}
    if "reordered" in name or name == "gptq in 8 bits with zero points":
        assert not narrow
        torch.testing.assert_close(made, exact, atol=1e-4, rtol=0)
        return
    bits = FORMATS[name].get("bits", 4)
    assert all(isinstance(each, Int8GroupsLinear if bits == 8 else Int4WeightLinear) for each in narrow.values())
    assert len(narrow) == 4 * (2 + 2 * 8), "queries, keys and values; outputs; two layers of each expert"
    assert not any(each.gate_up_proj.numel() for each in model.modules() if isinstance(each, Experts))
    parts = dict(rounded.named_modules())
    for part, layer in narrow.items():
        block, _, number = part.partition(".packed.")
        owner = parts[block]
        if isinstance(owner, Experts):
            wide = (owner.down_proj if int(number) % 2 else owner.gate_up_proj)[int(number) // 2]
        else:
            wide = owner.weight
        assert layer.matrix.scales is not None
        # The scale and its product are rounded to bfloat16: twice 2^-8.
        found = widened(layer.matrix.weight, layer.matrix.scales, torch.float32)
        torch.testing.assert_close(found, wide.detach(), rtol=2**-7, atol=0)
    # Some rows have other experts after rounding, in every layer of random weights, and those that follow read them.
    assert errors(made, exact).quantile(0.1) < 0.02
    assert (errors(plain, exact).median() > 0.1) == (bits == 4), "rounding to 4 bits is seen"


@pytest.mark.parametrize(
    "name", ["gptq", "gptq with zero points", "awq", "awq without zero points", "llm-compressor with zero points"]
)
def test_inputs_have_8_bits_if_asked_for(tiny: dict[str, Path], tmp_path: Path, name: str) -> None:
    folder = tmp_path / "narrow"
    write_quantized(tiny["a"], folder, LAYERS, plain=tmp_path / "plain", **FORMATS[name])
    kept = load(folder)
    made = load_thinker(str(folder), read_config(folder), quantization="int8_dynamic_activation_int4_weight")
    narrow = {part: each for part, each in kept.named_modules() if isinstance(each, Int4WeightLinear)}
    assert len(narrow) == 4 * (2 + 2 * 8)
    x = torch.randn(1, 256, generator=torch.Generator().manual_seed(0))
    for part, layer in narrow.items():
        other: Any = made.get_submodule(part)
        assert torch.equal(layer.matrix.weight, other.matrix.weight), part
        assert torch.equal(layer.matrix.scales, other.matrix.scales), part
        assert other.matrix.int8_inputs
        assert not layer.matrix.int8_inputs
        row = x[:, : 2 * layer.matrix.weight.shape[1]]
        assert errors(other(row), layer(row)).max() < 0.03, part


def errors(made: torch.Tensor, exact: torch.Tensor) -> torch.Tensor:
    """Return the relative error of each row."""
    relative: torch.Tensor = (made - exact).norm(dim=-1) / exact.norm(dim=-1)
    return relative


@pytest.mark.parametrize("group", few([32, 64, 128, -1], 2))
@pytest.mark.parametrize(
    ("method", "bits"), [("gptq", 4), ("gptq", 8), ("awq", 4), ("compressed-tensors", 4), ("compressed-tensors", 8)]
)
def test_every_value_is_the_one_of_the_format(tmp_path: Path, method: str, bits: int, group: int) -> None:
    weight = torch.randn(24, 256, generator=torch.Generator().manual_seed(group))
    (tmp_path / "source").mkdir()
    save_file({"layer.weight": weight}, tmp_path / "source" / "model.safetensors")
    (tmp_path / "source" / "config.json").write_text("{}")
    for symmetric in (False, True):
        target, plain = tmp_path / f"{symmetric}", tmp_path / f"plain {symmetric}"
        write_quantized(
            tmp_path / "source",
            target,
            "weight",
            method=method,
            bits=bits,
            group=group,
            symmetric=symmetric,
            plain=plain,
        )
        exact = load_file(plain / "model.safetensors")["layer.weight"]
        checkpoint = open_checkpoint(target)
        kept = None if bits == 8 and not symmetric else Groups(bits, zero_points=not symmetric)
        assert checkpoint.narrow(["layer.weight"]) == kept
        if kept is None:
            assert torch.equal(checkpoint.read(["layer.weight"])["layer.weight"], exact)
            continue
        read = checkpoint.read(["layer.weight", "layer._weight", "layer._scales"])
        assert torch.equal(read["layer.weight"], exact)
        narrow = widened(read["layer._weight"], read["layer._scales"], torch.float32)
        torch.testing.assert_close(narrow, exact, rtol=2**-7, atol=0)
        assert read["layer._scales"].shape == ((24, 8) if symmetric else (24, 2, 8))
        assert torch.equal(checkpoint.read(["layer.weight"], lambda name: None)["layer.weight"], exact)


@pytest.mark.usefixtures("with_kernels")
@pytest.mark.parametrize("bits", [4, 8])
def test_layers_that_are_not_whole_groups_become_floats(tmp_path: Path, bits: int) -> None:
    (tmp_path / "source").mkdir()
    save_file({"layer.weight": torch.randn(64, 48)}, tmp_path / "source" / "model.safetensors")
    (tmp_path / "source" / "config.json").write_text("{}")
    write_quantized(tmp_path / "source", tmp_path / "narrow", "weight", bits=bits, group=-1)
    with torch.device("meta"):
        model = torch.nn.ModuleDict({"layer": torch.nn.Linear(48, 64, bias=False)})
    keep_narrow(model, open_checkpoint(tmp_path / "narrow"), lambda name, shape: [name], None, torch.float32)
    assert type(model["layer"]) is torch.nn.Linear


def test_some_layers_may_be_plain(tiny: dict[str, Path], tmp_path: Path) -> None:
    pattern = r"^thinker\.model\.layers\.[12]\.(self_attn\.[qk]_proj|mlp\.experts\.[0-4]\..*)\.weight$"
    write_quantized(tiny["a"], tmp_path / "narrow", pattern, group=32, plain=tmp_path / "plain")
    model = load(tmp_path / "narrow")
    assert not [each for each in model.modules() if isinstance(each, Int4WeightLinear)]
    torch.testing.assert_close(logits_of(model), logits_of(load(tmp_path / "plain")), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", ["gptq with zero points", "gptq with reordered inputs", "awq", "llm-compressor"])
def test_ranks_have_exactly_the_weights_that_the_format_defines(
    tiny: dict[str, Path], tmp_path: Path, name: str
) -> None:
    write_quantized(tiny["a"], tmp_path / "narrow", LAYERS, plain=tmp_path / "plain", **FORMATS[name])
    for rank in range(2):
        parallel = TensorParallel(rank, 2)
        made, exact = (
            load_thinker(str(folder), read_config(folder), parallel=parallel).state_dict()
            for folder in (tmp_path / "narrow", tmp_path / "plain")
        )
        assert made.keys() == exact.keys()
        assert not [each for each in made if not torch.equal(made[each], exact[each])]


def test_orders_of_inputs_and_zero_points_are_read_together(
    tiny: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_quantized(tiny["a"], tmp_path / "narrow", LAYERS, group=32, reordered=True)
    reads = []
    plain_read = Checkpoint._stored

    def counted(self: Checkpoint, names: Iterable[str], *rest: Any) -> dict[str, torch.Tensor]:
        reads.append(names := list(names))
        return plain_read(self, names, *rest)

    monkeypatch.setattr(Checkpoint, "_stored", counted)
    load(tmp_path / "narrow")
    for end in (".g_idx", ".qzeros"):
        (once,) = (names for names in reads if names and all(name.endswith(end) for name in names))
        assert len(once) == 4 * (4 + 3 * 8), "all layers of both kinds"


@pytest.fixture(scope="module")
def narrow(tiny: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("narrow") / "checkpoint"
    write_quantized(tiny["a"], target, LAYERS, group=32, symmetric=False)
    return target


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        (
            {"quant_method": "quark"},
            r"quant_method is 'quark', which cannot be read; there are: gptq, awq, auto-round, fp8, compr",
        ),
        ({"quant_method": "bitsandbytes"}, "quant_method is 'bitsandbytes'"),
        ({"bits": 3}, r"quantization_config.bits is 3, which cannot be read; there are: 4, 8"),
        ({"quant_method": "awq", "bits": 8}, r"quantization_config.bits is 8, which cannot be read; there are: 4$"),
        ({"quant_method": "awq", "version": "gemv"}, "version is 'gemv'"),
        ({"checkpoint_format": "marlin"}, "checkpoint_format is 'marlin'"),
        ({"group_size": 0}, "group_size is 0"),
        ({"quant_method": "auto-round", "packing_format": "other"}, "packing_format is 'other'"),
        ({"group_size": 64}, r"experts.0.gate_proj.scales.*asks for floats \[1, 32\]; compare bits and group_size"),
    ],
)
def test_other_ways_of_quantisation_are_named(
    narrow: Path, tmp_path: Path, changed: dict[str, Any], message: str
) -> None:
    copy = Path(shutil.copytree(narrow, tmp_path / "copy"))
    config = json.loads((copy / "config.json").read_text())
    config["quantization_config"] |= changed
    (copy / "config.json").write_text(json.dumps(config))
    with pytest.raises(ConfigError, match=message) as raised:
        load(copy)
    assert str(copy) in str(raised.value)


def test_missing_and_wrong_tensors_are_named(narrow: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(narrow, tmp_path / "copy"))
    tensors = load_file(copy / "model.safetensors")
    layer = "thinker.model.layers.1.mlp.experts.3.up_proj"
    for part, change, message in [
        ("qzeros", None, rf"lacks the tensor '{layer}.qzeros'"),
        ("scales", lambda each: each[:, :-1], rf"tensor '{layer}.scales' is torch.float16 \[2, 31\]"),
        ("qweight", lambda each: each.float(), rf"tensor '{layer}.qweight' is torch.float32"),
        (
            "g_idx",
            lambda each: each.flip(0),
            rf"tensor '{layer}.g_idx' reorders inputs, but config.json says desc_act is false",
        ),
    ]:
        changed = {
            **tensors,
            f"{layer}.{part}": None if change is None else change(tensors[f"{layer}.{part}"]).contiguous(),
        }
        save_file({name: each for name, each in changed.items() if each is not None}, copy / "model.safetensors")
        with pytest.raises(ConfigError, match=message):
            load(copy)
