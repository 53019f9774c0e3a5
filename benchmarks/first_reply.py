"""Measures startup: time to ready, first text, first sound, memory, a restart; and the wall time of ``omni --help``.

    python benchmarks/first_reply.py [--before PYTHON] [--quick] [--json FILE]

The pipeline is the demo, whose network is small, so the figures are those of the runtime and of importing the libraries. With
``--before``, the interpreter of an environment with an earlier version, both versions run in turn and the ratio is shown.
``omni --help`` is compared with the start of a bare interpreter.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
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


def wall(*command: str) -> float:
    begin = time.perf_counter()
    subprocess.run(command, check=True, capture_output=True)
    return time.perf_counter() - begin


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
    helps = [
        (wall(sys.executable, "-m", "omni_core.cli", "--help"), wall(sys.executable, "-c", "pass"))
        for _ in range(3 * rounds)
    ]
    rows: list[Row] = [
        compare(
            "omni --help", "s", [a for a, _ in helps], [b for _, b in helps], "python -c pass", higher_is_better=False
        )
    ]
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
