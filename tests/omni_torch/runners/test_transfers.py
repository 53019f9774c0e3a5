"""Small tensors arrive whole: several as one copy, from pinned memory where there is a GPU."""

from __future__ import annotations

import pytest
import torch

from omni_torch.runners.transfers import Arriving, all_to_device, copy_into, to_device

CPU, CUDA = torch.device("cpu"), torch.device("cuda")
DEVICES = [CPU, pytest.param(CUDA, marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU"))]
MADE = [torch.arange(3), torch.arange(6).expand(3, -1), torch.arange(4, dtype=torch.int32), torch.arange(0)]


def same(tensors: list[torch.Tensor]) -> bool:
    alike = [a.dtype == b.dtype and torch.equal(a.cpu(), b) for a, b in zip(tensors, MADE, strict=True)]
    return all(alike)


@pytest.mark.parametrize("device", DEVICES)
def test_tensors_arrive(device: torch.device) -> None:
    assert same(all_to_device(MADE, device))
    assert same([to_device(each, device) for each in MADE])
    for each in MADE:
        target = torch.zeros(each.shape, dtype=each.dtype, device=device)
        copy_into(target, each)
        assert torch.equal(target.cpu(), each)
        copy_into(target.zero_(), each.to(device))
        assert torch.equal(target.cpu(), each)


@pytest.mark.parametrize("device", DEVICES)
def test_rows_arrive_in_memory_of_their_own(device: torch.device) -> None:
    rows = torch.randn(3, 5)
    arriving = Arriving(rows.to(device, copy=True))
    for index in range(3):
        row = arriving.row(index)
        assert torch.equal(row, rows[index : index + 1])
        assert row.untyped_storage().nbytes() == 5 * row.itemsize


def test_one_pinned_copy_of_each_dtype_goes_to_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a copy of the pinned tensor itself keeps its memory from being used again too early."""
    pinned: list[torch.Tensor] = []
    copied: list[torch.Tensor] = []

    def pin(tensor: torch.Tensor) -> torch.Tensor:
        pinned.append(tensor.clone())
        return pinned[-1]

    def to(tensor: torch.Tensor, device: torch.device, *, non_blocking: bool) -> torch.Tensor:
        assert device == CUDA
        assert non_blocking
        copied.append(tensor)
        return tensor.clone()

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    there = all_to_device(MADE, CUDA)
    monkeypatch.undo()
    assert same(there)
    assert sorted(each.dtype.itemsize for each in pinned) == [4, 8]
    assert all(a is b and a.is_contiguous() for a, b in zip(pinned, copied, strict=True))
