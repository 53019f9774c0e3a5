"""Sources of the core alone: registered pipelines and whole configs, with settings; what needs omni-commands says so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from omni_cli.deploy.writing import dump_yaml
from omni_core.client.source import PipelineSource, parse_options, pipeline_of
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import PipelineComponent
from omni_core.interface import Interface
from omni_core.plugins import PluginRegistry
from omni_core.plugins.discovery import PluginRecord

DECLARED = Interface(outputs=["text"])


def pipeline(model_path: str, *, size: int = 1) -> PipelineConfig:
    stage = StageConfig(name="only", process="p", factory="m:f", factory_args={"size": size}, terminal=True)
    return PipelineConfig(model_path=model_path, stages=[stage], runtime_overrides={"only": {"seed": 1}})


def model() -> tuple[str, str]:
    return "small", "a small one"


COMPONENTS = [
    PipelineComponent("one", f"{__name__}:pipeline", "one", interface=DECLARED),
    PipelineComponent("ready", f"{__name__}:pipeline", "ready", default_model=f"{__name__}:model"),
]
REGISTRY = PluginRegistry([PluginRecord("p", "d", "1", "m", components={"omni_pipelines": COMPONENTS})])


def resolved(*arguments: Any, **keywords: Any) -> PipelineConfig:
    return PipelineSource(*arguments, **keywords).resolve(REGISTRY).config


def test_a_registered_pipeline_is_made_from_a_model_options_and_settings() -> None:
    config = resolved("one", "folder", {"size": 2}, ("only.factory_args.seed=3", "retries=0"))
    assert (config.model_path, config.interface, config.retries) == ("folder", DECLARED, 0)
    assert config.stages[0].factory_args == {"size": 2, "seed": 3}
    assert config.runtime_overrides == {}


def test_a_default_model_is_taken_with_a_notice() -> None:
    source = PipelineSource("ready")
    assert source.resolve(REGISTRY).config.model_path == "small"
    assert source.notices == ["a small one"]


def test_a_part_is_made_as_it_would_be_run_but_variables_are_of_the_whole(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("OMNI_SET__RETRIES", "3")
    monkeypatch.setenv("OMNI_SET__OTHER_STAGE__GPU", "1")
    monkeypatch.setattr("omni_cli.deploy.source.load_plugins", lambda: REGISTRY)
    config = pipeline_of("ready", options={"size": 2})
    assert (config.model_path, config.stages[0].factory_args, config.retries) == ("small", {"size": 2, "seed": 1}, 0)
    assert "small: a small one" in caplog.text
    monkeypatch.setattr("omni_core.client.source.source_class", lambda: PipelineSource)
    monkeypatch.setattr("omni_core.client.source.load_plugins", lambda: REGISTRY)
    assert pipeline_of("ready", "folder").model_path == "folder"
    assert pipeline_of(config) == config


def test_a_config_and_a_whole_file_are_changed_by_settings(tmp_path: Path) -> None:
    config = evolve(pipeline("m"), runtime_overrides={})
    assert resolved(config) is config
    assert resolved(config, settings={"only.factory_args.size": 5}).stages[0].factory_args == {"size": 5}
    file = tmp_path / "whole.yaml"
    file.write_text(dump_yaml(config))
    assert resolved(str(file)) == config
    assert resolved(str(file), settings=("stages.only.replicas=2",)).stages[0].replicas == 2


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("one",), "--model: pipeline 'one' needs one"),
        (("one", "m", {"sizes": 2}), "--option: pipeline 'one' does not take these options, {'sizes': 2}"),
        ((pipeline("m"), "other"), "--model: a PipelineConfig says which model it uses"),
        ((pipeline("m"), None, {"size": 1}), "--option size: a PipelineConfig has no options"),
        (("one", "m", {}, ("only.gpus=1",)), "'gpus' is not a field here; did you mean 'gpu'?"),
        (("one", "m", {}, ("olny.gpu=1",)), "--set olny.gpu=1: 'olny' is neither a stage nor a pipeline field"),
        (
            ("one", "m", {}, ("retries=1", "retries=2")),
            "retries is set twice: by --set retries=1 and by --set retries=2",
        ),
        (("one", "m", {}, ("only.factory_args={}", "only.factory_args.size=2")), "is set as a whole and in part"),
        (("one", "m", {}, ("only.next=x",)), "'next' is decided by the pipeline alone"),
        (("one", "m", {}, ("only.tp_size=two",)), r"stages[only].tp_size: must be int, is 'two'"),
        (("one", "m", {}, ("retries=-1",)), "retries: must not be negative"),
        (("one", "m", {}, ("only.process.name=x",)), "'process' has no fields of its own"),
    ],
)
def test_what_is_wrong_is_named(arguments: tuple[Any, ...], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        resolved(*arguments)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("nothing",), "no pipeline is called 'nothing'"),
        (("owner/name",), "checkpoint folders and hub ids"),
        (("one", "m", {}, (), "over.yaml"), "--config over.yaml: deploy files and layers"),
        (("one", "m", {}, ("*.dtype=x",)), "--set *.dtype=x: deploy files and layers"),
    ],
)
def test_what_needs_a_service_says_so(arguments: tuple[Any, ...], expected: str) -> None:
    with pytest.raises(PluginError) as caught:
        resolved(*arguments)
    assert expected in str(caught.value)
    assert "pip install omni-commands" in str(caught.value)


def test_a_deploy_file_and_a_variable_need_a_service(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "deploy.yaml"
    file.write_text("pipeline: one\n")
    with pytest.raises(PluginError, match=r"describes no whole pipeline .* pip install omni-commands"):
        resolved(str(file))
    monkeypatch.setenv("OMNI_SET__ONLY__GPU", "1")
    with pytest.raises(PluginError, match=r"OMNI_SET__ONLY__GPU: .* pip install omni-commands"):
        resolved("one", "m")
    assert (
        resolved(evolve(pipeline("m"), runtime_overrides={})).stages[0].gpu is None
    )  # a finished config has it already


def test_an_option_is_given_once() -> None:
    assert parse_options(("size=2", "name=x")) == {"size": 2, "name": "x"}
    with pytest.raises(ConfigError, match="given twice"):
        parse_options(("size=2", "size=3"))
