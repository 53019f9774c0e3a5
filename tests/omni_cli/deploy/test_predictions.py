"""Predictions of a plan are read from what the planner prints as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from omni_cli.deploy.predictions import Prediction, read_prediction
from omni_core.errors import ConfigError

SIMULATED: dict[str, Any] = {
    "per_second": 4.0,
    "late": {"p50": 0.0, "p95": 0.3},
    "busy": {
        "processors": [1.9],
        "stages": {"thinker": 0.5, "vocoder.0": 0.2, "vocoder.1": 0.4},
        "devices": {"0": 0.8},
    },
    "estimate": False,
}
SEARCHED: dict[str, Any] = {
    "estimate": True,
    "chosen": 1,
    "front": [
        {},
        {"figures": {"gap": {"p50": 0.0, "p95": 0.1}}, "per_second": 9.0, "busy": {"thinker": 0.7, "gpu 0": 0.9}},
    ],
}


def read(folder: Path, document: Any) -> Prediction:
    (folder / "plan.json").write_text(json.dumps(document))
    return read_prediction(folder / "plan.json")


def test_a_simulation_gives_shares_and_the_work_of_a_request(tmp_path: Path) -> None:
    found = read(tmp_path, SIMULATED)
    assert (found.per_second, found.late, found.is_estimate) == (4.0, 0.3, False)
    assert (found.share("thinker"), found.share("vocoder", 1), found.share("thinker", 3)) == (0.5, 0.4, 0.5)
    assert found.share("vocoder") == pytest.approx(0.3)
    assert found.work("vocoder") == pytest.approx(0.6 / 4.0)
    assert (found.share("other"), found.work("other")) == (None, None)
    assert found.saturates() == ("gpu 0", 0.8)
    assert read(tmp_path, {**SIMULATED, "late": None}).late is None


def test_a_search_gives_the_placement_that_it_chose(tmp_path: Path) -> None:
    found = read(tmp_path, SEARCHED)
    assert (found.per_second, found.late, found.is_estimate) == (9.0, 0.1, True)
    assert found.saturates() == ("gpu 0", 0.9)


def test_a_fleet_gives_a_cell(tmp_path: Path) -> None:
    found = read(tmp_path, {"estimate": True, "hosts": 3, "cells": 12, "cell": SEARCHED["front"][1]})
    assert (found.per_second, found.late, found.is_estimate) == (9.0, 0.1, True)


@pytest.mark.parametrize("document", [[], {}, {"front": []}, {"cell": {}}, {**SIMULATED, "busy": 1}, "text"])
def test_what_is_no_plan_is_an_error(tmp_path: Path, document: Any) -> None:
    with pytest.raises(ConfigError, match=r"plan\.json: no plan: give what `omni simulate --json`"):
        read(tmp_path, document)
    with pytest.raises(ConfigError, match="No such file"):
        read_prediction(tmp_path / "gone.json")
