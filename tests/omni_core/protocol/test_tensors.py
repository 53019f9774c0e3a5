"""Handles instead of bytes between processes of one GPU. No GPU here: only the driver's part is replaced."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy
import pytest
import torch
from pipelines import make_pipeline
from torch.multiprocessing import reductions

from omni_core.config.schema import StageConfig
from omni_core.launch.prepare import prepare
from omni_core.plugins import load_plugins
from omni_core.protocol.codec import decode, encode_split


class OnGpu(torch.Tensor):
    """A CPU tensor that claims to be on a GPU."""

    is_cuda = True
    is_cpu = False


@pytest.fixture
def driver(monkeypatch: pytest.MonkeyPatch) -> dict[bytes, torch.Tensor]:
    """Memory by handle, and what torch makes of it."""
    exported: dict[bytes, torch.Tensor] = {}

    def reduce_tensor(tensor: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
        handle = len(exported).to_bytes(64, "little")
        exported[handle] = tensor
        place = (tensor.size(), tensor.stride(), tensor.storage_offset())
        return reductions.rebuild_cuda_tensor, (
            *(type(tensor), *place, torch.storage.TypedStorage, tensor.dtype, 0),
            *(handle, tensor.untyped_storage().nbytes(), 0, False, b"counter", 3, b"event", True),
        )

    def rebuild(
        kind: Any, shape: Any, strides: Any, offset: int, storage: Any, dtype: Any, device: int, *handles: Any
    ) -> Any:
        assert (device, handles[1:]) == (
            0,
            (exported[handles[0]].untyped_storage().nbytes(), 0, False, b"counter", 3, b"event", True),
        )
        found = torch.Tensor(exported[handles[0]]).view(dtype)
        assert (found.shape, found.stride(), found.storage_offset()) == (shape, strides, offset)
        return found

    monkeypatch.setattr(reductions, "reduce_tensor", reduce_tensor)
    monkeypatch.setattr(reductions, "rebuild_cuda_tensor", rebuild)
    return exported


def test_a_handle_travels_as_plain_data(driver: dict[bytes, torch.Tensor]) -> None:
    tensor = torch.arange(12, dtype=torch.float32).reshape(3, 4).as_subclass(OnGpu)  # type: ignore[no-untyped-call]
    encoded = encode_split({"x": tensor, "cpu": torch.ones(5000)}, same_gpu=True)
    assert encoded.nbytes == 20_000  # the CPU tensor's bytes alone
    assert encoded.has_tensors
    memory = bytearray(encoded.nbytes)
    encoded.write_into(memoryview(memory))
    found = decode(encoded.header, memoryview(memory))
    assert found["x"].data_ptr() == tensor.data_ptr()
    assert torch.equal(found["cpu"], torch.ones(5000))
    assert len(driver) == 1


def test_other_processes_get_the_bytes(driver: dict[bytes, torch.Tensor]) -> None:
    tensor = torch.ones(1000).as_subclass(OnGpu)  # type: ignore[no-untyped-call]
    assert encode_split(tensor).nbytes == 4000
    assert not driver


def test_only_stages_on_the_same_gpu_get_handles(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: None)

    def stage(name: str, following: str | None, **fields: Any) -> StageConfig:
        fields = {"process": name, **fields}
        return StageConfig(name=name, factory="m:f", next=following, terminal=following is None, **fields)

    config = make_pipeline(
        run_folder,
        stage("a", "b", gpu=0, gpu_memory=0.3),
        stage("b", "c", gpu=0, gpu_memory=0.3, replicas=2),
        stage("c", "d", process="mixed"),
        stage("d", "e", process="mixed", gpu=0, gpu_memory=0.1),
        stage("e", "f", gpu=1),
        stage("f", None),
    )
    units = prepare(config, load_plugins()).units
    endpoints = {unit.name: unit.endpoint for unit in units}
    same = {unit.name: unit.processes[0].same_gpu for unit in units}
    assert same["a"] == {"b": [endpoints["b.0"], endpoints["b.1"]], "d": [endpoints["mixed"]]}
    assert same["b.0"] == {"a": [endpoints["a"]], "b": [endpoints["b.1"]], "d": [endpoints["mixed"]]}
    assert same["e"] == same["f"] == {}


def test_tensors_of_the_relays_gpu_are_gathered_on_that_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_core.protocol.tensors.wait_for_device", lambda buffer: None)  # there is no driver to ask
    on_gpu = torch.arange(3000.0).reshape(30, 100).as_subclass(OnGpu)
    value = {
        "gpu": on_gpu,
        "turned": on_gpu.T,
        "host": torch.arange(5000, dtype=torch.int16),
        "array": numpy.arange(4000.0),
        "small": torch.ones(3).as_subclass(OnGpu),
    }
    encoded = encode_split(value, device="cpu")  # which is where the tensors that claim to be on a GPU are
    assert [isinstance(each, torch.Tensor) for each in encoded.buffers] == [True, True, False, False]
    memory = torch.zeros(encoded.nbytes, dtype=torch.uint8)
    encoded.write_into(memory)
    for buffer in (memory, memoryview(encoded.joined())):
        back = decode(encoded.header, buffer)
        assert torch.equal(back["gpu"], on_gpu)
        assert torch.equal(back["turned"], on_gpu.T)
        assert torch.equal(back["host"], value["host"])
        assert numpy.array_equal(back["array"], value["array"])
        assert torch.equal(back["small"], torch.ones(3))
    inside = range(memory.data_ptr(), memory.data_ptr() + memory.nbytes)
    assert decode(encoded.header, memory)["gpu"].data_ptr() in inside
    assert encode_split(value).buffers[0].nbytes == on_gpu.nbytes
