"""Registers the kernels."""

from __future__ import annotations

import os

from omni_core.api import KernelComponent, hookimpl

DTYPES = ("float32", "float16", "bfloat16")
OPERATIONS = "omni_torch.operations.shared"
EXPERTS = "omni_torch.operations.experts"
ENGINE = "omni_torch.engine.attention.decode"
LAYERS = "omni_torch.operations.decoder_stack"
SAMPLING = "omni_torch.sampling.sample"
FEW_ROWS = "omni_torch.operations.few_rows"


def probe() -> str | None:
    """Return ``None`` if there is a GPU that Triton compiles for, else the reason why not."""
    import shutil

    import torch

    if not torch.cuda.is_available():
        return "no CUDA device"
    if not any(map(shutil.which, filter(None, (os.environ.get("CC"), "gcc", "clang", "cc")))):
        return "there is no C compiler, with which Triton builds the launchers of kernels; install gcc"
    major, minor = torch.cuda.get_device_capability()
    return None if major >= 8 else f"the GPU has compute capability {major}.{minor}, Triton's bfloat16 needs 8.0"


def _kernel(
    operation: str, target: str, summary: str, where: str = OPERATIONS, dtypes: tuple[str, ...] = DTYPES
) -> KernelComponent:
    return KernelComponent(
        f"triton-{operation.replace('_', '-')}",
        f"omni_kernels.{target}",
        summary,
        requires=("torch", "triton", where.partition(".")[0]),
        probe=probe,
        operation=operation,
        dtypes=dtypes,
        reference=f"{where}:{operation}",
    )


@hookimpl
def omni_kernels() -> list[KernelComponent]:
    return [
        _kernel("rms_norm", "norms:rms_norm", "root mean square norm in one pass"),
        _kernel("add_rms_norm", "norms:add_rms_norm", "a sum and its root mean square norm in one pass"),
        _kernel("rotary", "rotary:rotary", "rotary positions in one pass"),
        _kernel(
            "norm_rotary_store", "rotary:norm_rotary_store", "norms, rotary positions and the cache's write in one pass"
        ),
        _kernel("snake_beta", "snake:snake_beta", "the vocoder's activation in one pass"),
        _kernel("snake_conv", "snake:snake_conv", "the vocoder's activation fused into its convolution"),
        _kernel("route_experts", "routing:route_experts", "softmax and choice of a row's experts in one pass", EXPERTS),
        _kernel("experts", "experts:experts", "a mixture of experts in two products grouped by expert", EXPERTS),
        _kernel(
            "few_rows_linear",
            "narrow_products:few_rows_linear",
            "products with weights of 8 bits, widened in registers",
            FEW_ROWS,
        ),
        _kernel("sample_tokens", "sampling:sample_tokens", "tokens drawn without a sort", SAMPLING, ("float32",)),
        _kernel(
            "decode_layers", "layers:decode_layers", "decode steps in seven launches a layer", LAYERS, ("bfloat16",)
        ),
        _kernel("paged_decode", "decode:paged_decode", "decode attention that reads the cache in place", ENGINE),
    ]
