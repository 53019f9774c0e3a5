"""Settings of processes that compute with torch, with the driver replaced: there need not be a GPU."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omni_torch.processes import settings as processes


class Stream:
    """A CUDA stream whose context works, or not."""

    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def synchronize(self) -> None:
        if self.error is not None:
            raise self.error


@pytest.mark.parametrize("error", [None, RuntimeError("CUDA error: device-side assert triggered")])
def test_a_gpu_that_fails_every_call_is_broken(error: Exception | None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: Stream(error))
    assert not processes.gpu_is_broken(), "this process uses none"
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    assert processes.gpu_is_broken() == (error is not None)


def test_a_process_uses_its_gpu_within_its_budgets(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[Any] = []
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", True)
    monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", used.append)
    processes.use_gpu(1, [])
    assert not used, "there is none"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", used.append)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: SimpleNamespace(total_memory=1000))
    monkeypatch.setattr(torch.cuda, "set_per_process_memory_fraction", lambda share, gpu: used.append((share, gpu)))
    processes.use_gpu(1, [])
    assert used == [1, False]
    assert not torch.backends.cudnn.allow_tf32, "float32 means float32"
    processes.use_gpu(2, [{"nbytes": 250, "share": None}, {"nbytes": None, "share": 0.5}])
    assert used[2:] == [2, False, (0.75, 2)]
