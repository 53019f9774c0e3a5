"""Objectives: the most that 95 of 100 requests may take."""

from __future__ import annotations

from collections.abc import Mapping

from attrs import frozen

from omni_core.errors import ConfigError, did_you_mean
from omni_core.interface import Interface
from omni_planner.profile import PipelineProfile
from omni_planner.summary import Quantiles, Summary

FIGURES = {
    "ttft": "first text",
    "ttfa": "first sound",
    "gap": "seconds without sound while it plays",
    "done": "completion",
}
"""The figures that may be limited, by the name of ``--slo``."""


@frozen
class Objectives:
    """Limits in seconds by figure; the first one is what a search improves further."""

    limits: Mapping[str, float]

    @classmethod
    def parse(cls, text: str) -> Objectives:
        """Parse ``ttfa=0.5,gap=0``.

        Raises:
            ConfigError: a name is unknown, or a limit is no number of seconds.
        """
        limits: dict[str, float] = {}
        for part in text.split(","):
            name, _, value = part.strip().partition("=")
            if name not in FIGURES:
                known = "; ".join(f"{key}: {what}" for key, what in FIGURES.items())
                raise ConfigError(
                    f"--slo {text}: there is no figure {name!r}{did_you_mean(name, FIGURES)}; there are {known}"
                )
            try:
                limits[name] = float(value.removesuffix("s"))
            except ValueError:
                limits[name] = -1.0
            if not 0 <= limits[name] < float("inf"):
                raise ConfigError(f"--slo {text}: {name} must be a number of seconds of at least 0")
        return cls(limits)

    @property
    def first(self) -> str:
        return next(iter(self.limits))

    def excess(self, figures: Mapping[str, Quantiles]) -> float:
        """Return by how much limits are missed, as a sum of shares; 0: all are met. A gap counts in seconds."""
        found = 0.0
        for name, limit in self.limits.items():
            if name in figures:
                over = figures[name].p95 - limit
                found += max(0.0, over / limit if limit else over)
        return found

    def missed(self, figures: Mapping[str, Quantiles]) -> list[str]:
        """Return the figures that miss their limits."""
        return [name for name, limit in self.limits.items() if name in figures and figures[name].p95 > limit]


def figures_of(summary: Summary, profile: PipelineProfile, interface: Interface | None = None) -> dict[str, Quantiles]:
    """Return the figures of a load by their names in :data:`FIGURES`.

    Args:
        interface: of the pipeline; one that answers in no text has no first text.
    """
    found: dict[str, Quantiles] = {}
    for stage, first in summary.first.items():
        if profile.stages[stage].kind == "vocoder" or profile.stages[stage].frame_seconds > 0:
            found.setdefault("ttfa", first)
        elif interface is None or "text" in interface.outputs:
            found.setdefault("ttft", first)
    if summary.late is not None:
        found["gap"] = summary.late
    if summary.done is not None:
        found["done"] = summary.done
    return found
