"""Vocoders with omni-kernels-cpu beside the same on PyTorch, and beside another version: milliseconds of CPU per chunk, one thread.

    python benchmarks/vocoder.py [--before PYTHON] [--quick] [--json FILE] [--size mid|large]

``PYTHON`` is the interpreter of a virtual environment that holds the other version. Each side is a process of its own; one of them works at
a time, and the order changes with each round. The chunks are the first one of a request, of 4 frames, and two of 24 frames behind it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import click
from report import Row, compare, json_option, publish, quick_option

from omni_demo.speech.pipeline import CHECKPOINT
from omni_testing.tiny.fish_s2 import write_tiny_checkpoint as write_fish
from omni_testing.tiny.qwen3 import write_tiny_checkpoint

CHUNKS = (4, 24, 24)
LABELS = ("first chunk, 4 frames", "second, 24 frames", "third, 24 frames")


class Side:
    """A process that decodes when asked."""

    def __init__(
        self, python: str, module: str, checkpoint: Path, dtype: str, streams: int, *, kernels: bool = True
    ) -> None:
        environment = {**os.environ, "OMP_NUM_THREADS": "1"}
        if not kernels:
            environment["OMNI_DISABLE_PLUGINS"] = "kernels_cpu"
        probe = str(Path(__file__).parent / "vocoder_probe.py")
        command = [python, probe, module, str(checkpoint), dtype, str(streams), *map(str, CHUNKS)]
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self._answer()

    def decode(self) -> list[float]:
        """Return the milliseconds of each chunk."""
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()
        return self._answer()

    def stop(self) -> None:
        self._process.terminate()
        self._process.wait()

    def _answer(self) -> list[float]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise click.ClickException(f"the process of {self._process.args} has ended")  # type: ignore[str-bytes-safe]
        made: list[float] = json.loads(line)
        return made


def measured(label: str, sides: dict[str, Side], rounds: int) -> list[Row]:
    """Interleaved rounds; ours beside each of the others."""
    samples: dict[str, list[list[float]]] = {name: [] for name in sides}
    for number in range(rounds):
        order = list(sides) if number % 2 else list(reversed(sides))
        for name in order:
            samples[name].append(sides[name].decode())
    for side in sides.values():
        side.stop()
    ours = samples.pop("ours")
    return [
        compare(
            f"{label}: {chunk}", "ms", [each[index] for each in ours], [each[index] for each in other], name,
            higher_is_better=False,
        )
        for index, chunk in enumerate(LABELS)
        for name, other in samples.items()
    ]  # fmt: skip


@click.command()
@quick_option
@json_option
@click.option("--before", metavar="PYTHON", help="Interpreter of an environment with another version.")
@click.option("--size", type=click.Choice(["mid", "large"]), default="mid", help="Of the random checkpoints.")
def main(quick: bool, json_path: Path | None, before: str | None, size: str) -> None:
    """Vocoders with and without compiled kernels."""
    rows: list[Row] = []
    with tempfile.TemporaryDirectory() as folder:
        qwen = write_tiny_checkpoint(Path(folder) / "qwen", shape=size)
        fish = write_fish(Path(folder) / "fish", shape="mid")
        models = {
            "demo": ("omni_qwen3.code2wav", CHECKPOINT),
            f"Qwen3-Omni, {size}": ("omni_qwen3.code2wav", qwen),
            "Fish S2, mid": ("omni_fish_s2.vocoder", fish),
        }
        for label, (module, checkpoint) in models.items():
            for dtype, streams in (("float32", 1), ("bfloat16", 1), *((("float32", 8),) if label == "demo" else ())):
                arguments = module, checkpoint, dtype, streams
                sides = {
                    "ours": Side(sys.executable, *arguments),
                    "PyTorch": Side(sys.executable, *arguments, kernels=False),
                }
                if before is not None:
                    sides["before"] = Side(before, *arguments)
                name = f"{label}, {dtype}" + (f", {streams} streams" if streams > 1 else "")
                rows += measured(name, sides, 2 if quick else 9)
    publish(rows, json_path)


if __name__ == "__main__":
    main()
