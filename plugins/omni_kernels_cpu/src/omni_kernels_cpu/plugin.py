"""Registers the kernels."""

from __future__ import annotations

from omni_core.api import KernelComponent, hookimpl

FLOATS = ("float32", "bfloat16")


def probe() -> str | None:
    """Return ``None`` if the compiled library is there and this processor has the instructions it needs, else the reason why
    not.
    """
    from omni_kernels_cpu.library import problem

    return problem()


def _kernel(operation: str, target: str, summary: str, where: str) -> KernelComponent:
    return KernelComponent(
        f"cpu-{operation.replace('_', '-')}",
        f"omni_kernels_cpu.{target}",
        summary,
        requires=("torch", where.partition(".")[0]),
        probe=probe,
        operation=operation,
        device="cpu",
        dtypes=FLOATS,
        reference=f"{where}:{operation}",
    )


@hookimpl
def omni_kernels() -> list[KernelComponent]:
    operations = "omni_torch.operations.shared"
    return [
        _kernel("rms_norm", "rows:rms_norm", "root mean square norm in one pass", operations),
        _kernel("add_rms_norm", "rows:add_rms_norm", "a sum and its root mean square norm in one pass", operations),
        _kernel(
            "few_rows_linear",
            "rows:few_rows_linear",
            "products of few rows, int8 weights too",
            "omni_torch.operations.few_rows",
        ),
        _kernel(
            "experts",
            "rows:experts",
            "the chosen experts of a decode step in one call",
            "omni_torch.operations.experts",
        ),
        _kernel(
            "paged_decode",
            "attention:paged_decode",
            "decode attention that reads the cache in place",
            "omni_torch.engine.attention.decode",
        ),
        _kernel(
            "decode_layers",
            "decoder:decode_layers",
            "a decode step of a whole decoder in one call",
            "omni_torch.operations.decoder_stack",
        ),
        _kernel(
            "code_frames",
            "frames:code_frames",
            "frames of a code predictor in one call",
            "omni_torch.operations.code_frames",
        ),
        _kernel(
            "decode_sound",
            "sound:decode_sound",
            "a vocoder's convolutions in one call",
            "omni_torch.operations.sound_stack",
        ),
        _kernel(
            "prefill_layers",
            "decoder:prefill_layers",
            "prompts through a whole decoder in one call",
            "omni_torch.operations.decoder_stack",
        ),
    ]
