"""News that units hear of each other; units and sockets are replaced by records."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from omni_core.launch.units import Units
from omni_core.processes.restarts import UnitState
from omni_core.protocol.process_messages import PeerFailedMessage, PeerUpMessage
from omni_core.protocol.specs import ProcessSpec, StageSpec, UnitSpec


class Control:
    """Records what is sent and which peers are up."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, Any]] = []
        self.up: list[tuple[str, str]] = []

    def send(self, endpoint: str, message: Any, work: Any = None) -> None:
        self.sent.append((endpoint, message))

    tell = send

    def peer_is_up(self, endpoint: str, address: str = "") -> None:
        self.up.append((endpoint, address))

    def peer_has_failed(self, endpoint: str, error: Exception) -> list[Any]:
        return []


class Named(Units):
    """Units that are only named."""

    def __init__(self, *names: str) -> None:
        super().__init__(lambda *_: None, lambda endpoint, seen_from: f"{endpoint} from {seen_from}", lambda _: None)
        self.update({name: _unit(name) for name in names})
        self.plane = Control()
        self.control = self.plane  # type: ignore[assignment]


def _unit(name: str) -> Any:
    process = ProcessSpec(
        name=name,
        stages=[StageSpec(name=name, factory="m:f")],
        endpoint=f"ipc://{name}",
        coordinator_endpoint="ipc://c",
        stage_endpoints={},
    )
    spec = UnitSpec(name=name, group=name, processes=[process])
    life = SimpleNamespace(reason="killed", state=UnitState.READY, serves=True)
    return SimpleNamespace(spec=spec, label=name, life=life)


def test_what_waits_for_a_unit_is_sent_at_its_first_start_too() -> None:
    """Another unit may have failed for good while this one was starting."""
    units = Named("a", "b")
    a, b = units.values()
    b.life.state, b.life.serves = UnitState.STARTING, False
    a.life.state, a.life.serves = UnitState.FAILED, False
    units.unit_failed(a, "killed")
    assert [(endpoint, type(message)) for endpoint, message in units.plane.sent] == [("ipc://b", PeerFailedMessage)]
    units.unit_is_ready(b)
    assert units.plane.up == [("ipc://b", "ipc://b from None")]


def test_units_hear_where_those_are_that_are_ready() -> None:
    units = Named("a", "b", "c")
    a, _, c = units.values()
    c.life.state, c.life.serves = UnitState.FAILED, False
    units.unit_is_ready(a)
    assert units.plane.sent == [
        ("ipc://b", PeerUpMessage("ipc://a", "ipc://a from ipc://b")),
        ("ipc://a", PeerUpMessage("ipc://b", "ipc://b from ipc://a")),
    ]


def test_a_unit_that_is_back_hears_of_those_that_have_failed() -> None:
    units = Named("a", "b")
    a, b = units.values()
    b.life.state, b.life.serves = UnitState.FAILED, False
    units.unit_is_back(a)
    assert units.plane.sent == [("ipc://a", PeerFailedMessage("ipc://b", ["b"], "killed"))]


def test_a_failed_group_of_stages_is_named_by_a_stage() -> None:
    """A client knows stages, not the names of process groups."""
    failures: list[Exception] = []
    units = Named("a", "b")
    units.plane.peer_has_failed = lambda endpoint, error: failures.append(error) or []  # type: ignore[assignment,func-returns-value]
    units["a"].label = "group"
    units.unit_failed(units["a"], "killed")
    assert str(failures[0]) == "stage 'a' has failed, as its process has died too often: killed"
