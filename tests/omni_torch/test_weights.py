"""Reading weights: parameters joined from several tensors, and wrong shapes in any dimension. Models test their names."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from omni_core.errors import ConfigError
from omni_torch.weights import Checkpoint, Source, load_module, prefixed


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(4, 6, bias=False)
        self.register_buffer("steps", torch.zeros(3, dtype=torch.int64))


def sources(name: str, shape: torch.Size) -> list[Source]:
    if name == "qkv.weight":
        return [(f"net.{part}", None) for part in "qkv"]
    return [(prefixed(name, {"": "net."}), tuple(shape))]


def load(folder: Path, **changed: torch.Tensor) -> Layer:
    tensors = {f"net.{part}": torch.randn(rows, 4) for part, rows in (("q", 4), ("k", 1), ("v", 1))}
    tensors["net.steps"] = torch.arange(3)
    save_file(tensors | {f"net.{name}": tensor for name, tensor in changed.items()}, folder / "model.safetensors")
    with torch.device("meta"):
        layer = Layer()
    return load_module(layer, Checkpoint(folder), sources, dtype=torch.bfloat16)


def test_parts_are_joined_and_whole_numbers_stay_whole(tmp_path: Path) -> None:
    k = torch.arange(4.0)[None]
    layer = load(tmp_path, k=k)
    assert torch.equal(layer.qkv.weight[4:5], k.bfloat16())
    assert layer.qkv.weight.dtype == torch.bfloat16
    assert torch.equal(layer.steps, torch.arange(3))
    assert not layer.training


@pytest.mark.parametrize(
    ("name", "shape", "words"),
    [
        ("k", (2, 4), r"'net\.k' \(2, 4\), 'net\.v' \(1, 4\) are joined; the config asks for \(6, 4\)"),
        ("k", (1, 3), r"'net\.k' \(1, 3\).*asks for \(6, 4\)"),
        ("steps", (4,), r"'net\.steps' has shape \(4,\), the config asks for \(3,\)"),
    ],
)
def test_a_wrong_shape_is_named_with_both_shapes(tmp_path: Path, name: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        load(tmp_path, **{name: torch.zeros(shape)})
    assert str(tmp_path) in str(caught.value)


def test_parameters_of_one_source_share_one_tensor(tmp_path: Path) -> None:
    save_file({"embedding": torch.randn(5, 4)}, tmp_path / "model.safetensors")
    with torch.device("meta"):
        module = nn.ModuleDict({"embed": nn.Embedding(5, 4), "head": nn.Linear(4, 5, bias=False)})
    load_module(module, Checkpoint(tmp_path), lambda name, shape: [("embedding", tuple(shape))], dtype=torch.bfloat16)
    weights = module["embed"].weight, module["head"].weight
    assert torch.equal(*weights)
    assert weights[0].data_ptr() == weights[1].data_ptr()


def test_one_damaged_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"not safetensors")
    with pytest.raises(ConfigError, match=r"model\.safetensors cannot be read"):
        Checkpoint(tmp_path)
