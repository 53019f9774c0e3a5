"""A fake GPU with shapes only: any code that reads a tensor's values, or copies values from the host, fails.

It is PyTorch's ``meta`` device, whose tensors claim to be on CUDA. So a function that a CUDA graph could not record is
detected without a GPU, on the branches that it takes on one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from omni_core.model_runner import ARModel, ARRequest, ForwardBatch, ForwardOutput, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_torch.engine.attention import AttentionBackend, SdpaBackend
from omni_torch.engine.graphs import DecodeGraphs
from omni_torch.engine.kv_cache import KVCache
from omni_torch.runners.graphs import Graphs, Named

GHOST = torch.device("meta")


def ghost_gpu(monkeypatch: pytest.MonkeyPatch) -> torch.device:
    """The device. From now on its tensors claim to be on CUDA."""
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda tensor: tensor.device.type == "meta"))
    return GHOST


class _NoHostTensors(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        devices = {leaf.device for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)}
        devices |= {leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, torch.device)}
        if devices - {GHOST}:
            raise RuntimeError(f"{func} works on the host")
        return func(*args, **kwargs)


class NoHostValues(TorchFunctionMode):
    """Rejects calls that never reach the dispatcher: tensors of Python's values, and indices that are lists."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        indexes = func in (torch.Tensor.__getitem__, torch.Tensor.__setitem__)
        of_host = indexes and any(isinstance(each, (list, np.ndarray)) for each in (args[1], *_parts(args[1])))
        if of_host or func in (torch.tensor, torch.as_tensor, torch.from_numpy):
            raise RuntimeError(f"{func} brings values from the host")
        return func(*args, **(kwargs or {}))


def _parts(index: Any) -> tuple[Any, ...]:
    return index if isinstance(index, tuple) else ()


@contextmanager
def no_host() -> Iterator[None]:
    with _NoHostTensors(), NoHostValues():
        yield


class GhostRecorder:
    """Accepts the functions that a CUDA graph can record: the second call must not need the host."""

    def __init__(self, device: torch.device) -> None:
        assert device == GHOST

    def record(self, function: Callable[[], Named]) -> tuple[Named, Callable[[], None]]:
        function()
        with no_host():
            return function(), lambda: None


def decode(
    model: ARModel,
    *,
    backend: type[AttentionBackend] = SdpaBackend,
    block_size: int = 16,
    axes: int = 1,
    extra: dict[str, Any] | None = None,
) -> tuple[ForwardOutput, Graphs]:
    """A step of three decodes on the fake GPU."""
    layout, starts = model.kv_layout, [7, 300, 40]
    cache = KVCache(layout, 64, block_size, GHOST, scratch=4)
    graphs = Graphs(GHOST, GhostRecorder)
    decodes = DecodeGraphs(model, backend(cache), graphs, 4, 512)
    requests = [
        ARRequest(str(start), OmniRequest(), [1] * start, SamplingParams(), output_ids=[1], computed=start)
        for start in starts
    ]
    for request in requests:
        assert cache.reserve(request.request_id, request.length)
    rows = torch.zeros(len(starts), dtype=torch.int64, device=GHOST)
    batch = ForwardBatch(
        requests=requests,
        starts=starts,
        lengths=[1] * len(starts),
        input_ids=rows,
        input_embeds=model.embed(rows),
        positions=rows if axes == 1 else rows.expand(axes, -1),
        attention=decodes.plan(requests, starts, [1] * len(starts)),
        sample_rows=rows,
        sampled=list(range(len(starts))),
        extra=extra or {},
    )
    return decodes.forward(batch), graphs
