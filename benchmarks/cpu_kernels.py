"""Our engine with omni-kernels-cpu beside the same engine on PyTorch's kernels, in one process, rounds alternating.

    python benchmarks/cpu_kernels.py [--quick] [--wall] [--threads N] [--rounds N] [--json FILE] [--checkpoint DIR] [--size mid|large]
        [--weights W ...]

*Decode* is steps 2 to 64 of one request or of eight: the time of the whole requests less that of their first tokens. Prompts are computed
anew every time. CPU time by default, because the machine may have other load; wall clock with more than one thread.
"""

from __future__ import annotations

import gc
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
import engine
import torch
from engine import CONCURRENT, LABELS, Figures, Ours, opening
from report import Row, json_option, publish, quick_option

from omni_core.plugins import load_plugins
from omni_core.protocol.specs import KernelSpec
from omni_kernels_cpu.library import instruction_set, problem
from omni_qwen3.config import read_config
from omni_testing.tiny.qwen3 import write_tiny_checkpoint
from omni_torch.operations.installed_kernels import install
from omni_torch.operations.kernel_specs import kernel_specs

Kernels = dict[str, list[KernelSpec]]

WEIGHTS: dict[str, dict[str, Any]] = {
    "float32": {},
    "bfloat16": {"dtype": "bfloat16"},
    "bfloat16 in 12 bits": {"dtype": "bfloat16", "quantization": "bfloat16_lossless"},
    "int8": {"quantization": "int8_weight_only"},
    "int8 both": {"quantization": "int8_dynamic_activation_int8_weight"},
    "int4": {"quantization": "int4_weight_only"},
    "int4, int8 inputs": {"quantization": "int8_dynamic_activation_int4_weight"},
}

QUICK = ("float32", "bfloat16", "int8", "int4")
"""The kinds of weights with ``--quick``, which has to end in a minute."""


class Side:
    """One engine, with the kernels that its process would have. Both are in this process, so they are installed before every call."""

    def __init__(self, kernels: Kernels, checkpoint: Path, **weights: Any) -> None:
        self.kernels = kernels
        self.ours = self.call(lambda: Ours(checkpoint, opening(read_config(checkpoint), 48), **weights))
        self.call(self.ours.warm_up)

    def call(self, function: Callable[[], Any]) -> Any:
        install(self.kernels)
        return function()

    def decode(self, tokens: int, requests: int) -> float:
        """Tokens per second after the first."""
        first = requests / self.call(lambda: self.ours.thinker(1, requests))
        whole = requests * tokens / self.call(lambda: self.ours.thinker(tokens, requests))
        return requests * (tokens - 1) / (whole - first)

    def prefill(self, prompt: torch.Tensor) -> float:
        """Prompt positions per second."""
        rate: float = self.call(lambda: self.ours.thinker(1, 1, prompt))
        return len(prompt) * rate

    def frames(self, frames: int, requests: int) -> float:
        rate: float = self.call(lambda: self.ours.talker(frames, requests))
        return rate


def beside_pytorch(
    label: str, checkpoint: Path, kinds: Sequence[str], *, rounds: int, tokens: int, frames: int
) -> list[Row]:
    """Interleaved rounds for each kind of weights."""
    kernels = {
        name: [each for each in some if each.device == "cpu"] for name, some in kernel_specs(load_plugins()).items()
    }
    prompts = {length: opening(read_config(checkpoint), length, 7)[0] for length in (48, 994)}
    figures = Figures(label)
    for name in kinds:
        plain, fast = (Side(some, checkpoint, **WEIGHTS[name]) for some in ({}, kernels))
        for number in range(rounds):
            order = (plain, fast) if number % 2 else (fast, plain)
            for requests in (1, CONCURRENT):
                load = "1 request" if requests == 1 else f"{requests} requests"
                rates = {id(side): side.decode(tokens, requests) for side in order}
                figures.note(f"{name}: decode, {load}", "tokens/s", rates[id(fast)], rates[id(plain)], "PyTorch")
                rates = {id(side): side.frames(frames, requests) for side in order}
                figures.note(f"{name}: talker, {load}", "frames/s", rates[id(fast)], rates[id(plain)], "PyTorch")
            for prompt in prompts.values():
                rates = {id(side): side.prefill(prompt) for side in order}
                figures.note(
                    f"{name}: prefill {len(prompt)}", "positions/s", rates[id(fast)], rates[id(plain)], "PyTorch"
                )
        plain.ours.stop()
        fast.ours.stop()
        del plain, fast
        gc.collect()
    install({})
    return figures.rows()


@click.command()
@quick_option
@json_option
@click.option(
    "--checkpoint", type=click.Path(exists=True, path_type=Path), help="Default: a random one of size --size."
)
@click.option("--size", type=click.Choice(list(LABELS)), default="mid")
@click.option("--weights", type=click.Choice(list(WEIGHTS)), multiple=True, help="Default: all; with --quick four.")
@click.option("--threads", type=int, default=1, help="Of PyTorch and of the kernels.")
@click.option("--rounds", type=click.IntRange(1), default=5)
@click.option("--wall", is_flag=True, help="Measure wall time instead of CPU time.")
def main(
    quick: bool,
    json_path: Path | None,
    checkpoint: Path | None,
    size: str,
    weights: tuple[str, ...],
    threads: int,
    rounds: int,
    wall: bool,
) -> None:
    """omni-kernels-cpu beside PyTorch."""
    if (reason := problem()) is not None:
        raise click.ClickException(f"omni-kernels-cpu cannot work here: {reason}")
    click.echo(f"instruction set: {instruction_set()}, threads: {threads}")
    engine.clock = time.perf_counter if wall or threads > 1 else time.process_time
    torch.set_num_threads(threads)
    rounds, tokens, frames = (1, 16, 6) if quick else (rounds, 64, 24)
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = checkpoint or write_tiny_checkpoint(Path(folder) / size, shape=size)
        kinds = weights or (QUICK if quick else tuple(WEIGHTS))
        rows = beside_pytorch(LABELS[size], checkpoint, kinds, rounds=rounds, tokens=tokens, frames=frames)
    publish(rows, json_path)


if __name__ == "__main__":
    main()
