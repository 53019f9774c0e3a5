"""The results as one HTML file: the table and charts in SVG. It has no scripts and fetches nothing."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
from attrs import frozen

from omni_serve.bench.report import Report
from omni_serve.bench.timeline import MEASURES

_STYLE = """
:root { color-scheme: light dark; --ink: #1b1f24; --paper: #fff; --line: #d0d7de; --soft: #59636e }
@media (prefers-color-scheme: dark) { :root { --ink: #e6edf3; --paper: #0d1117; --line: #30363d; --soft: #9198a1 } }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--paper); margin: 2rem auto;
  max-width: 72rem; padding: 0 1rem }
h1 { font-size: 1.4rem } h2 { font-size: 1.05rem; margin: 0 0 .3rem } p { color: var(--soft) }
.wide { overflow-x: auto } table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap }
th, td { padding: .3rem .6rem; font-size: 13px; vertical-align: bottom; text-align: right; border-bottom: 1px solid var(--line) }
th:first-child, td:first-child { text-align: left }
td:first-child { white-space: pre }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(22rem, 1fr)); gap: 1.5rem; margin-top: 2rem }
svg { width: 100%; height: auto; overflow: visible } svg text { font: 11px system-ui, sans-serif; fill: var(--soft) }
.grid { stroke: var(--line); stroke-width: 1 } .curve { fill: none; stroke-width: 2; stroke-linejoin: round }
"""
_COLORS = ("#2f81f7", "#d9730d", "#2da44e", "#bf4b8a", "#8250df", "#c93c37", "#1b7c83", "#9a6700")
_WIDTH, _HEIGHT, _LEFT, _BOTTOM = 420, 220, 52, 34


@frozen
class Curve:
    """A named line; it is drawn in the order of its points."""

    name: str
    points: Sequence[tuple[float, float]]


def page(report: Report) -> str:
    """Return the HTML document."""
    titles, rows = report.rows()
    head = "".join(f"<th>{escape(each).replace(', ', '<br>')}</th>" for each in titles)
    body = "".join("<tr>" + "".join(f"<td>{escape(each)}</td>" for each in row) + "</tr>" for row in rows)
    mix = ", ".join(f"{name} {weight:g}" for name, weight in report.mix.items())
    slo = ", ".join(f"{MEASURES[name]} ≤ {most:g}" for name, most in report.objectives.limits.items())
    facts = [f"Model {report.model}", f"requests: {mix}", *([f"objectives: {slo}"] if slo else []), report.started]
    failures = "".join(f"<li>{escape(each)}</li>" for each in report.failures())
    return f"""<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>{escape(report.url)}: measured</title><style>{_STYLE}</style></head><body>
<h1>{escape(report.url)}</h1><p>{escape(" · ".join(each for each in facts if each))}</p>
<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>
{f"<h2>Failures</h2><ul>{failures}</ul>" if failures else ""}
<div class="charts">{"".join(charts(report))}</div></body></html>
"""


def charts(report: Report) -> list[str]:
    """Return the charts that the results are enough for."""
    made = []
    summaries, loads = report.summaries, [run.load.value for run in report.runs]
    for name in ("ttft", "ttfa", "total", "late"):
        curves = []
        for run in report.runs:
            values = [each.measure(name) for each in run.timelines if each.error is None]
            if numbers := sorted(each for each in values if each is not None):
                share = np.linspace(0, 1, len(numbers)) if len(numbers) > 1 else np.ones(1)
                curves.append(Curve(str(run.load), list(zip(numbers, share.tolist(), strict=True))))
        if curves and (name != "late" or any(point[0] > 0 for curve in curves for point in curve.points)):
            made.append(chart(f"{MEASURES[name].capitalize()}: share of requests", curves, "seconds", "share"))
    if len(loads) > 1:
        unit = "requests per second" if report.runs[0].load.rate is not None else "requests at once"
        curves = [Curve("completed", list(zip(loads, [each.requests_per_second for each in summaries], strict=True)))]
        if report.objectives.limits:
            curves.append(
                Curve("within objectives", list(zip(loads, [each.goodput for each in summaries], strict=True)))
            )
        made.append(chart("Throughput", curves, unit, "per second"))
        for name in ("ttft", "ttfa"):
            found = [
                (load, each.spreads[name]) for load, each in zip(loads, summaries, strict=True) if name in each.spreads
            ]
            if len(found) > 1:
                curves = [
                    Curve(p, [(load, getattr(spread, p)) for load, spread in found]) for p in ("p50", "p90", "p99")
                ]
                made.append(chart(f"{MEASURES[name].capitalize()} by load", curves, unit, "seconds"))
    return made


def chart(title: str, curves: Sequence[Curve], x_title: str, y_title: str) -> str:
    """Return a line chart, with axes from zero, as SVG in a ``section``."""
    most_x = nice(max(x for curve in curves for x, _ in curve.points))
    most_y = nice(max(y for curve in curves for _, y in curve.points))

    def place(x: float, y: float) -> tuple[float, float]:
        return _LEFT + x / most_x * (_WIDTH - _LEFT), (1 - y / most_y) * (_HEIGHT - _BOTTOM)

    parts = []
    for step in range(5):
        x, y = place(most_x * step / 4, most_y * step / 4)
        bottom = _HEIGHT - _BOTTOM
        parts.append(f'<line class="grid" x1="{_LEFT}" y1="{y:.1f}" x2="{_WIDTH}" y2="{y:.1f}"/>')
        parts.append(f'<text x="{_LEFT - 6}" y="{y + 4:.1f}" text-anchor="end">{most_y * step / 4:.3g}</text>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 15}" text-anchor="middle">{most_x * step / 4:.3g}</text>')
    parts.append(f'<text x="{(_LEFT + _WIDTH) / 2}" y="{_HEIGHT - 3}" text-anchor="middle">{escape(x_title)}</text>')
    parts.append(f'<text x="0" y="-8">{escape(y_title)}</text>')
    for number, curve in enumerate(curves):
        color = _COLORS[number % len(_COLORS)]
        places = [place(*point) for point in curve.points]
        line = " ".join(f"{x:.1f},{y:.1f}" for x, y in places)
        parts.append(
            f'<polyline class="curve" stroke="{color}" points="{line}"><title>{escape(curve.name)}</title></polyline>'
        )
        if len(places) < 30:
            parts += [f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{color}"/>' for x, y in places]
    legend = " ".join(
        f'<tspan fill="{_COLORS[number % len(_COLORS)]}">■</tspan> {escape(curve.name)} '
        for number, curve in enumerate(curves)
    )
    parts.append(f'<text x="{_WIDTH}" y="-8" text-anchor="end">{legend}</text>')
    label = escape(f"{title}: " + ", ".join(curve.name for curve in curves))
    svg = f'<svg viewBox="0 -20 {_WIDTH} {_HEIGHT + 20}" role="img" aria-label="{label}">{"".join(parts)}</svg>'
    return f"<section><h2>{escape(title)}</h2>{svg}</section>"


def nice(value: float) -> float:
    """Return a round number that is not below a value; 1 for 0."""
    if value <= 0:
        return 1.0
    power = 10.0 ** np.floor(np.log10(value))
    return float(next(step * power for step in (1, 2, 4, 6, 8, 10) if step * power >= value * (1 - 1e-9)))
