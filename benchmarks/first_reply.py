"""Measures startup: time to ready, first text, first sound, memory, a restart; and what ``omni --help`` and ``omni run --help`` compute.

    python benchmarks/first_reply.py [--before PYTHON] [--quick] [--json FILE]

The pipeline is the demo, whose network is small, so the figures are those of the runtime and of importing the libraries. With
``--before``, the interpreter of an environment with an earlier version, both versions run in turn and the ratio is shown.
The two helps are compared with the start of a bare interpreter.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
from pathlib import Path

import click
from report import Row, alone, compare, json_option, publish, quick_option

PROBE = Path(__file__).parent / "start_probe.py"
FIGURES = {
    "start": "s",
    "very first text": "s",
    "very first sound": "s",
    "first text": "s",
    "first sound": "s",
    "private memory": "MiB in all processes",
    "memory": "MiB in all processes, with their shares of shared pages",
    "restart": "s",
}
MODES = {"separate": "8 processes", "one": "1 process"}


def processor_time(*command: str) -> float:
    """Run a command; return the seconds that it and its children have computed."""
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *command], check=True, capture_output=True)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def probe(python: str, mode: str, replies: int) -> dict[str, float]:
    """Start the pipeline once in an interpreter; return the figures."""
    command = [python, str(PROBE), mode, str(replies)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    figures: dict[str, float] = json.loads(done.stdout)
    return figures


@click.command()
@click.option("--before", metavar="PYTHON", help="The interpreter of an environment with an earlier version.")
@quick_option
@json_option
def main(before: str | None, quick: bool, json_path: Path | None) -> None:
    """Start-up and first reply."""
    rounds, replies = (1, 2) if quick else (3, 5)
    rows: list[Row] = []
    for help_of in (["--help"], ["run", "--help"]):
        pairs = [
            (processor_time("-m", "omni_core.cli", *help_of), processor_time("-c", "pass")) for _ in range(5 * rounds)
        ]
        ours, bare = ([each[index] for each in pairs] for index in (0, 1))
        rows.append(compare(f"omni {' '.join(help_of)}", "s", ours, bare, "python -c pass", higher_is_better=False))
    for mode, label in MODES.items():
        ours, theirs = [], []
        for _ in range(rounds):
            ours.append(probe(sys.executable, mode, replies))
            theirs += [] if before is None else [probe(before, mode, replies)]
        for name, unit in FIGURES.items():
            if name not in ours[0]:
                continue
            mine, title = [each[name] for each in ours], f"{name}, {label}"
            if before is None:
                rows.append(alone(title, unit, mine))
            else:
                other = [each[name] for each in theirs]
                rows.append(compare(title, unit, mine, other, "before", higher_is_better=False))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
