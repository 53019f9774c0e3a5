"""Reading weights: parameters joined from several tensors, and wrong shapes in any dimension. Models test their names."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from omni_core.errors import ConfigError
from omni_torch.checkpoints.headers import INDEX, read_headers
from omni_torch.checkpoints.weights import Checkpoint, Source, load_module, prefixed


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
        load(tmp_path, **{name: torch.zeros(shape, dtype=torch.int64 if name == "steps" else None)})
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


@pytest.mark.parametrize(
    "dtype", [torch.int32, torch.int64, torch.bool, torch.uint8, torch.int8, torch.float8_e4m3fn, torch.complex64]
)
def test_a_tensor_of_another_kind_is_named(tmp_path: Path, dtype: torch.dtype) -> None:
    words = (
        "scales that config.json does not describe"
        if dtype in (torch.int8, torch.float8_e4m3fn)
        else "the network has floats there"
    )
    stored = str(dtype).removeprefix("torch.")
    with pytest.raises(ConfigError, match=rf"model\.safetensors: the tensor 'net\.k' is stored as {stored}.*{words}"):
        load(tmp_path, k=torch.ones(1, 4).to(dtype))
    with pytest.raises(ConfigError, match=r"the tensor 'net\.k' is stored as"):
        Checkpoint(tmp_path).read_rows("net.k", [0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bool])
def test_whole_numbers_are_not_made_of_others(tmp_path: Path, dtype: torch.dtype) -> None:
    with pytest.raises(
        ConfigError, match=r"the tensor 'net\.steps' is stored as .*, the network has whole numbers there"
    ):
        load(tmp_path, steps=torch.ones(3).to(dtype))


def test_a_dtype_that_torch_does_not_have_is_named(tmp_path: Path) -> None:
    load(tmp_path)
    raw = (tmp_path / "model.safetensors").read_bytes()
    length = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + length])
    for dtype in ("F4", "F6_E2M3", "X9"):
        header["net.k"]["dtype"] = dtype
        text = json.dumps(header).encode()
        (tmp_path / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + raw[8 + length :])
        with pytest.raises(ConfigError, match=r"model\.safetensors"):
            Checkpoint(tmp_path).read(["net.k"])


@pytest.mark.parametrize(
    "name",
    ["../outside.safetensors", "/outside.safetensors", "a/../../outside.safetensors", "..", "", "..\\up", "a\0b"],
)
def test_an_index_names_files_of_its_folder_alone(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    load(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "outside.safetensors")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"net.k": name}}))
    for read in (Checkpoint, read_headers):
        with pytest.raises(ConfigError, match=r"which is not in the checkpoint's folder") as caught:
            read(folder)
        assert str(folder / INDEX) in str(caught.value)


def test_links_in_the_folder_lead_anywhere(tmp_path: Path) -> None:
    """As in the hub's cache."""
    folder = tmp_path / "snapshots" / "commit"
    folder.mkdir(parents=True)
    load(tmp_path)
    (tmp_path / "model.safetensors").rename(tmp_path / "blob")
    (folder / "part").mkdir()
    (folder / "part" / "1.safetensors").symlink_to("../../../blob")
    (folder / INDEX).write_text(json.dumps({"weight_map": {"net.k": "part/1.safetensors"}}))
    assert Checkpoint(folder).read(["net.k"])["net.k"].shape == (1, 4)
    assert "net.k" in read_headers(folder)


@pytest.mark.parametrize("file", ["model.safetensors", INDEX, "1.safetensors"])
@pytest.mark.parametrize("kind", ["pipe", "device", "folder"])
def test_files_that_would_be_waited_for_are_refused_at_once(tmp_path: Path, file: str, kind: str) -> None:
    if file == "1.safetensors":
        (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"net.k": file}}))
    path = tmp_path / file
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    for read in (lambda folder: Checkpoint(folder).read(["net.k"]), read_headers):
        with pytest.raises(ConfigError, match=rf"{file} is no regular file"):
            read(tmp_path)
