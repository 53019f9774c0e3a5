"""Plots of a plan: the front of cost against the first objective, and what is busy in each of its placements; of a simulation, the times of
its requests, and what is busy. Needs matplotlib.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omni_core.errors import ConfigError
from omni_planner.objectives import FIGURES, Objectives
from omni_planner.simulate import Outcome, events_of
from omni_planner.summary import times_of
from omni_planner.trials import Trial

SUFFIXES = (".png", ".svg")


def check_plot(path: Path) -> None:
    """Raise a ConfigError if a plot cannot be written there, before the search."""
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"--plot {path}: must end with {' or '.join(SUFFIXES)}")
    if not path.absolute().parent.is_dir():
        raise ConfigError(f"--plot {path}: there is no folder {path.parent}")
    try:
        import matplotlib  # noqa: F401
    except ImportError:
        raise ConfigError("--plot needs matplotlib; try: pip install 'omni-planner[plots]'") from None


def plot(
    path: Path, trials: Sequence[Trial], front: Sequence[Trial], objectives: Objectives, unit: str, title: str
) -> None:
    """Write the plot as PNG or SVG, by the end of its name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    left, right = axes
    first = objectives.first
    for trial in trials:
        if first in trial.figures:
            left.plot(
                trial.cost, trial.figures[first].p95, "o", color="0.6" if trial.excess else "tab:blue", markersize=4
            )
    shown = [each for each in front if first in each.figures]
    left.plot(
        [each.cost for each in shown],
        [each.figures[first].p95 for each in shown],
        "-",
        color="tab:orange",
        label="front",
    )
    left.axhline(
        objectives.limits[first], color="tab:red", linestyle="--", label=f"objective {objectives.limits[first]:g} s"
    )
    left.set(xlabel=f"{unit}s", ylabel=f"{FIGURES[first]}, s (95 of 100)", yscale="log", title=title)
    left.xaxis.get_major_locator().set_params(integer=True)
    left.legend()
    names = sorted(
        {name for each in shown for name in each.shares},
        key=lambda name: -max(each.shares.get(name, 0) for each in shown),
    )
    width = 0.8 / max(1, len(shown))
    for number, trial in enumerate(shown):
        places = [index + number * width for index in range(len(names[:8]))]
        label = f"{trial.cost} {unit}{'s' * (trial.cost > 1)}"
        right.barh(places, [trial.shares.get(name, 0.0) for name in names[:8]], width, label=label)
    right.set(xlim=(0, 1), xlabel="share of the time in which it is busy", title="what saturates")
    right.set_yticks([index + 0.4 - width / 2 for index in range(len(names[:8]))], names[:8])
    right.invert_yaxis()
    right.legend()
    figure.savefig(path)


def plot_simulation(path: Path, outcome: Outcome, title: str) -> None:
    """Write the times of a simulation's requests and the shares of its stages and devices as PNG or SVG, by the end of the name."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    axes: Any = figure.subplots(1, 2)
    left, right = axes
    first, done = times_of(events_of(outcome))
    times = {**{f"first {stage}": values for stage, values in first.items()}, "done": done}
    for name, values in times.items():
        ordered = sorted(values)
        left.plot(ordered, [100 * (index + 1) / len(ordered) for index in range(len(ordered))], label=name)
    left.axhline(95, color="0.6", linestyle="--", linewidth=0.8)
    left.set(xlabel="seconds after a request's arrival", ylabel="requests of 100", ylim=(0, 100), title=title)
    if done:
        left.set_xscale("log")
        left.legend(loc="lower right")
    busy = {**outcome.stages, **{f"gpu {name}": share for name, share in outcome.devices.items()}}
    shown = sorted(busy.items(), key=lambda each: -each[1])[:12]
    right.barh([name for name, _ in shown], [share for _, share in shown])
    right.set(xlim=(0, 1), xlabel="share of the time in which it is busy", title="what saturates")
    right.invert_yaxis()
    figure.savefig(path)
