"""The results as a table for a terminal and as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define
from rich.console import Console
from rich.table import Table

from omni_serve.bench.load import Run
from omni_serve.bench.summary import Objectives, Spread, Summary, summarize

_BARGE_IN = "barge-in, ms p50/p99"
_TITLES = ["load", "ok", "failed", "requests, per s", "TTFT, ms p50/p99", "TTFA, ms p50/p99", "chunk gap, ms p50/p99",
    "late, s in req.", _BARGE_IN, "end, ms p50/p99", "sound, s per s", "RTF, p50"]  # fmt: skip
_SPARE = ("sound, s per s", "RTF, p50", "end, ms p50/p99", "chunk gap, ms p50/p99", "failed", "requests, per s")
"""The columns that a narrow terminal leaves out, first to last."""

_LAG = 0.05
_PADDING = 2


@define
class Report:
    """All runs against one server."""

    url: str
    model: str
    mix: dict[str, float]
    objectives: Objectives
    runs: Sequence[Run]
    started: str = ""

    @property
    def summaries(self) -> list[Summary]:
        """Return a summary for each run."""
        return [
            summarize(str(run.load), run.timelines, run.seconds, self.objectives, run.client_lag) for run in self.runs
        ]

    def by_scenario(self, run: Run) -> dict[str, Summary]:
        """Return a summary for each scenario of a run."""
        found = {}
        for name in self.mix:
            chosen = [each for each in run.timelines if each.scenario == name]
            found[name] = summarize(f"{run.load}, {name}", chosen, run.seconds, self.objectives)
        return found

    def as_data(self) -> dict[str, Any]:
        """Return the document."""
        runs = []
        for run, summary in zip(self.runs, self.summaries, strict=True):
            runs.append(
                {
                    **summary.as_data(),
                    "interrupted": run.interrupted,
                    "unfinished": run.unfinished,
                    "scenarios": {name: each.as_data() for name, each in self.by_scenario(run).items()},
                    "requests": [each.as_data(run.begun) for each in run.timelines],
                }
            )
        head = {"url": self.url, "model": self.model, "mix": self.mix, "started": self.started}
        return {**head, "slo": dict(self.objectives.limits), "runs": runs}

    def rows(self) -> tuple[list[str], list[list[str]]]:
        """Return the table: titles and rows, the scenarios of a mix below their run."""
        titles = [*_TITLES, *(["goodput, per s", "in SLO"] if self.objectives.limits else [])]
        rows = []
        for run, summary in zip(self.runs, self.summaries, strict=True):
            rows.append(self._row(summary, str(run.load)))
            if len(self.mix) > 1:
                rows += [self._row(each, f"  {name}") for name, each in self.by_scenario(run).items()]
        return titles, rows

    def _row(self, summary: Summary, name: str) -> list[str]:
        spreads, spoken = summary.spreads, summary.sound > 0
        row = [
            name,
            str(summary.succeeded),
            str(summary.sent - summary.succeeded),
            f"{summary.requests_per_second:.3g}",
        ]
        row += [_pair(spreads.get(each)) for each in ("ttft", "ttfa", "chunk_gap")]
        row += [f"{summary.late:.3g} in {summary.delayed}" if spoken else "-"]
        row += [_pair(spreads.get("barge_in"))]
        row += [_pair(spreads.get("total")), f"{summary.sound_per_second:.3g}" if spoken else "-"]
        row += [f"{spreads['rtf'].p50:.3f}" if "rtf" in spreads else "-"]
        if self.objectives.limits:
            share = summary.good / summary.sent if summary.sent else 0.0
            row += [f"{summary.goodput:.3g}", f"{share:.0%}"]
        return row

    @property
    def _interrupts(self) -> bool:
        return any("barge_in" in summary.spreads for summary in self.summaries)

    def failures(self) -> list[str]:
        """Return a line for each class of error of each run."""
        return [
            f"{summary.load}: {count} x {error}"
            for summary in self.summaries
            for error, count in summary.errors.items()
        ]

    def show(self, console: Console) -> None:
        """Print the table, the errors and warnings."""
        titles, rows = self.rows()
        heads = [_head(title) for title in titles]
        widths = [
            max(map(len, [*head.split("\n"), *(row[number] for row in rows)])) for number, head in enumerate(heads)
        ]
        columns = wanted = [number for number, title in enumerate(titles) if title != _BARGE_IN or self._interrupts]
        for name in _SPARE:
            if sum(widths[number] + _PADDING for number in columns) <= console.width:
                break
            columns = [number for number in columns if titles[number] != name]
        table = Table(box=None, padding=(0, _PADDING, 0, 0), header_style="bold")
        for number in columns:
            table.add_column(
                heads[number], justify="right" if number else "left", no_wrap=True, min_width=widths[number]
            )
        for row in rows:
            table.add_row(*(row[number] for number in columns), style="dim" if row[0].startswith("  ") else None)
        console.print(table)
        notes = []
        if left_out := [titles[number] for number in wanted if number not in columns]:
            notes.append(
                f"No room for {', '.join(each.split(', ')[0] for each in left_out)}: --json and --html have all."
            )
        for run, summary in zip(self.runs, self.summaries, strict=True):
            if run.interrupted:
                notes.append(f"{run.load}: interrupted")
            if run.unfinished:
                notes.append(f"{run.load}: {run.unfinished} unfinished requests are not counted")
            if summary.client_lag > _LAG:
                notes.append(f"{run.load}: this client sent requests up to {summary.client_lag:.3g} s late")
        for line in self.failures():
            console.print(line, style="red", markup=False, highlight=False)
        for line in notes:
            console.print(line, style="yellow", markup=False, highlight=False)


def _head(title: str) -> str:
    """Break a title into two lines."""
    first, _, rest = title.partition(", ")
    return f"{first}\n{rest}"


def _pair(spread: Spread | None) -> str:
    return "-" if spread is None else f"{spread.p50 * 1000:.0f} / {spread.p99 * 1000:.0f}"
