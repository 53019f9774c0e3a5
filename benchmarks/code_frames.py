"""Frames of Qwen3-Omni's code predictor as one call beside the same frames by kernels of steps, in one process, rounds alternating.

    python benchmarks/code_frames.py [--quick] [--wall] [--threads N] [--rounds N] [--json FILE] [--checkpoint DIR] [--size mid|large]

The talker's own step is not counted. Both make the same codes, which is checked. CPU time by default, because the machine may have other
load.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import torch
from cpu_kernels import WEIGHTS
from engine import LABELS, Figures
from report import Row, json_option, publish, quick_option

from omni_core.plugins import load_plugins
from omni_kernels_cpu.library import instruction_set, problem
from omni_qwen3.code_predictor import CodePredictor
from omni_qwen3.config import read_config
from omni_qwen3.talker_feedback import chooser
from omni_qwen3.talker_network import load_talker
from omni_testing.tiny.qwen3 import write_tiny_checkpoint
from omni_torch.operations.few_rows import Matrix, matrix_of
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernel_specs import kernel_specs
from omni_torch.quantization.packed_linear import pack_decoder, pack_linears


def bytes_read(predictor: CodePredictor) -> int:
    """Return the bytes of weights that a frame reads: all layers at every position but the first, and each head once."""
    stack = predictor._decoder.stack
    assert stack is not None
    layers = [each for layer in stack.layers for each in (layer.qkv, layer.output, *(layer.dense or ()))]
    heads = [each for each in map(matrix_of, predictor.lm_head) if each is not None]

    def size(matrices: list[Matrix]) -> int:
        return sum(each.weight.nbytes + (0 if each.scales is None else each.scales.nbytes) for each in matrices)

    return size(layers) * (predictor.groups - 1) + size(heads)


def frames(label: str, checkpoint: Path, clock: Callable[[], float], *, rounds: int, count: int) -> list[Row]:
    """Measure frames per second of CPU time, for each kind of weights."""
    config, figures = read_config(checkpoint), Figures(label)
    for name, weights in WEIGHTS.items():
        predictor = load_talker(str(checkpoint), config, **weights).code_predictor  # type: ignore[arg-type]
        pack_linears(predictor, pack_decoder)
        dtype = predictor.model.norm.weight.dtype
        for requests in (1, 8):
            generator = torch.Generator().manual_seed(requests)
            hidden, first = torch.randn(2, requests, config.talker.predictor.hidden_size, generator=generator).to(dtype)
            greedy = chooser(None, None)
            ways: dict[str, Any] = {"call": greedy, "steps": lambda logits, group: greedy(logits, group)}  # noqa: B023
            with torch.inference_mode():
                if not torch.equal(*(predictor(hidden, first, choose)[0] for choose in ways.values())):
                    raise click.ClickException(f"{name}: one call and steps make different codes")
                for number in range(rounds):
                    rates: dict[str, float] = {}
                    for way in sorted(ways, reverse=bool(number % 2)):
                        begin = clock()
                        for _ in range(count):
                            predictor(hidden, first, ways[way])
                        rates[way] = count * requests / (clock() - begin)
                    load = "1 request" if requests == 1 else f"{requests} requests"
                    figures.note(f"{name}: {load}", "frames/s", rates["call"], rates["steps"], "steps")
                    if requests == 1:
                        read = bytes_read(predictor) / 1e9
                        figures.note(
                            f"{name}: weights read", "GB/s", read * rates["call"], read * rates["steps"], "steps"
                        )
        del predictor
        gc.collect()
    return figures.rows()


@click.command()
@quick_option
@json_option
@click.option("--checkpoint", type=click.Path(exists=True, path_type=Path), help="Default: a random one of --size.")
@click.option("--size", type=click.Choice(list(LABELS)), default="mid")
@click.option("--threads", type=int, default=1, help="Of the kernels.")
@click.option("--rounds", type=click.IntRange(1), default=5)
@click.option("--wall", is_flag=True, help="Measure wall time instead of CPU time.")
def main(
    quick: bool, json_path: Path | None, checkpoint: Path | None, size: str, threads: int, rounds: int, wall: bool
) -> None:
    """Frames as one call beside steps."""
    if (reason := problem()) is not None:
        raise click.ClickException(f"omni-kernels-cpu cannot work here: {reason}")
    click.echo(f"instruction set: {instruction_set()}, threads: {threads}")
    torch.set_num_threads(threads)
    specs = kernel_specs(load_plugins())
    install({name: [each for each in some if each.device == "cpu"] for name, some in specs.items()})
    clock = time.perf_counter if wall or threads > 1 else time.process_time
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = checkpoint or write_tiny_checkpoint(Path(folder) / size, shape=size)
        rows = frames(LABELS[size], checkpoint, clock, rounds=2 if quick else rounds, count=4)
    publish(rows, json_path)


if __name__ == "__main__":
    main()
