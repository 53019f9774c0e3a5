"""The runner's announcements of units that come and go; units and sockets are replaced by records."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from omni_core.config.schema import EndpointsConfig, LauncherConfig, PipelineConfig, StageConfig
from omni_core.errors import StartupError
from omni_core.launch.runner import MultiProcessPipelineRunner
from omni_core.machines import LocalLauncher, Need
from omni_core.plugins import PluginRegistry
from omni_core.processes.unit import UnitState
from omni_core.protocol.messages import PeerFailedMessage, PeerUpMessage
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


class Runner(MultiProcessPipelineRunner):
    """A runner of units that are only named."""

    def __init__(self, *names: str) -> None:
        stages = [StageConfig(name=name, factory="m:f", process=name) for name in names]
        super().__init__(PipelineConfig(model_path="none", stages=stages))
        self.plane = Control()
        self._control = self.plane  # type: ignore[assignment]
        self._units = {name: _unit(name) for name in names}
        self._placing = SimpleNamespace(  # type: ignore[assignment]
            address=lambda endpoint, seen_from=None: f"{endpoint} from {seen_from}"
        )


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
    runner = Runner("a", "b")
    a, b = runner._units.values()
    b.life.state, b.life.serves = UnitState.STARTING, False
    a.life.state, a.life.serves = UnitState.FAILED, False
    runner.unit_failed(a, "killed")
    assert [(endpoint, type(message)) for endpoint, message in runner.plane.sent] == [("ipc://b", PeerFailedMessage)]
    runner.unit_is_ready(b)
    assert runner.plane.up == [("ipc://b", "ipc://b from None")]


def test_units_hear_where_those_are_that_are_ready() -> None:
    runner = Runner("a", "b", "c")
    a, _, c = runner._units.values()
    c.life.state, c.life.serves = UnitState.FAILED, False
    runner.unit_is_ready(a)
    assert runner.plane.sent == [
        ("ipc://b", PeerUpMessage("ipc://a", "ipc://a from ipc://b")),
        ("ipc://a", PeerUpMessage("ipc://b", "ipc://b from ipc://a")),
    ]


def test_a_unit_that_is_back_hears_of_those_that_have_failed() -> None:
    runner = Runner("a", "b")
    a, b = runner._units.values()
    b.life.state, b.life.serves = UnitState.FAILED, False
    runner.unit_is_back(a)
    assert runner.plane.sent == [("ipc://a", PeerFailedMessage("ipc://b", ["b"], "killed"))]


async def test_a_launcher_that_fails_to_release_neither_hides_the_cause_nor_leaves_files(
    caplog: pytest.LogCaptureFixture, run_folder: Path
) -> None:
    stage = StageConfig(name="s", factory="m:f", process="s", terminal=True)
    config = PipelineConfig(
        model_path="none",
        stages=[stage],
        launcher=LauncherConfig(f"{__name__}:Sloppy"),
        endpoints=EndpointsConfig(str(run_folder)),
    )
    with pytest.raises(StartupError, match="no machine is free"):
        await MultiProcessPipelineRunner(config, PluginRegistry([])).start()
    assert "the cluster does not answer" in caplog.text
    assert list(run_folder.iterdir()) == []


class Sloppy(LocalLauncher):
    async def acquire(self, needs: Sequence[Need]) -> None:
        raise StartupError("no machine is free")

    async def release(self) -> None:
        raise OSError("the cluster does not answer")
