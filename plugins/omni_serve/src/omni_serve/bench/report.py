"""The results as a table for a terminal and as one JSON document."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from attrs import define
from rich.console import Console
from rich.table import Table

from omni_serve.bench.load import Run
from omni_serve.bench.summary import Objectives, Spread, Summary, summarize


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
        titles = [
            "load",
            "ok",
            "failed",
            "req/s",
            "TTFT p50/p99",
            "TTFA p50/p99",
            "chunk gap p50/p99",
            "late",
            "sound/s",
        ]
        titles += ["RTF p50", "end p50/p99", *(["goodput/s", "within SLO"] if self.objectives.limits else [])]
        rows = []
        for run, summary in zip(self.runs, self.summaries, strict=True):
            rows.append(self._row(summary, str(run.load) + (" (interrupted)" if run.interrupted else "")))
            if len(self.mix) > 1:
                rows += [self._row(each, f"  {name}") for name, each in self.by_scenario(run).items()]
        return titles, rows

    def _row(self, summary: Summary, name: str) -> list[str]:
        spreads = summary.spreads
        late = f"{seconds(summary.late)} in {summary.delayed}" if summary.sound else "-"
        row = [
            name,
            str(summary.succeeded),
            str(summary.sent - summary.succeeded),
            f"{summary.requests_per_second:.3g}",
        ]
        row += [_pair(spreads.get(each)) for each in ("ttft", "ttfa", "chunk_gap")]
        row += [late, f"{summary.sound_per_second:.3g} s" if summary.sound else "-"]
        row += [f"{spreads['rtf'].p50:.3f}" if "rtf" in spreads else "-", _pair(spreads.get("total"))]
        if self.objectives.limits:
            share = summary.good / summary.sent if summary.sent else 0.0
            row += [f"{summary.goodput:.3g}", f"{share:.0%}"]
        return row

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
        table = Table(box=None, pad_edge=False, header_style="bold")
        for number, title in enumerate(titles):
            table.add_column(title, justify="left" if number == 0 else "right", overflow="fold")
        for row in rows:
            table.add_row(*row, style="dim" if row[0].startswith("  ") else None)
        console.print(table)
        for line in self.failures():
            console.print(line, style="red", markup=False, highlight=False)
        for run in self.runs:
            if run.unfinished:
                console.print(f"{run.load}: {run.unfinished} unfinished requests are not counted", style="yellow")
        for summary in self.summaries:
            if summary.client_lag > 0.05:
                lag = seconds(summary.client_lag)
                console.print(f"{summary.load}: this client sent requests up to {lag} late", style="yellow")


def _pair(spread: Spread | None) -> str:
    return "-" if spread is None else f"{seconds(spread.p50)} / {seconds(spread.p99)}"


def seconds(value: float) -> str:
    """Return a time for people."""
    return f"{value * 1000:.3g} ms" if 0 < value < 0.9995 else f"{value:.3g} s"
