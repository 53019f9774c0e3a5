"""The requests that die with a process: every case of what the survivors may know."""

from __future__ import annotations

import pytest

from omni_core.processes.deaths import LossReport, lost_requests
from omni_core.protocol.specs import StageSpec
from omni_core.stage.stage import DONE, PAYLOAD


def spec(name: str, **fields: object) -> StageSpec:
    return StageSpec(name=name, factory="m:f", **fields)  # type: ignore[arg-type]


LINE = [spec("b", next=["c"])]
"""a -> b -> c, and the process of b dies."""
FUSED = [spec("b", next=["c"]), spec("c", next=["d"])]
"""a -> b -> c -> d, and b and c die together."""
FAN_OUT = [spec("b", next=["c", "d"])]
STREAM = [spec("b", next=["c"], stream_to=["c"])]
END = [spec("b", terminal=True)]
SKIP = [spec("b", next=["c", "x"]), spec("c", next=["x"])]
"""b hands on to c, beside it in the process, and to x outside, which c hands on to as well."""


@pytest.mark.parametrize(
    ("stages", "report", "holder"),
    [
        pytest.param(LINE, LossReport(), None, id="it had not come"),
        pytest.param(LINE, LossReport(reached={("r", "b")}), "b", id="it had come"),
        pytest.param(
            LINE,
            LossReport(reached={("r", "b")}, arrived={("r", "b", "c"): (PAYLOAD, None)}),
            None,
            id="it had gone on",
        ),
        pytest.param(LINE, LossReport(reached={("other", "b")}), None, id="another had come"),
        pytest.param(LINE, LossReport(complete=False), "b", id="a survivor is silent"),
        pytest.param(
            LINE,
            LossReport(arrived={("r", "b", "c"): (PAYLOAD, None)}, complete=False),
            None,
            id="a survivor is silent, but it had gone on",
        ),
        pytest.param(FUSED, LossReport(reached={("r", "b")}), "c", id="two stages, in either: the last is named"),
        pytest.param(
            FUSED, LossReport(reached={("r", "b")}, arrived={("r", "c", "d"): (PAYLOAD, None)}), None, id="through both"
        ),
        pytest.param(
            FAN_OUT,
            LossReport(reached={("r", "b")}, arrived={("r", "b", "c"): (PAYLOAD, None)}),
            "b",
            id="one of two branches has it",
        ),
        pytest.param(
            FAN_OUT,
            LossReport(reached={("r", "b")}, arrived={("r", "b", "c"): (PAYLOAD, [["c"], []])}),
            None,
            id="the one branch that was chosen has it",
        ),
        pytest.param(
            STREAM,
            LossReport(reached={("r", "b")}, arrived={("r", "b", "c"): (PAYLOAD, None)}),
            "b",
            id="the payload has come, the stream's end has not",
        ),
        pytest.param(
            STREAM,
            LossReport(reached={("r", "b")}, arrived={("r", "b", "c"): (PAYLOAD | DONE, None)}),
            None,
            id="payload and stream have come",
        ),
        pytest.param(END, LossReport(reached={("r", "b")}), "b", id="the result was not told"),
        pytest.param(END, LossReport(reached={("r", "b")}, completed={("r", "b")}), None, id="the result was told"),
        pytest.param(
            SKIP,
            LossReport(reached={("r", "b")}, arrived={("r", "b", "x"): (PAYLOAD, None)}),
            "c",
            id="the outer branch has it, the inner stage still held it",
        ),
    ],
)
def test_what_is_lost(stages: list[StageSpec], report: LossReport, holder: str | None) -> None:
    assert lost_requests(["r"], stages, report) == ({} if holder is None else {"r": holder})
