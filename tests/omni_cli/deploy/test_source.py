"""Finding a pipeline by its name, by a config file, and by the architectures of a checkpoint's folder."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from attrs import evolve

from omni_cli.deploy import source
from omni_cli.deploy.source import LayeredSource
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, OmniError, PluginError
from omni_core.hookspecs import PipelineComponent
from omni_core.interface import Interface
from omni_core.plugins import PluginRegistry
from omni_core.plugins.discovery import PluginRecord

DECLARED = Interface(inputs=["text"], outputs=["text"])


def pipeline(model_path: str) -> PipelineConfig:
    stage = StageConfig(name="only", process="p", factory="m:f", terminal=True)
    return PipelineConfig(model_path=model_path, stages=[stage])


def component(name: str, *architectures: str) -> PipelineComponent:
    return PipelineComponent(name, f"{__name__}:pipeline", "one", architectures=architectures, interface=DECLARED)


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> PluginRegistry:
    components = [component("one", "OneModel", "one_type"), component("two", "TwoModel"), component("deux", "TwoModel")]
    record = PluginRecord("plugin", "distribution", "1", "module", components={"omni_pipelines": components})
    registry = PluginRegistry([record])
    monkeypatch.setattr(source, "load_plugins", lambda: registry)
    return registry


def checkpoint(folder: Path, **values: object) -> str:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(values))
    return str(folder)


def test_the_component_declares_what_the_config_leaves_out(registry: PluginRegistry) -> None:
    source = LayeredSource("one", "a/model")
    assert source.resolve().config.interface == source.interface() == DECLARED


@pytest.mark.parametrize("values", [{"architectures": ["Unknown", "OneModel"]}, {"model_type": "one_type"}])
def test_a_checkpoint_finds_its_pipeline(registry: PluginRegistry, tmp_path: Path, values: dict[str, object]) -> None:
    folder = checkpoint(tmp_path / "model", **values)
    source = LayeredSource(folder)
    assert source.exists()
    assert source.interface() == DECLARED
    assert source.resolve().config.model_path == folder
    with pytest.raises(ConfigError, match=r"--model: .* is itself the checkpoint"):
        LayeredSource(folder, "a/model").resolve()


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"architectures": ["TwoModel"]}, ["several", "omni run two --model", "omni run deux --model"]),
        (
            {"architectures": ["Other"], "model_type": "x"},
            ["Other or x", "one (OneModel, one_type)", "omni run PIPELINE --model"],
        ),
        ({"architectures": "OneModel"}, ["names no architectures"]),
        ({}, ["names no architectures"]),
    ],
)
def test_several_or_none_are_listed(
    registry: PluginRegistry, tmp_path: Path, values: dict[str, object], words: list[str]
) -> None:
    with pytest.raises(ConfigError) as caught:
        LayeredSource(checkpoint(tmp_path / "model", **values)).resolve()
    for word in words:
        assert word in str(caught.value)


def test_invalid_pipeline_sources_are_errors(registry: PluginRegistry, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"it has no config\.json"):
        LayeredSource(str(tmp_path)).resolve()
    (tmp_path / "config.json").write_text("[")
    with pytest.raises(OmniError, match=r"config\.json"):
        LayeredSource(str(tmp_path)).resolve()
    assert not LayeredSource("owner/name").exists()


def fetched(model: str) -> str:
    """Stand in for what a pipeline names to fetch the config of a checkpoint that is no folder here."""
    if FETCHED is None:
        raise ConfigError(f"{model}: no such repository")
    return FETCHED


FETCHED: str | None = None


@pytest.mark.parametrize("model", ["owner/name", "owner/name@v1.2"])
def test_a_hub_id_finds_its_pipeline_by_the_config_that_a_plugin_fetches(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, model: str
) -> None:
    own = evolve(component("one", "OneModel"), config_folder_fn=f"{__name__}:fetched")
    record = PluginRecord("plugin", "distribution", "1", "module", components={"omni_pipelines": [own]})
    monkeypatch.setattr(source, "load_plugins", lambda: PluginRegistry([record]))
    with pytest.raises(PluginError, match=f"as a hub id it cannot be read \\({model}: no such repository"):
        LayeredSource(model).resolve()
    monkeypatch.setattr(sys.modules[__name__], "FETCHED", checkpoint(tmp_path / "model", model_type="OneModel"))
    assert LayeredSource(model).resolve().config.model_path == model


def test_settings_and_the_overlay_may_be_mappings(registry: PluginRegistry, tmp_path: Path) -> None:
    overlay = {"relay_backend": "mine", "retries": 1, "stages": {"only": {"replicas": 2}}}
    settings = {"only.replicas": 3, "env_defaults.A.B": "1"}
    resolved = LayeredSource("one", "a/model", settings=settings, overlay=overlay, dashes="").resolve()
    config = resolved.config
    assert (config.relay_backend, config.retries, config.stages[0].replicas) == ("mine", 1, 3)
    assert config.env_defaults == {"A.B": "1"}
    assert resolved.provenance["only.replicas"][0] == "set only.replicas=3"
    with pytest.raises(ConfigError, match=r"set only\.gpuu=1: 'gpuu' is not a field here; did you mean 'gpu'"):
        LayeredSource("one", "a/model", settings={"only.gpuu": 1}).resolve()


def test_a_config_is_a_source_too() -> None:
    config = pipeline("none")
    assert LayeredSource(config).resolve().config is config
    assert LayeredSource(config, settings={"retries": 2}).resolve().config.retries == 2
    with pytest.raises(ConfigError, match=r"^model: a PipelineConfig says which model"):
        LayeredSource(config, "a/model", dashes="").resolve()
    with pytest.raises(
        ConfigError, match=r"^option gpu: a PipelineConfig has no options; set its fields by set or config"
    ):
        LayeredSource(config, options={"gpu": 0}, dashes="").resolve()


def test_the_home_of_no_user_is_named(registry: PluginRegistry) -> None:
    with pytest.raises(ConfigError, match="~nosuchuser/model: this machine has no user 'nosuchuser'"):
        LayeredSource("~nosuchuser/model").resolve()
