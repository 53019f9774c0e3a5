"""The prediction of a plan for a pipeline: what ``omni simulate --json`` or ``omni plan --optimize --json`` has printed into a file."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from attrs import field, frozen

from omni_core.api import ConfigError

SATURATED = 0.9
"""A stage that is at work for this share of the time has no room: its queue grows with every further request."""


@frozen
class Prediction:
    """Predictions of a plan about a pipeline under its load.

    Attributes:
        per_second: requests that end in a second.
        busy: by ``stage`` or ``stage.replica``, the share of the time in which it computes. Entries of devices are there too.
        late: seconds without sound that 95 of 100 listeners have at most; ``None``: it does not say.
        is_estimate: nothing was measured.
    """

    per_second: float
    busy: dict[str, float] = field(factory=dict)
    late: float | None = None
    is_estimate: bool = False

    def share(self, stage: str, replica: int | None = None) -> float | None:
        """Return the share of a stage, of one replica or of all of them on average; ``None``: the plan does not have it."""
        if replica is not None and f"{stage}.{replica}" in self.busy:
            return self.busy[f"{stage}.{replica}"]
        mine = [share for name, share in self.busy.items() if _is_of(name, stage)]
        return sum(mine) / len(mine) if mine else None

    def work(self, stage: str) -> float | None:
        """Return the seconds that a stage computes for a request."""
        mine = [share for name, share in self.busy.items() if _is_of(name, stage)]
        return sum(mine) / self.per_second if mine and self.per_second > 0 else None

    def saturates(self) -> tuple[str, float] | None:
        """Return what has the least room, and its share."""
        return max(self.busy.items(), key=lambda each: each[1]) if self.busy else None


def _is_of(name: str, stage: str) -> bool:
    return name == stage or (name.startswith(f"{stage}.") and name.rpartition(".")[2].isdecimal())


def read_prediction(path: Path) -> Prediction:
    """Read what a plan predicts.

    Raises:
        ConfigError: the file cannot be read, or is no such document.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if "front" in document:
            return _of_trial(document["front"][document["chosen"]], document["estimate"])
        if "cell" in document:  # of a fleet, each of whose cells is a pipeline
            return _of_trial(document["cell"], document["estimate"])
        return _of_simulation(document)
    except OSError as error:
        raise ConfigError(f"{path}: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        wanted = "give what `omni simulate --json` or `omni plan --optimize --json` has printed"
        raise ConfigError(f"{path}: no plan: {wanted} ({type(error).__name__}: {error})") from None


def _of_simulation(document: Mapping[str, Any]) -> Prediction:
    late = document["late"]
    busy = {
        **document["busy"]["stages"],
        **{f"gpu {name}": share for name, share in document["busy"]["devices"].items()},
    }
    return Prediction(
        float(document["per_second"]),
        {str(name): float(share) for name, share in busy.items()},
        None if late is None else float(late["p95"]),
        bool(document["estimate"]),
    )


def _of_trial(trial: Mapping[str, Any], is_estimate: bool) -> Prediction:
    gap = trial["figures"].get("gap")
    return Prediction(
        float(trial["per_second"]),
        {str(name): float(share) for name, share in trial["busy"].items()},
        None if gap is None else float(gap["p95"]),
        bool(is_estimate),
    )
