"""Checkpoints that find their pipeline, and pipelines whose interface comes from the checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from claiming import COMPONENT, CONFIG, pipeline

import omni_cli.deploy.source
from omni_cli.deploy.source import LayeredSource
from omni_core.client.source import PipelineSource
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError, OmniError, PluginError
from omni_core.hookspecs import PipelineComponent
from omni_core.interface import VOICE, Interface
from omni_core.plugins import PluginRecord, PluginRegistry, PluginStatus, load_plugins
from omni_core.plugins.advice import advice, distribution_for

OTHER = PipelineComponent("other", "claiming:pipeline", "runs one", architectures=("OtherModel", "OtherPipeline"))
GENERAL = evolve(COMPONENT, name="general")


def fetched(model: str) -> str:
    return str(FETCHED[model])


FETCHED: dict[str, Path] = {}


def broken(folder: str) -> str | None:
    raise SystemExit(f"cannot read {folder}")


def record(distribution: str, *components: PipelineComponent, **fields: Any) -> PluginRecord:
    return PluginRecord(
        distribution, f"dist-{distribution}", "1.0", "m", components={"omni_pipelines": [*components]}, **fields
    )


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> list[PluginRecord]:
    """The plugins that there are, for a test to change."""
    records = [record("one", OTHER), record("two", COMPONENT)]
    monkeypatch.setattr(omni_cli.deploy.source, "load_plugins", lambda: PluginRegistry(records))
    return records


def checkpoint(folder: Path, values: Any, file: str = "config.json") -> str:
    folder.mkdir(exist_ok=True)
    (folder / file).write_text(json.dumps(values))
    return str(folder)


def refusal(folder: str, kind: type[OmniError] = ConfigError) -> str:
    with pytest.raises(kind) as caught:
        LayeredSource(folder).resolve()
    return str(caught.value)


def test_the_interface_is_that_of_the_checkpoint(installed: list[PluginRecord], tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", CONFIG)
    for source in (
        LayeredSource(folder),
        LayeredSource("speaker", folder),
        LayeredSource("speaker", settings={"model_path": folder}),
    ):
        found = source.interface()
        assert found is not None
        assert (found.voices, found.sample_rate, found.limits) == (["ann", "bo"], 16_000, {"characters": 100})
        assert source.resolve().config.interface == found
    assert PipelineSource("speaker", folder).resolve(PluginRegistry(installed)).config.interface == found
    assert LayeredSource("speaker").interface() is None


def test_a_file_that_names_the_model_has_its_interface_too(installed: list[PluginRecord], tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "model", CONFIG)
    file = tmp_path / "deploy.yaml"
    file.write_text(f"pipeline: speaker\nmodel_path: {folder}\n")
    for source in (LayeredSource(str(file)), LayeredSource("speaker", overlay=file)):
        found = source.interface()
        assert found is not None
        assert found.sample_rate == 16_000
        assert source.resolve().config.interface == found


def own_words(model_path: str) -> PipelineConfig:
    return evolve(pipeline(model_path), interface=Interface(outputs=["text"]))


def test_what_the_target_sets_itself_is_kept(installed: list[PluginRecord], tmp_path: Path) -> None:
    installed[1] = record("two", evolve(COMPONENT, target=f"{__name__}:own_words"))
    folder = checkpoint(tmp_path / "model", CONFIG)
    assert LayeredSource(folder).resolve().config.interface == Interface(outputs=["text"])


def test_a_hub_id_has_the_interface_of_its_config(
    installed: list[PluginRecord], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ConfigError, match="pipeline 'speaker': owner/name is neither a file nor a folder here"):
        LayeredSource("speaker", "owner/name").resolve()
    installed[1] = record("two", evolve(COMPONENT, config_folder_fn=f"{__name__}:fetched"))
    monkeypatch.setitem(FETCHED, "owner/name", Path(checkpoint(tmp_path / "snapshot", CONFIG)))
    for source in (LayeredSource("owner/name"), LayeredSource("speaker", "owner/name")):
        config = source.resolve().config
        assert config.interface is not None
        assert (config.model_path, config.interface.voices) == ("owner/name", ["ann", "bo"])


@pytest.mark.parametrize(
    ("values", "reference", "words"),
    [
        ({**CONFIG, "sampling_rate": None, "voices": 3}, None, "claiming:voices: TypeError"),
        ({"voices": []}, None, "KeyError: 'sampling_rate'"),
        (CONFIG, "claiming:speaks", "claiming:speaks: TypeError: it returned NoneType, not Interface"),
        (CONFIG, f"{__name__}:broken", "SystemExit: cannot read"),
        (CONFIG, f"{__name__}:refusing", "config.json: no such vocoder"),
    ],
)
def test_what_cannot_be_read_names_the_pipeline_and_the_file(
    installed: list[PluginRecord], tmp_path: Path, values: Any, reference: str | None, words: str
) -> None:
    if reference is not None:
        installed[1] = record("two", evolve(COMPONENT, interface_from=reference))
    folder = checkpoint(tmp_path / "model", values)
    message = refusal(folder)
    assert message.startswith(f"pipeline 'speaker': its interface cannot be read from {folder}/config.json: ")
    assert words in message
    with pytest.raises(ConfigError, match="its interface cannot be read"):
        LayeredSource(folder).interface()


def refusing(folder: str) -> Interface:
    raise ConfigError("no such vocoder")


def test_an_architecture_comes_before_a_fallback(installed: list[PluginRecord], tmp_path: Path) -> None:
    folder = checkpoint(tmp_path / "named", {**CONFIG, "architectures": ["OtherModel"]})
    assert LayeredSource(folder).component(PluginRegistry(installed)) is OTHER
    folder = checkpoint(tmp_path / "index", {"_class_name": "OtherPipeline"}, "model_index.json")
    assert LayeredSource(folder).component(PluginRegistry(installed)) is OTHER
    folder = checkpoint(tmp_path / "unnamed", CONFIG)
    assert LayeredSource(folder).component(PluginRegistry(installed)) is COMPONENT


def test_two_fallbacks_are_named_with_their_distributions(installed: list[PluginRecord], tmp_path: Path) -> None:
    installed.append(record("three", GENERAL))
    message = refusal(checkpoint(tmp_path / "model", CONFIG))
    for words in ("omni run speaker --model", "dist-two 1.0", "omni run general --model", "dist-three 1.0"):
        assert words in message


def test_a_fallback_says_why_not_and_one_that_fails_stands_in_nobodys_way(
    installed: list[PluginRecord], tmp_path: Path
) -> None:
    installed.insert(0, record("three", evolve(GENERAL, fallback=f"{__name__}:broken")))
    assert LayeredSource(checkpoint(tmp_path / "model", CONFIG)).component(PluginRegistry(installed)) is COMPONENT
    message = refusal(checkpoint(tmp_path / "other", {"model_type": "writer"}))
    assert "no installed pipeline runs writer" in message
    assert "pipeline 'speaker' of dist-two does not: it has no voices" in message
    assert "pipeline 'general' of dist-three does not: its claim failed: SystemExit: cannot read" in message


KNOWN = {**CONFIG, "architectures": ["Qwen3OmniMoeForConditionalGeneration"]}


def test_a_known_plugin_that_is_not_installed_comes_before_a_fallback(
    installed: list[PluginRecord], tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "model", KNOWN)
    message = refusal(folder, PluginError)
    assert "it is run by omni-qwen3, which is not installed: pip install omni-qwen3." in message
    assert f"Or, by a general pipeline: omni run speaker --model {folder}" in message
    assert LayeredSource("speaker", folder).resolve().config.model_path == folder


def test_a_config_without_architectures_names_its_plugin_by_its_sections(
    installed: list[PluginRecord], tmp_path: Path
) -> None:
    folder = checkpoint(tmp_path / "model", {"istftnet": {}, "plbert": {}})
    assert "it is run by omni-kokoro, which is not installed: pip install omni-kokoro" in refusal(folder, PluginError)
    installed.append(PluginRecord("kokoro", "omni-kokoro", "1.0", "m"))
    assert "no installed pipeline runs it (it names no architectures)" in refusal(folder)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"status": PluginStatus.DISABLED, "reason": "denied"}, "which is disabled: denied (omni plugins show qwen)"),
        ({"status": PluginStatus.BROKEN, "reason": "torn"}, "which is broken: torn (omni plugins show qwen)"),
        ({}, "a newer omni-qwen3 than 1.0, which is installed: pip install --upgrade omni-qwen3"),
    ],
)
def test_a_known_plugin_that_is_not_loaded_says_so(
    installed: list[PluginRecord], tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    installed.append(PluginRecord("qwen", "omni-qwen3", "1.0", "m", **fields))
    message = refusal(checkpoint(tmp_path / "model", KNOWN), PluginError)
    assert words in message
    assert "pip install omni-qwen3" not in message


def test_the_advice_is_what_the_plugins_declare() -> None:
    declared: dict[str, set[str]] = {}
    for component, found in load_plugins().components("omni_pipelines"):
        if isinstance(component, PipelineComponent) and component.architectures:
            declared.setdefault(found.distribution, set()).update(component.architectures)
    known = {name: set(each) for name, each in advice()["architectures"].items()}
    assert {name: known.get(name) for name in declared} == declared
    assert distribution_for(["nothing", "qwen3_omni_moe"]) == "omni-qwen3"
    assert distribution_for([]) is None


def test_a_file_finds_the_pipeline_that_claims_its_ending(installed: list[PluginRecord], tmp_path: Path) -> None:
    file = tmp_path / "tiny.toy"
    file.touch()
    assert "is neither a pipeline nor a folder" in refusal(str(file), PluginError)
    toy = evolve(OTHER, name="toy", files=(".toy",))
    installed.append(record("three", toy))
    assert LayeredSource(str(file)).resolve().config.model_path == str(file)
    missing = refusal(str(tmp_path / "missing.toy"))
    assert missing.endswith("missing.toy: there is no such file")
    installed.append(record("four", evolve(toy, name="again")))
    assert f"choose one: omni run toy --model {file} or omni run again --model {file}" in refusal(str(file))


def test_a_file_that_a_known_distribution_runs_names_it(installed: list[PluginRecord], tmp_path: Path) -> None:
    file = tmp_path / "tiny.gguf"
    file.touch()
    assert refusal(str(file), PluginError).endswith(
        "it is run by omni-transformers, which is not installed: pip install omni-transformers"
    )


def test_a_voice_of_the_checkpoint_is_checked_at_admission(installed: list[PluginRecord], tmp_path: Path) -> None:
    interface = LayeredSource(checkpoint(tmp_path / "model", CONFIG)).interface()
    assert interface is not None
    assert interface.check_metadata({VOICE: "Ann"})
    with pytest.raises(OmniError, match="must be one of: ann, bo, is 'carl'"):
        interface.check_metadata({VOICE: "carl"})
