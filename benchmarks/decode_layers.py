"""A layer of a decode step on a GPU: microseconds beside the time in which the GPU copies as many bytes.

    python benchmarks/decode_layers.py [--quick] [--json FILE] [--layers 24] [--quantization float8_weight_only]

Layers of Qwen3-Omni's thinker at its released dimensions (random bfloat16 weights, 1.3 GB each, or half of that, so that none stays in a
cache) run as the operation ``decode_layers`` in a CUDA graph, which is replayed while others are queued. The other side
is the copy of the bytes that the layer must read: weights, those of the experts that were chosen, keys and values.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from pathlib import Path

import click
import torch
from report import Row, compare, json_option, publish, quick_option

from omni_core.plugins import load_plugins
from omni_torch.operations.decoder_stack import DecoderStack, LayerWeights, MixtureWeights, decode_layers
from omni_torch.operations.few_rows import Matrix
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernel_specs import kernel_specs
from omni_torch.quantization.scaled_linear import GPU_QUANTIZATIONS

HIDDEN, HEADS, KV_HEADS, HEAD_DIM, EXPERTS, TOP_K, UNITS = 2048, 32, 4, 128, 128, 8, 768
BLOCK = 16
CYCLES = 3_000_000
"""GPU cycles of waiting, in which the host queues what is measured."""


def drawn(*shape: int) -> torch.Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16) * shape[-1] ** -0.5


def matrix(quantization: str | None, out: int, inner: int) -> Matrix:
    """Return a random matrix as a stage holds it."""
    return (
        Matrix(drawn(out, inner))
        if quantization is None
        else GPU_QUANTIZATIONS[quantization](drawn(out, inner), None).matrix
    )


def stacked(quantization: str | None, out: int, inner: int) -> list[Matrix]:
    """Return the matrices of all experts as slices of one."""
    whole = matrix(quantization, EXPERTS * out, inner)
    weights = whole.weight.view(EXPERTS, out, inner)
    if whole.scales is None:
        return [Matrix(each) for each in weights]
    return [Matrix(*each) for each in zip(weights, whole.scales.view(EXPERTS, out), strict=True)]


def layer(quantization: str | None) -> LayerWeights:
    """Return a layer whose experts are slices of one tensor, as a checkpoint's are."""
    pairs = zip(stacked(quantization, 2 * UNITS, HIDDEN), stacked(quantization, HIDDEN, UNITS), strict=True)
    mixture = MixtureWeights(Matrix(drawn(EXPERTS, HIDDEN) * 20), list(pairs), TOP_K, True)
    norm = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
    of_heads = torch.ones(HEADS + KV_HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16)
    qkv = matrix(quantization, (HEADS + 2 * KV_HEADS) * HEAD_DIM, HIDDEN)
    return LayerWeights(norm, norm, of_heads, qkv, matrix(quantization, HIDDEN, HEADS * HEAD_DIM), None, mixture)


def timed(call: Callable[[], object], count: int) -> float:
    """Return the seconds that a call takes of the GPU, of ``count`` calls that are queued together."""
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    torch.cuda._sleep(CYCLES)
    begin.record()
    for _ in range(count):
        call()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3 / count


def used_experts(stack: DecoderStack, x: torch.Tensor) -> float:
    """Return how many experts a layer reads, as its router would choose for the step's inputs."""
    chosen = []
    for each in stack.layers:
        assert each.mixture is not None
        chosen.append(len(torch.topk(x @ each.mixture.router.weight.t(), TOP_K).indices.unique()))
    return statistics.mean(chosen)


def measure(stack: DecoderStack, rows: int, length: int, rounds: int) -> Row:
    """Measure a step of ``rows`` requests of ``length`` positions."""
    width = -(-length // BLOCK)
    pages = torch.arange(rows * width, dtype=torch.int32, device="cuda").view(rows, width)
    keys, values = (drawn(len(stack.layers), rows * width * BLOCK, KV_HEADS, HEAD_DIM) for _ in range(2))
    angles = torch.randn(rows, 1, HEAD_DIM // 2, device="cuda").repeat(1, 1, 2)
    lengths = torch.full((rows,), length, dtype=torch.int32, device="cuda")
    x = drawn(rows, HIDDEN) * 8
    given = x, angles.cos().bfloat16(), angles.sin().bfloat16(), pages, lengths, BLOCK, keys, values, stack
    decode_layers(*given)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        decode_layers(*given)
    attention = 2 * (HEADS + KV_HEADS) * HEAD_DIM * HIDDEN
    cache = 2 * rows * length * KV_HEADS * HEAD_DIM
    stored = stack.layers[0].qkv.weight.element_size()
    size = stored * (attention + used_experts(stack, x) * 3 * UNITS * HIDDEN) + 2 * (EXPERTS * HIDDEN + cache)
    source = torch.empty(1 << 31, dtype=torch.uint8, device="cuda")
    target, ours, other = torch.empty_like(source), [], []
    for _ in range(rounds):
        ours.append(timed(graph.replay, 4) / len(stack.layers) * 1e6)
        rate = 2 * source.nbytes / timed(lambda: target.copy_(source), 2)
        other.append(size / rate * 1e6)
    label = f"a layer, {rows} request{'s' * (rows > 1)} of {length:,} positions"
    return compare(label, "us", ours, other, "copy of as many bytes", higher_is_better=False)


@click.command()
@quick_option
@json_option
@click.option("--layers", default=24, show_default=True, help="Layers of a step, of 1.3 GB each.")
@click.option("--quantization", type=click.Choice(sorted(GPU_QUANTIZATIONS)), help="Of the layers' matrices.")
def main(quick: bool, json_path: Path | None, layers: int, quantization: str | None) -> None:
    """A layer of a decode step on a GPU."""
    if not torch.cuda.is_available():
        raise click.ClickException("there is no CUDA GPU; on a CPU run benchmarks/cpu_kernels.py")
    install(kernel_specs(load_plugins()))
    if not decode_layers.replaced("cuda", torch.bfloat16):
        raise click.ClickException("no kernel of decode_layers works here; `omni plugins check kernels` says why")
    click.echo(f"{torch.cuda.get_device_name()}, {layers} layers, {quantization or 'bfloat16'}")
    with torch.inference_mode():
        norm = torch.ones(HIDDEN, device="cuda", dtype=torch.bfloat16)
        stack = DecoderStack([layer(quantization) for _ in range(layers)], norm, HEADS, KV_HEADS, HEAD_DIM)
        cases = (
            [(1, 200), (8, 200)]
            if quick
            else [(1, 200), (1, 2000), (1, 8000), (2, 200), (8, 200), (32, 200), (32, 2000)]
        )
        rows = [measure(stack, *case, rounds=3 if quick else 7) for case in cases]
    publish(rows, json_path)


if __name__ == "__main__":
    main()
