"""Settings of a stage process that computes with torch. Imports torch for a process with a GPU only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from omni_core.api import imported
from omni_core.runtime_api import KernelSpec
from omni_torch.operations.installed_kernels import install


def prepare(kernels: Mapping[str, Sequence[KernelSpec]], gpu: int | None, budgets: Sequence[dict[str, Any]]) -> None:
    """Prepare the calling process, in the thread that builds its stages.

    Args:
        kernels: of its launch spec, by operation.
        gpu: the number of its stages' GPU, if they have one.
        budgets: of its stages' memory there, each ``{"nbytes": int}`` or ``{"share": float}``.
    """
    install(kernels)
    if gpu is not None:
        use_gpu(gpu, budgets)


def use_gpu(gpu: int, budgets: Sequence[dict[str, Any]]) -> None:
    """Let the calling thread use a GPU, on which kernels start, and hold torch's allocator to the sum of budgets, if there are any.

    Two defaults of torch change: convolutions in float32 compute in float32, not in TF32, whose errors are 1e-3 where the matrix products
    have 1e-6; and attention is not cuDNN's, which makes a plan for each length, for 45 ms on an H200.
    """
    import torch

    if not torch.cuda.is_available():
        return
    torch.cuda.set_device(gpu)
    torch.backends.cudnn.allow_tf32 = False
    torch.backends.cuda.enable_cudnn_sdp(False)
    if budgets:
        capacity = torch.cuda.get_device_properties(gpu).total_memory
        share = sum(each["share"] or each["nbytes"] / capacity for each in budgets)
        torch.cuda.set_per_process_memory_fraction(min(share, 1.0), gpu)


def gpu_is_broken() -> bool:
    """Return whether the GPU reports an error to whatever this process asks of it, as after a failed assertion in a kernel or an access
    beyond its memory: only a new process can use it again. Waits for the work that is queued.
    """
    torch = imported("torch")
    if torch is None or not torch.cuda.is_initialized():
        return False
    try:
        torch.cuda.current_stream().synchronize()
    except RuntimeError:
        return True
    return False


class TorchProcess:
    """The service ``stage-process`` (:class:`omni_core.services.StageProcess`)."""

    prepare = staticmethod(prepare)
    gpu_is_broken = staticmethod(gpu_is_broken)
