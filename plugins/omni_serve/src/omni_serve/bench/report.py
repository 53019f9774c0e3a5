"""The results: a summary of each run, a table for a terminal, and one JSON document."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
from attrs import asdict, frozen
from rich.console import Console
from rich.table import Table

from omni_serve.bench.load import Run
from omni_serve.bench.timeline import MEASURES

_TITLES = ["load", "ok", "failed", "TTFA\nms p50/p99", "gap\nms p50/p99", "late\nrequests", "late\ns", "RTF\np50/p99",
    "sound\ns per s"]  # fmt: skip
_LAG = 0.05


@frozen
class Spread:
    """Percentiles of a measure."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    max: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Return those of some values, between which it interpolates."""
        p50, p90, p99 = (float(each) for each in np.percentile(values, [50, 90, 99]))
        return cls(len(values), float(np.mean(values)), p50, p90, p99, max(values))


@frozen
class Summary:
    """One run.

    Attributes:
        load: such as "concurrency 4".
        seconds: from the first request to the last end.
        sent, succeeded: requests.
        errors: failed ones by class.
        spreads: by measure, of those that succeeded.
        delayed: requests with a pause.
        late: all their late seconds.
        sound_per_second: seconds of sound in all answers, per second.
    """

    load: str
    seconds: float
    sent: int
    succeeded: int
    errors: dict[str, int]
    spreads: dict[str, Spread]
    delayed: int
    late: float
    sound_per_second: float

    @classmethod
    def of(cls, run: Run) -> Summary:
        """Return the summary of a run."""
        fine = [each for each in run.timelines if each.error is None]
        numbers = {name: [v for each in fine if (v := getattr(each, name)) is not None] for name in MEASURES}
        seconds = run.ended - run.begun
        return cls(
            load=str(run.load),
            seconds=seconds,
            sent=len(run.timelines),
            succeeded=len(fine),
            errors=dict(Counter(each.error for each in run.timelines if each.error is not None).most_common()),
            spreads={name: Spread.of(values) for name, values in numbers.items() if values},
            delayed=sum(1 for each in fine if each.late),
            late=sum(each.late or 0.0 for each in fine),
            sound_per_second=sum(each.sound for each in fine) / seconds if seconds > 0 else 0.0,
        )


def as_data(url: str, model: str, started: str, runs: Sequence[Run]) -> dict[str, Any]:
    """Return the JSON document: all figures, with the times of each request."""
    made = [
        {
            **asdict(Summary.of(run)),
            "interrupted": run.interrupted,
            "requests": [each.as_data(run.begun) for each in run.timelines],
        }
        for run in runs
    ]
    return {"url": url, "model": model, "started": started, "runs": made}


def show(console: Console, runs: Sequence[Run]) -> None:
    """Print the table, the errors and warnings."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for number, title in enumerate(_TITLES):
        table.add_column(title, justify="right" if number else "left", no_wrap=True)
    errors, notes = [], []
    for run in runs:
        summary = Summary.of(run)
        table.add_row(*_row(summary))
        errors += [f"{run.load}: {count} x {error}" for error, count in summary.errors.items()]
        if run.interrupted:
            notes.append(f"{run.load}: interrupted; unfinished requests are not counted")
        if run.client_lag > _LAG:
            notes.append(f"{run.load}: this client sent requests up to {run.client_lag:.3g} s late")
    console.print(table)
    for line in errors:
        console.print(line, style="red", markup=False, highlight=False)
    for line in notes:
        console.print(line, style="yellow", markup=False, highlight=False)


def _row(summary: Summary) -> list[str]:
    spreads = summary.spreads
    head = [summary.load, str(summary.succeeded), str(summary.sent - summary.succeeded)]
    if not spreads:
        return [*head, *("-" for _ in _TITLES[len(head) :])]
    pairs = [f"{spreads[name].p50 * 1000:.0f} / {spreads[name].p99 * 1000:.0f}" for name in ("ttfa", "gap")]
    share = summary.delayed / summary.succeeded
    rtf = f"{spreads['rtf'].p50:.3f} / {spreads['rtf'].p99:.3f}"
    return [*head, *pairs, f"{share:.0%}", f"{summary.late:.3g}", rtf, f"{summary.sound_per_second:.3g}"]
