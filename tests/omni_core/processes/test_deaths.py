"""The requests that are lost with a process: every case of the survivors' knowledge."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest
from attrs import evolve

from omni_core.processes import deaths
from omni_core.processes.deaths import DeathReport, Deaths, concerns
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.process_messages import PeerDownReport
from omni_core.protocol.specs import ProcessSpec, StageSpec, UnitSpec
from omni_core.stage.active_requests import DONE, PAYLOAD


def spec(name: str, **fields: object) -> StageSpec:
    return StageSpec(name=name, factory="m:f", **fields)  # type: ignore[arg-type]


LINE = [spec("b", next=["c"])]
"""a -> b -> c, and the process of b dies."""
FUSED = [spec("b", next=["c"]), spec("c", next=["d"])]
"""a -> b -> c -> d, and b and c die together."""
FAN_OUT = [spec("b", next=["c", "d"])]
STREAM = [spec("b", next=["c"], stream_to=["c"])]
END = [spec("b", terminal=True)]
TALKS = [spec("b", terminal=True, stream_to=["c"])]
SKIP = [spec("b", next=["c", "x"]), spec("c", next=["x"])]
"""b sends to c, which shares its process, and to x outside, to which c sends as well."""


def known(completed: tuple[tuple[str, str], ...] = (), silent: tuple[str, ...] = (), **facts: Any) -> DeathReport:
    return DeathReport({*silent}, ["r"], lambda request, stage: (request, stage) in completed, **facts)


@pytest.mark.parametrize(
    ("stages", "report", "holder"),
    [
        pytest.param(LINE, known(), None, id="it had not come"),
        pytest.param(LINE, known(reached={("r", "b")}), "b", id="it had come"),
        pytest.param(
            LINE,
            known(reached={("r", "b")}, arrived={("r", "b", "c"): (PAYLOAD, None)}),
            None,
            id="it had gone on",
        ),
        pytest.param(LINE, known(reached={("other", "b")}), None, id="another had come"),
        pytest.param(LINE, known(silent=("a",)), "b", id="a survivor is silent"),
        pytest.param(
            LINE,
            known(arrived={("r", "b", "c"): (PAYLOAD, None)}, silent=("a",)),
            None,
            id="a survivor is silent, but it had gone on",
        ),
        pytest.param(FUSED, known(reached={("r", "b")}), "c", id="two stages, in either: the last is named"),
        pytest.param(
            FUSED, known(reached={("r", "b")}, arrived={("r", "c", "d"): (PAYLOAD, None)}), None, id="through both"
        ),
        pytest.param(
            FAN_OUT,
            known(reached={("r", "b")}, arrived={("r", "b", "c"): (PAYLOAD, None)}),
            "b",
            id="one of two branches has it",
        ),
        pytest.param(
            FAN_OUT,
            known(reached={("r", "b")}, arrived={("r", "b", "c"): (PAYLOAD, [["c"], []])}),
            None,
            id="the one branch that was chosen has it",
        ),
        pytest.param(
            STREAM,
            known(reached={("r", "b")}, arrived={("r", "b", "c"): (PAYLOAD, None)}),
            "b",
            id="the payload has come, the stream's end has not",
        ),
        pytest.param(
            STREAM,
            known(reached={("r", "b")}, arrived={("r", "b", "c"): (PAYLOAD | DONE, None)}),
            None,
            id="payload and stream have come",
        ),
        pytest.param(END, known(reached={("r", "b")}), "b", id="the result was not told"),
        pytest.param(END, known(reached={("r", "b")}, completed=(("r", "b"),)), None, id="the result was told"),
        pytest.param(
            TALKS,
            known(reached={("r", "b")}, completed=(("r", "b"),)),
            "b",
            id="the result was told, the stream's end has not come",
        ),
        pytest.param(
            TALKS,
            known(reached={("r", "b")}, completed=(("r", "b"),), arrived={("r", "b", "c"): (DONE, None)}),
            None,
            id="the result was told and the stream's end has come",
        ),
        pytest.param(
            [spec("b", terminal=True, stream_to=["c"], stream_done_to_fn="m:f")],
            known(reached={("r", "b")}, completed=(("r", "b"),)),
            None,
            id="the result was told, and it need not stream",
        ),
        pytest.param(
            SKIP,
            known(reached={("r", "b")}, arrived={("r", "b", "x"): (PAYLOAD, None)}),
            "c",
            id="the outer branch has it, the inner stage still held it",
        ),
    ],
)
def test_lost_requests(stages: list[StageSpec], report: DeathReport, holder: str | None) -> None:
    assert report.lost(stages) == ({} if holder is None else {"r": holder})


def test_a_death_report_waits_for_every_survivor() -> None:
    report = DeathReport({"a", "c"}, ["r", "s"], lambda *_: False, {("r", "b")})
    assert report.missing == {"a", "c"}
    report.take(PeerDownReport(1, "a", reached=[("s", "b")]))
    assert report.missing == {"c"}
    report.take(PeerDownReport(1, "c", arrived=[("r", "b", "c", PAYLOAD, None)]))
    assert report.missing == set()
    assert report.lost(LINE) == {"s": "b"}


def test_a_survivor_that_dies_is_reported_missing_without_a_wait() -> None:
    report = known(silent=("a",))
    report.drop("a")
    assert report.missing == set()
    assert report.lost(LINE) == {"r": "b"}


def test_results_at_the_coordinator_are_not_lost() -> None:
    report = DeathReport(set(), ["r", "s"], lambda request, stage: request == "r", {("r", "b"), ("s", "b")})
    assert report.lost(END) == {"s": "b"}


def test_a_request_concerns_the_replica_that_it_was_placed_on() -> None:
    process = ProcessSpec(
        name="b.1", stages=LINE, endpoint="ipc://e", coordinator_endpoint="ipc://c", stage_endpoints={}
    )
    unit = UnitSpec(name="b.1", group="b", replica=1, processes=[process])
    assert concerns(OmniRequest(placement={"b": 1}), unit)
    assert not concerns(OmniRequest(placement={"b": 0}), unit)
    first = evolve(unit, name="b", replica=0)
    assert concerns(OmniRequest(placement={"other": 1}), first), "what was not placed is the first's"
    assert not concerns(OmniRequest(placement={"other": 1}), unit)


class Runner:
    """The requests of two units, and a record of what is told."""

    def __init__(self) -> None:
        self.lost: list[dict[str, str]] = []
        self.told: list[tuple[str, float]] = []
        coordinator: Any = SimpleNamespace(
            attempts=lambda: {"r": OmniRequest()},
            completed=lambda request, stage: False,
            process_lost=lambda requests, reason, excuse: (self.lost.append(requests), excuse()),
        )
        control: Any = SimpleNamespace(peer_is_down=lambda endpoint: [], tell=lambda endpoint, message: None)
        self.deaths = Deaths(coordinator, control)

    def unit(self, name: str, **stage: object) -> Any:
        process = ProcessSpec(
            name=name,
            stages=[spec(name, **stage)],
            endpoint=f"ipc://{name}",
            coordinator_endpoint="ipc://c",
            stage_endpoints={},
        )
        life = SimpleNamespace(last_death=7.0, excuse=lambda death: self.told.append(("excused", death)))
        return SimpleNamespace(
            spec=UnitSpec(name=name, group=name, processes=[process]),
            label=name,
            life=life,
            settled=lambda death: self.told.append(("settled", death)),
        )


async def test_units_that_die_together_do_not_wait_for_each_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deaths, "REPORT_SECONDS", 30.0)
    runner = Runner()
    first, second = runner.unit("a", terminal=True), runner.unit("b", terminal=True)
    settling = runner.deaths.settle(first, [second], "killed")
    first.life.last_death = 8.0  # it has died again since
    runner.deaths.survivor_died(second.spec)  # in the same turn of the event loop
    async with asyncio.timeout(5):
        await settling
    assert runner.lost == [{"r": "a"}]
    assert runner.told == [("excused", 7.0), ("settled", 7.0)]


async def test_a_request_is_lost_with_its_last_stage_although_the_one_that_sent_it_there_died_before() -> None:
    """The process that knew what it had written is gone; its successor knows nothing."""
    runner = Runner()
    sender, last = runner.unit("a", next=["b"]), runner.unit("b", terminal=True)
    settling = runner.deaths.settle(sender, [last], "killed")
    runner.deaths.take(PeerDownReport(1, "b", [], [("r", "a", "b", PAYLOAD, None)]))
    await settling
    assert runner.lost == [{}], "it had gone on"
    settling = runner.deaths.settle(last, [sender], "killed")
    runner.deaths.take(PeerDownReport(2, "a"))
    await settling
    assert runner.lost == [{}, {"r": "b"}]
