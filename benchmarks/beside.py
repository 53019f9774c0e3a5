"""Our thinker beside llama.cpp and vLLM on the same weights: the rows of ``engine.py --beside``.

Each engine is a process of its own (peer_engine.py) that waits while another one is measured. Rounds alternate, in reverse order every
other round, with fresh prompts. Prompts are 54 and 1,000 ids; *decode* is what follows the first tokens.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import click
from attrs import frozen
from report import Row, compare

from omni_core.launch.prepare import ENVIRONMENT

WORKER = Path(__file__).with_name("peer_engine.py")
PEERS = ("llama.cpp", "vllm")
WEIGHTS = {
    "float32": ("float32",),
    "bfloat16": ("bfloat16", "bfloat16_lossless"),
    "int8": ("int8_weight_only", "int8_weight_only_groups", "int8_dynamic_activation_int8_weight"),
    "int4": ("int4_weight_only", "int8_dynamic_activation_int4_weight"),
}
"""Our ways for each kind of weights. vLLM has the first two on a CPU."""

Draw = Callable[[int, int], list[int]]

WARM_UPS = 4
"""Prompts before the first measured one. A decode step is called often enough in one."""

REST = 0.3
"""Seconds after a measurement, in which threads that spin for more work go to sleep."""


@frozen
class Load:
    """One kind of work: ``requests`` prompts of ``length`` ids at once, each with ``tokens`` new ones."""

    name: str
    requests: int
    length: int
    tokens: int
    unit: str


LOADS = (
    Load("decode, 1 request", 1, 54, 64, "tokens/s"),
    Load("decode, 8 requests", 8, 54, 64, "tokens/s"),
    Load("decode, 32 requests", 32, 54, 33, "tokens/s"),
    Load("prefill 54", 1, 54, 1, "positions/s"),
    Load("prefill 1,000", 1, 1000, 1, "positions/s"),
)


AWAKE = Load("one prompt", 1, 54, 1, "positions/s")
"""Computed before each measurement: Linux may have taken the pages of an engine that waited, which then reads its weights from the disk."""


class Worker:
    """A process with an engine. ``name`` is for messages."""

    def __init__(self, name: str, python: str, folder: Path, **options: Any) -> None:
        self.name, self._said = name, folder / f"{name}-{options['weights']}.log"
        kept = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "VIRTUAL_ENV")}
        if name not in PEERS:
            kept = {**ENVIRONMENT, **kept}  # what a stage process of ours has
        environment = {**kept, "OMP_NUM_THREADS": str(options["threads"]), "TOKENIZERS_PARALLELISM": "false"}
        with self._said.open("w") as log:
            self._process = subprocess.Popen(
                [python, str(WORKER)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=log, text=True, env=environment
            )  # fmt: skip
        try:
            self.ask(**options)
        except BaseException:
            self.stop()
            raise

    def ask(self, **message: Any) -> dict[str, Any]:
        """Return the answer.

        Raises:
            click.ClickException: the engine failed; the message has the end of what it printed.
        """
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        line = ""
        try:
            self._process.stdin.write(json.dumps(message) + "\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            pass
        answer: dict[str, Any] = json.loads(line) if line else {"error": f"ended with {self._process.wait()}"}
        if "error" in answer:
            raise click.ClickException(f"{self.name}: {answer['error']}\n{self._said.read_text()[-2000:]}")
        return answer

    def generate(self, load: Load, prompts: list[list[int]]) -> dict[str, Any]:
        answer = self.ask(prompts=prompts, tokens=load.tokens)
        time.sleep(REST)
        return answer

    def stop(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


def rate(load: Load, answer: dict[str, Any], clock: str) -> float:
    if load.tokens == 1:
        return load.length / float(answer["prefill"][clock])
    return float(answer["decoded"]) / float(answer["decode"][clock])


def equal_ids(ours: dict[str, Any], theirs: dict[str, Any]) -> tuple[int, int]:
    """Return how many ids agree before the first difference of each request, and how many there are."""
    same = total = 0
    for mine, other in zip(ours["ids"], theirs["ids"], strict=True):
        differ = next(
            (place for place, pair in enumerate(zip(mine, other, strict=True)) if pair[0] != pair[1]), len(mine)
        )
        same, total = same + differ, total + len(mine)
    return same, total


def measure(
    label: str, kind: str, sides: dict[str, Worker], loads: Sequence[Load], *, rounds: int, clock: str, draw: Draw
) -> list[Row]:
    """Measure ``loads`` on all sides, those that are not ours last in ``sides``."""
    samples: dict[tuple[str, str], list[float]] = {}
    for load in loads:  # what is compiled or laid out at first use, and threads that are chosen by trial
        for number in range(WARM_UPS if load.tokens == 1 else 1):
            prompts = [draw(load.length, -1 - seed - number) for seed in range(load.requests)]
            for worker in sides.values():
                worker.generate(load, prompts)
    equal: dict[tuple[str, str], tuple[int, int]] = {}
    ours = [name for name in sides if name not in PEERS]
    peers = [name for name in sides if name in PEERS]
    for number in range(rounds):
        order = list(sides) if number % 2 else list(reversed(sides))
        for load in loads:
            prompts = [draw(load.length, 1000 * number + seed) for seed in range(load.requests)]
            answers = {}
            for name in order:
                sides[name].generate(AWAKE, [draw(AWAKE.length, -1)])
                answers[name] = sides[name].generate(load, prompts)
            for name, made in answers.items():
                samples.setdefault((name, load.name), []).append(rate(load, made, clock))
            so_far = ", ".join(f"{name} {samples[name, load.name][-1]:.1f}" for name in answers)
            click.echo(f"{label}, round {number + 1}, {load.name}, {load.unit}: {so_far}", err=True)
            for peer in peers:
                if kind == "float32" and load.requests > 1 and number == 0:
                    equal[load.name, peer] = equal_ids(answers[ours[0]], answers[peer])
    rows = []
    for load in loads:
        medians = {peer: statistics.median(samples[peer, load.name]) for peer in peers}
        better = max(medians, key=lambda peer: medians[peer])
        for mine in ours:
            for peer in peers:
                other = f"{peer}, the better" if peer == better else peer
                pair = samples[mine, load.name], samples[peer, load.name]
                rows.append(compare(f"{label}, {mine}: {load.name}", load.unit, *pair, other, higher_is_better=True))
    for (name, peer), (same, total) in equal.items():
        rows.append(Row(f"{label}, float32: ids equal, {name}", "ids", same, total, peer, same / total))
    return rows


def beside(
    label: str,
    checkpoint: Path,
    pythons: dict[str, str],
    *,
    weights: Sequence[str],
    ways: Sequence[str] = (),
    loads: Sequence[str] = (),
    threads: Sequence[int],
    rounds: int,
    cpu: bool,
    ours: str,
    draw: Draw,
) -> list[Row]:
    """Measure each kind of weights at each number of threads.

    Args:
        ways: which of :data:`WEIGHTS` are measured for a kind that has more than one; all of them if empty.
        loads: names of those of :data:`LOADS` that are measured; all of them if empty.
        pythons: an interpreter for each of :data:`PEERS` that is compared. ours: the interpreter of our own process.
        draw: returns a prompt of some length for a seed.
        cpu: measure CPU time at one thread, for a machine with other load; more threads are measured by wall clock.
    """
    rows: list[Row] = []
    some_loads = [each for each in LOADS if each.name in loads] or LOADS
    with tempfile.TemporaryDirectory() as folder:
        for count in threads:
            for kind in weights:
                some = {name: python for name, python in pythons.items() if name != "vllm" or "int" not in kind}
                if not some:
                    continue
                sides: dict[str, Worker] = {}
                options = {"checkpoint": str(checkpoint), "threads": count, "scratch": folder}
                try:
                    for way in [each for each in WEIGHTS[kind] if each in ways] or WEIGHTS[kind]:
                        sides[way] = Worker(way, ours, Path(folder), engine="omni", weights=way, **options)
                    for name, python in some.items():
                        sides[name] = Worker(name, python, Path(folder), engine=name, weights=kind, **options)
                    title = f"{label}, {count} thread{'s' if count > 1 else ''}"
                    clock = "cpu" if cpu and count == 1 else "wall"
                    made = measure(title, kind, sides, some_loads, rounds=rounds, clock=clock, draw=draw)
                finally:
                    for worker in sides.values():
                        worker.stop()
                for row in made:
                    click.echo(
                        f"{row.name}: {row.ours:.1f} {row.unit}, {row.other:.1f} {row.other_name}, {row.ratio:.2f}",
                        err=True,
                    )
                rows += made
    return rows


def interpreters(given: Sequence[str]) -> dict[str, str]:
    """Read ``NAME=PYTHON`` options.

    Raises:
        click.BadParameter: a name is unknown, or an interpreter is missing.
    """
    found = {}
    for each in given:
        name, _, python = each.partition("=")
        if name not in PEERS or not python:
            raise click.BadParameter(f"{each!r}: must be NAME=PYTHON with a NAME of {', '.join(PEERS)}")
        if not Path(python).exists():
            raise click.BadParameter(f"{each!r}: there is no {python}")
        found[name] = python
    return found
