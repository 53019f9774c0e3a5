"""The relay plan: the relay of each process, and its options."""

from __future__ import annotations

from typing import Any

import pytest

from omni_cli.config.components import check_relays
from omni_core.config.schema import PipelineConfig, RelayConfig, StageConfig
from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import Component, RelayComponent
from omni_core.launch.prepare import prepare
from omni_core.plugins import PluginRegistry


class Installed(PluginRegistry):
    """A registry of these relays alone."""

    def __init__(self, *relays: Component) -> None:
        super().__init__([])
        self._relays = relays

    def components(self, hook: str) -> list[Any]:
        return [(relay, None) for relay in self._relays] if hook == "omni_relays" else []

    def names(self, hook: str) -> list[str]:
        return [component.name for component, _ in self.components(hook)]

    def get(self, hook: str, name: str) -> Component:
        for component, _ in self.components(hook):
            if component.name == name:
                return component  # type: ignore[no-any-return]
        raise PluginError(f"no relay is called {name!r}; there are: {', '.join(self.names(hook))}")


RELAYS = Installed(
    RelayComponent("copying", "m:Copying", "through host memory", host_memory=True),
    RelayComponent("direct", "m:Direct", "between devices"),
    Component("plain", "m:Plain", "says nothing of itself"),
)


def devices(monkeypatch: pytest.MonkeyPatch, backend: str, **fields: Any) -> dict[str, str]:
    """Return the device of the relay, by process; both stages compute on GPUs."""
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: None)
    config = PipelineConfig(
        model_path="none",
        relay_backend=backend,
        stages=[
            StageConfig(name="a", factory="m:f", process="a", gpu=0, next="b", **fields),
            StageConfig(name="b", factory="m:f", process="b", gpu=1, terminal=True),
        ],
    )
    units = prepare(config, RELAYS).units
    return {unit.name: spec.options["device"] for unit in units for spec in unit.processes[0].relays.values()}


def test_a_relay_through_host_memory_is_built_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    assert devices(monkeypatch, "copying") == {"a": "cpu", "b": "cpu"}
    assert devices(monkeypatch, "copying", relay={"device": "cuda:0"}) == {"a": "cuda:0", "b": "cpu"}


@pytest.mark.parametrize("relay", ["direct", "plain", "package.module:Unregistered"])
def test_any_other_relay_is_built_for_the_stages_device(monkeypatch: pytest.MonkeyPatch, relay: str) -> None:
    assert devices(monkeypatch, relay) == {"a": "cuda:0", "b": "cuda:1"}


def test_a_relay_that_is_not_installed_is_named_without_guesses(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(PluginError) as caught:
        devices(monkeypatch, "omni-relay-fil")
    message = str(caught.value)
    assert message.startswith("relay_backend: stages of this pipeline live in different processes")
    assert "'omni-relay-fil'" in message
    assert "pip install" not in message


def test_a_stage_whose_relay_is_not_installed_is_named() -> None:
    stages = [
        StageConfig(name="a", factory="m:f", process="a", next="b", relay=RelayConfig(backend="nope")),
        StageConfig(name="b", factory="m:f", process="b", terminal=True),
    ]
    config = PipelineConfig(model_path="m", stages=stages, relay_backend="m:relay")
    with pytest.raises(PluginError, match=r"stages\[a\]\.relay\.backend: .* no relay is called 'nope'"):
        check_relays(config, PluginRegistry([]))


def test_different_settings_for_one_relay_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    config = PipelineConfig(
        model_path="none",
        relay_backend="direct",
        stages=[
            StageConfig(name="a", factory="m:f", process="a", next="b", relay={"settings": {"x": 1}}),
            StageConfig(name="b", factory="m:f", process="b", terminal=True, relay={"settings": {"x": 2}}),
        ],
    )
    with pytest.raises(
        ConfigError, match=r"stages\[b\].relay.settings: the relay 'direct' has others in stages\[a\].relay.settings"
    ):
        prepare(config, RELAYS)


def test_the_bytes_that_travel_without_a_relay_are_those_of_the_sending_stage() -> None:
    config = PipelineConfig(
        model_path="none",
        relay_backend="plain",
        stages=[
            StageConfig(name="a", factory="m:f", process="a", next="b", relay={"inline_bytes": 0}),
            StageConfig(name="b", factory="m:f", process="b", terminal=True),
        ],
    )
    units = prepare(config, RELAYS).units
    assert {unit.name: unit.processes[0].inline_bytes for unit in units} == {"a": 0, "b": None}
