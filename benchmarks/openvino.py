"""Qwen3-Omni with speech beside OpenVINO GenAI's ``OmniPipeline`` on the same random weights of 270 M, on a CPU.

    python benchmarks/openvino.py [--python PYTHON --exported FOLDER] [--weights W] [--stages one|separate] [--quick] [--json FILE]

PYTHON: the interpreter of an environment with ``openvino-genai`` 2026.4.1; FOLDER: what ``optimum-cli export openvino --task
image-text-to-text --weight-format fp32|int8`` (optimum-intel 2.2.0, transformers 5.5.4) makes of the checkpoint that
``omni tiny-checkpoint qwen3 DIRECTORY --shape mid`` writes. Without them only ours is measured. Each side is a process that waits
while the other one computes; rounds alternate, with fresh prompts. Both are greedy; texts of float32 weights must be equal.
``OmniPipeline`` answers one request after the other. Memory is PSS, of our process and all that it starts.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import click
from report import Row, alone, compare, json_option, publish, quick_option

from omni_testing.tiny.qwen3 import write_tiny_checkpoint

WORKER = Path(__file__).with_name("peer_openvino.py")
OTHER = "OmniPipeline"
REQUESTS = (1, 4)
PIECE = 4
"""Frames of 80 ms in the first piece of sound, of both."""


class Side:
    """A process with a pipeline."""

    def __init__(self, name: str, python: str, log: Path, options: dict[str, Any]) -> None:
        self.name, self._log = name, log
        environment = dict(os.environ)
        if name != "ours":
            environment.pop("PYTHONPATH", None)  # of our environment, not of theirs
        with log.open("w") as said:
            self._process = subprocess.Popen(
                [python, "-P", str(WORKER), "ours" if name == "ours" else "openvino"],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=said, text=True, env=environment,
            )  # fmt: skip
        self.begun = self.ask(options)

    def ask(self, message: dict[str, Any]) -> dict[str, Any]:
        """Return the answer.

        Raises:
            click.ClickException: the process has ended; the message has the end of what it printed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(json.dumps(message), file=self._process.stdin, flush=True)
        if not (line := self._process.stdout.readline()):
            raise click.ClickException(f"{self.name} has ended:\n{self._log.read_text()[-2000:]}")
        answer: dict[str, Any] = json.loads(line)
        return answer

    def stop(self) -> None:
        """Let it end."""
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait()


def figures(told: dict[str, Any]) -> dict[str, float]:
    """Return what a round says: seconds, each the mean over its requests but for those of all of them together."""
    answers = told["answers"]
    sound = sum(each["sound"] for each in answers)
    return {
        "first text": sum(each["first text"] for each in answers) / len(answers),
        "first sound": sum(each["first sound"] for each in answers) / len(answers),
        "seconds per second of sound": told["taken"] / sound,
        "CPU seconds per second of sound": told["computed"] / sound,
    }


def measure(sides: list[Side], rounds: int, tokens: int, frames: int, *, equal: bool) -> list[Row]:
    """Measure all sides in turn, in reverse order every other round. ``equal``: their texts must be."""
    found: dict[str, list[list[float]]] = {}
    for number in range(-1, rounds):  # the first is not counted
        for requests in REQUESTS:
            prompts = [f"Tell a story, number {number + 2}, of part {part}." for part in range(requests)]
            told = {
                side.name: side.ask({"prompts": prompts, "tokens": tokens, "frames": frames})
                for side in (sides if number % 2 else reversed(sides))
            }
            texts = [sorted(each["text"] for each in told[side.name]["answers"]) for side in sides]
            if equal and any(each != texts[0] for each in texts):
                raise click.ClickException(f"the two sides wrote different texts: {texts}")
            if number < 0:
                continue
            name = "1 request" if requests == 1 else f"{requests} requests"
            for place, side in enumerate(sides):
                for figure, value in figures(told[side.name]).items():
                    found.setdefault(f"{name}: {figure}", [[] for _ in sides])[place].append(value)
                if requests == REQUESTS[-1]:
                    found.setdefault("memory after requests", [[] for _ in sides])[place].append(
                        told[side.name]["memory"]
                    )
    for what in ("memory", "start"):
        found[f"{what}, ready" if what == "memory" else what] = [[side.begun[what]] for side in sides]
    rows = []
    for name, values in found.items():
        unit = "MB" if "memory" in name else "s"
        rows.append(
            compare(name, unit, *values, OTHER, higher_is_better=False)
            if len(values) > 1
            else alone(name, unit, values[0])
        )
    return rows


@click.command()
@quick_option
@json_option
@click.option("--python", help="The interpreter of an environment with openvino-genai.")
@click.option("--exported", type=click.Path(exists=True, path_type=Path), help="The exported checkpoint.")
@click.option("--checkpoint", type=click.Path(exists=True, path_type=Path), help="What it is of; by default seed 0.")
@click.option(
    "--weights",
    type=click.Choice(["float32", "int8_weight_only", "int8_dynamic_activation_int8_weight"]),
    default="float32",
    help="Ours, of the thinker and the talker; OmniPipeline's are those that were exported.",
)
@click.option("--stages", type=click.Choice(["one", "separate"]), default="one", help="Processes of ours.")
@click.option("--threads", type=int, default=1, help="Of each of our stages, and of OmniPipeline.")
def main(
    quick: bool,
    json_path: Path | None,
    python: str | None,
    exported: Path | None,
    checkpoint: Path | None,
    weights: str,
    stages: str,
    threads: int,
) -> None:
    """Qwen3-Omni beside OmniPipeline."""
    os.environ["OMP_NUM_THREADS"] = str(threads)
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint is None:
            checkpoint = write_tiny_checkpoint(Path(folder) / "mid", shape="mid")
        options = {"weights": weights, "pieces": PIECE, "threads": threads, "stages": stages}
        options |= {"checkpoint": str(checkpoint), "exported": str(exported)}
        pythons = {"ours": sys.executable}
        if python is None or exported is None:
            click.echo(f"{OTHER}: skipped, --python and --exported are not given", err=True)
        else:
            pythons[OTHER] = python
        sides: list[Side] = []
        try:
            for name, each in pythons.items():
                sides.append(Side(name, each, Path(folder) / f"{name}.log", options))
            rounds, tokens, frames = (1, 16, 12) if quick else (5, 48, 32)
            rows = measure(sides, rounds, tokens, frames, equal=weights == "float32")
        finally:
            for side in sides:
                side.stop()
    publish(rows, json_path)


if __name__ == "__main__":
    main()
