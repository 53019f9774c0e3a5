"""Values that compressed-tensors, the library of llm-compressor, reads from the same files: the readers give these bit by bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from quantized_checkpoints import write_quantized, write_scaled
from safetensors.torch import load_file, save_file

from omni_torch.quantization.quantized_checkpoints import open_checkpoint

pytest.importorskip("compressed_tensors")

from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.entrypoints.convert.converters.autoawq import AutoAWQConverter
from compressed_tensors.entrypoints.convert.converters.fp8block_dequantizer import FP8BlockDequantizer
from compressed_tensors.quantization import QuantizationConfig
from compressed_tensors.quantization.utils import calculate_qparams

WEIGHT = torch.randn(24, 100, generator=torch.Generator().manual_seed(0))

GROUPS: dict[str, tuple[str, dict[str, Any]]] = {
    "4 bits": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 20}),
    "4 bits with zero points": ("pack-quantized", {"num_bits": 4, "strategy": "group", "group_size": 20, "symmetric": False}),
    "8 bits, a scale per output": ("pack-quantized", {"num_bits": 8, "strategy": "channel", "symmetric": False}),
    "int8": ("int-quantized", {"num_bits": 8, "strategy": "channel"}),
    "fp8": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "tensor"}),
    "fp8 in blocks": ("float-quantized", {"num_bits": 8, "type": "float", "strategy": "block", "block_structure": [16, 32]}),
}  # fmt: skip


def scheme_of(section: dict[str, Any]) -> tuple[Any, Any]:
    """Return a group's scheme and what reads it."""
    config = QuantizationConfig.model_validate(section)
    return config.config_groups["g"], BaseCompressor.get_value_from_registry(config.format)


@pytest.mark.parametrize("name", GROUPS)
def test_files_that_the_library_writes(tmp_path: Path, name: str) -> None:
    form, weights = GROUPS[name]
    section = {
        "quant_method": "compressed-tensors",
        "format": form,
        "config_groups": {"g": {"targets": ["Linear"], "weights": weights}},
    }
    scheme, compressor = scheme_of(section)
    rows, columns = {"block": (16, 32), "group": (1, 20), "channel": (1, 100), "tensor": (24, 100)}[weights["strategy"]]
    padded = torch.nn.functional.pad(WEIGHT, (0, -100 % columns, 0, -24 % rows))
    parts = padded.unflatten(1, (-1, columns)).unflatten(0, (-1, rows))
    scale, zero = calculate_qparams(parts.amin((1, 3)), parts.amax((1, 3)), scheme.weights)
    scale = scale.bfloat16()
    made = compressor.compress({"weight": WEIGHT, "weight_scale": scale, "weight_zero_point": zero}, scheme)
    save_file({f"x.{part}": tensor.contiguous() for part, tensor in made.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps({"quantization_config": section}))
    exact = compressor.decompress({**made, "weight_scale": scale.float()}, scheme)["weight"]
    assert (exact - WEIGHT).abs().max() < 0.5
    assert torch.equal(open_checkpoint(tmp_path).read(["x.weight"])["x.weight"], exact)


@pytest.fixture
def source(tmp_path: Path) -> Path:
    (tmp_path / "source").mkdir()
    save_file({"x.weight": WEIGHT[:, :96].contiguous()}, tmp_path / "source" / "model.safetensors")
    (tmp_path / "source" / "config.json").write_text("{}")
    return tmp_path / "source"


def test_files_of_awq(source: Path, tmp_path: Path) -> None:
    write_quantized(source, tmp_path / "made", "weight", method="awq", group=32, symmetric=False)
    made = AutoAWQConverter(group_size=32).process(load_file(tmp_path / "made" / "model.safetensors"))
    state = {name.removeprefix("x."): each for name, each in made.items()}
    state["weight_scale"] = state["weight_scale"].float()
    weights = {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}
    scheme, compressor = scheme_of({"format": "pack-quantized", "config_groups": {"g": {"targets": [], "weights": weights}}})  # fmt: skip
    exact = compressor.decompress(state, scheme)["weight"]
    assert torch.equal(open_checkpoint(tmp_path / "made").read(["x.weight"])["x.weight"], exact)


def test_files_in_fp8(source: Path, tmp_path: Path) -> None:
    """Blocks are cut off at the ends."""
    write_scaled(source, tmp_path / "made", "weight", block=(16, 40))
    stored = load_file(tmp_path / "made" / "model.safetensors")
    exact = FP8BlockDequantizer(weight_block_size=(16, 40), dtype=torch.float32).process(stored)["x.weight"]
    assert torch.equal(open_checkpoint(tmp_path / "made").read(["x.weight"])["x.weight"], exact)
