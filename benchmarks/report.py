"""Shared parts of the benchmarks: the two flags, medians, the table, and the JSON file."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path

import click
from attrs import asdict, frozen


@frozen
class Row:
    """One figure: ours beside the alternative, measured in the same interleaved run. ``ratio`` > 1 means ours is better."""

    name: str
    unit: str
    ours: float
    other: float | None
    other_name: str
    ratio: float | None


def compare(
    name: str, unit: str, ours: Sequence[float], other: Sequence[float], other_name: str, *, higher_is_better: bool
) -> Row:
    """A row of medians. The ratio is the median of the per-round ratios, which a noisy machine disturbs least; there is none to zero."""
    pairs = list(zip(ours, other, strict=True) if higher_is_better else zip(other, ours, strict=True))
    ratio = statistics.median(above / below for above, below in pairs) if all(below for _, below in pairs) else None
    return Row(name, unit, statistics.median(ours), statistics.median(other), other_name, ratio)


def alone(name: str, unit: str, ours: Sequence[float]) -> Row:
    """A figure without an alternative to compare with."""
    return Row(name, unit, statistics.median(ours), None, "", None)


def publish(rows: Sequence[Row], json_path: Path | None) -> None:
    """Print the table and write the JSON file."""
    width = max(len(row.name) for row in rows)
    click.echo(f"{'':{width}}  {'ours':>12}  {'other':>12}  {'ratio':>7}")
    for row in rows:
        other = f"{row.other:12.3f}" if row.other is not None else f"{'-':>12}"
        ratio = f"{row.ratio:6.2f}x" if row.ratio is not None else f"{'-':>7}"
        click.echo(f"{row.name:{width}}  {row.ours:12.3f}  {other}  {ratio}  {row.unit}  {row.other_name}")
    if json_path is not None:
        json_path.write_text(json.dumps([asdict(row) for row in rows], indent=2) + "\n")


quick_option = click.option("--quick", is_flag=True, help="Fewer rounds: ends within 60 seconds.")
json_option = click.option(
    "--json", "json_path", type=click.Path(path_type=Path, dir_okay=False), help="Also write the figures to this file."
)
