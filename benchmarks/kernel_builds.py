"""Two builds of the library of omni-kernels-cpu in one process: the kernel of a decode step or of a prompt, in turns, on random inputs.

    python benchmarks/kernel_builds.py --before LIBRARY [--weights W] [--requests N | --prompt N] [--threads N] [--instruction-set NAME]
        [--quick] [--json FILE] [--checkpoint DIR] [--size mid|large]

LIBRARY is what ``python plugins/omni_kernels_cpu/compile.py`` makes in a checkout of an earlier version. The thinker decodes until its
requests have some positions; that step is computed again and again, each time with other hidden states, so that it chooses other experts.
With ``--prompt`` the step is a prompt of so many positions.
"""

from __future__ import annotations

import ctypes
import statistics
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
import torch
from engine import LABELS, opening
from peer_engine import DTYPES, Omni
from report import Row, alone, compare, json_option, publish, quick_option

from omni_kernels_cpu.library import ABI, instruction_set, library, problem, use
from omni_qwen3.config import read_config
from omni_testing.tiny.qwen3 import write_tiny_checkpoint

KERNELS = ("omni_cpu_decode", "omni_cpu_prefill")
"""Decode steps of some kinds of weights are computed by the code of prompts."""

STEP = 60
"""The decode step that is computed again; a prompt has 54 ids."""

INPUTS, PROMPTS = 37, 5
"""Hidden states of a decode step, and of a prompt, that are computed in a round; the median of them is its time."""

Kernel = Callable[[Any, Any, int], None]


def load(path: Path, instructions: str | None) -> ctypes.CDLL:
    """Load a build.

    Raises:
        click.BadParameter: it has another interface, or not the instruction set.
    """
    loaded = ctypes.CDLL(str(path.resolve()))
    if (found := loaded.omni_cpu_abi()) != ABI:
        raise click.BadParameter(
            f"{path} has interface {found}, this version has {ABI}: compile it from a later commit"
        )
    loaded.omni_cpu_use.argtypes = (ctypes.c_char_p,)
    if not loaded.omni_cpu_use(instructions.encode() if instructions else None):
        raise click.BadParameter(f"{path} has no instruction set {instructions!r} for this processor")
    loaded.omni_cpu_measure_threads(0)
    return loaded


class Turns:
    """A step, computed by each build in turn when it comes.

    Args:
        rows: of the step; a decode has one for each request. number: of the step among those with so many rows.
        inputs: how many are computed in a round.

    Attributes:
        seconds: a median for each round, by build. outputs: of the first inputs, by build.
    """

    def __init__(
        self, builds: Mapping[str, ctypes.CDLL], rounds: int, rows: int, number: int, inputs: int, dtype: torch.dtype
    ) -> None:
        self._builds, self._rounds, self._rows, self._number, self._inputs = builds, rounds, rows, number, inputs
        self._dtype, self._steps = dtype, 0
        self.seconds: dict[str, list[float]] = {name: [] for name in builds}
        self.outputs: dict[str, bytes] = {}

    def around(self, name: str, kernel: Kernel) -> Kernel:
        def call(stack: Any, step: Any, threads: int) -> None:
            if step._obj.rows == self._rows:
                self._steps += 1
                if self._steps == self._number:
                    functions = {build: getattr(loaded, name) for build, loaded in self._builds.items()}
                    for function in functions.values():
                        function.argtypes, function.restype = kernel.argtypes, None  # type: ignore[attr-defined]
                    self._measure(functions, stack, step, threads)
            kernel(stack, step, threads)

        return call

    def _measure(self, functions: dict[str, Kernel], stack: Any, step: Any, threads: int) -> None:
        fields, shape = step._obj, (self._rows, stack._obj.hidden)
        given = fields.x
        scale = _tensor(given, shape, self._dtype).float().std()
        inputs = [(torch.randn(shape) * scale).to(self._dtype) for _ in range(self._inputs)]

        def seconds(function: Kernel, x: torch.Tensor) -> float:
            fields.x = x.data_ptr()
            begin = time.perf_counter()
            function(stack, step, threads)
            return time.perf_counter() - begin

        for number in range(self._rounds):
            order = list(functions) if number % 2 else list(reversed(functions))
            for name in order:
                seconds(functions[name], inputs[0])
                self.outputs.setdefault(
                    name, _tensor(fields.output, shape, self._dtype).view(torch.uint8).numpy().tobytes()
                )
                self.seconds[name].append(statistics.median(seconds(functions[name], x) for x in inputs))
        fields.x = given


def _tensor(address: int, shape: tuple[int, int], dtype: torch.dtype) -> torch.Tensor:
    """Return a copy of what is in memory."""
    size = shape[0] * shape[1] * dtype.itemsize
    return torch.frombuffer(bytearray(ctypes.string_at(address, size)), dtype=dtype).view(shape)


def measure(
    checkpoint: Path,
    label: str,
    before: Path,
    weights: str,
    threads: int,
    requests: int,
    prompt: int | None,
    rounds: int,
    instructions: str | None,
) -> list[Row]:
    loaded = library()
    if instructions is not None and not use(instructions):
        raise click.BadParameter(f"this processor has no {instructions}", param_hint="--instruction-set")
    loaded.omni_cpu_measure_threads(0)
    with tempfile.TemporaryDirectory() as scratch:
        engine = Omni(checkpoint, weights, threads, Path(scratch))
    kernels = {name: getattr(loaded, name) for name in KERNELS}
    dtype = torch.bfloat16 if engine.stage.cache.keys[0].dtype == torch.bfloat16 else torch.float32
    builds = {"now": loaded, "before": load(before, instructions)}
    asked = (requests, STEP, INPUTS) if prompt is None else (prompt, 1, PROMPTS)
    turns = Turns(builds, rounds, *asked, dtype)
    try:
        for name, kernel in kernels.items():
            setattr(loaded, name, turns.around(name, kernel))
        config = read_config(checkpoint)
        if prompt is None:
            engine.generate([opening(config, 48, seed)[0].tolist() for seed in range(requests)], STEP + 8)
        else:
            engine.generate([opening(config, prompt - 6)[0].tolist()], 1)
    finally:
        for name, kernel in kernels.items():
            setattr(loaded, name, kernel)
    if not turns.seconds["now"]:
        what = f"decode steps of {requests} requests" if prompt is None else f"a prompt of {prompt} positions"
        raise click.ClickException(f"no kernel computes {what} with {weights}")
    load_name = f"{requests} at once" if prompt is None else f"a prompt of {prompt}"
    title = f"{label}, {instruction_set()}, {weights}, {load_name}, threads: {threads}"
    both = ([1000 * each for each in turns.seconds[name]] for name in ("now", "before"))
    same = float(turns.outputs["now"] == turns.outputs["before"])
    return [
        compare(f"{title}: kernel of a step", "ms", *both, before.name, higher_is_better=False),
        alone(f"{title}: equal bits", "", [same]),
    ]


@click.command()
@quick_option
@json_option
@click.option(
    "--before", type=click.Path(exists=True, dir_okay=False, path_type=Path), required=True, help="The other build."
)
@click.option("--weights", default="bfloat16", help=f"One of {', '.join(DTYPES)}, or a quantization.")
@click.option("--requests", type=click.IntRange(1, 32), default=1)
@click.option("--prompt", type=click.IntRange(8, 1024), help="Positions: a prompt in place of a decode step.")
@click.option("--threads", type=click.IntRange(1), default=1)
@click.option("--instruction-set", help="Default: the best of this processor.")
@click.option(
    "--checkpoint", type=click.Path(exists=True, path_type=Path), help="Default: a random one of size --size."
)
@click.option("--size", type=click.Choice(list(LABELS)), default="mid")
def main(
    quick: bool,
    json_path: Path | None,
    before: Path,
    weights: str,
    requests: int,
    prompt: int | None,
    threads: int,
    instruction_set: str | None,
    checkpoint: Path | None,
    size: str,
) -> None:
    """Two builds of omni-kernels-cpu."""
    if prompt is not None and requests != 1:
        raise click.UsageError("--prompt is of one request: leave out --requests")
    if (reason := problem()) is not None:
        raise click.ClickException(f"omni-kernels-cpu cannot work here: {reason}")
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = checkpoint or write_tiny_checkpoint(Path(folder) / size, shape=size)
        rows = measure(
            checkpoint, LABELS[size], before, weights, threads, requests, prompt, 3 if quick else 15, instruction_set
        )
    publish(rows, json_path)


if __name__ == "__main__":
    main()
