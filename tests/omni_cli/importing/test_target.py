"""The pipeline that a foreign file becomes: how it is found, and what its component declares."""

from __future__ import annotations

from typing import Any

import example_pipeline
import pytest
from attrs import evolve

from omni_cli.importing.target import Declaration, find, foreign_names, known_names, resolve
from omni_core.errors import ConfigError
from omni_core.hookspecs import PipelineComponent
from omni_core.plugins import PluginRegistry


def component(name: str = "speaker") -> PipelineComponent:
    found: Any = example_pipeline.registry().get("omni_pipelines", name)
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize(
    ("names", "stems", "found"),
    [
        (["speaker_text"], [], "speaker"),
        (["SpeakerModel"], [], "speaker"),
        ([], ["speaker_2gpu"], "speaker"),
        ([], ["other", "speaker"], "speaker"),
        ([], ["speakers"], None),
        (["speaker_tex"], ["speaker"], None),
        ([], [], None),
    ],
)
def test_a_file_names_its_pipeline(names: list[str], stems: list[str], found: str | None) -> None:
    answer = find(example_pipeline.registry(), names, stems)
    assert (answer and answer.name) == found


def test_a_name_of_two_pipelines_is_an_error() -> None:
    registry: PluginRegistry = example_pipeline.registry()
    pipelines: Any = registry.records[0].components["omni_pipelines"]
    pipelines.append(evolve(component(), name="again"))
    services: Any = registry.records[0].components["omni_services"]
    services.append(evolve(services[0], name="again"))
    with pytest.raises(ConfigError, match="choose one: --pipeline speaker or --pipeline again"):
        find(registry, ["speaker_text"], [])


def test_names_are_those_of_the_checkpoint_and_those_that_are_declared() -> None:
    names = ["SpeakerModel", "speaker", "speaker_text", "SpeakerPipelineConfig"]
    assert foreign_names(component(), example_pipeline.registry()) == names
    assert known_names(example_pipeline.registry()) == sorted(names)


def test_a_declaration_is_sorted_by_what_it_says() -> None:
    declared = Declaration.of(
        {"pipeline": "a b", "x": "s.factory_args.x", "y: 1": "it is", "z: *": "it is so", "n": "no y"}
    )
    assert declared.names == ("a", "b")
    assert declared.paths == {"x": "s.factory_args.x"}
    assert (declared.reason("y", 1), declared.reason("y", 2), declared.reason("z", 7)) == ("it is", None, "it is so")
    assert declared.notes == {"n": "no y"}
    assert set(declared.known) == {"x", "y", "z", "n"}


def test_stages_by_number_and_what_they_take() -> None:
    target = resolve(component(), None, example_pipeline.registry())
    assert target.stages == [("reader",), ("talker",), ("sound",)]
    assert target.parameters("sound") == {"model_path": None, "chunk": "20", "max_running": "None"}
    assert target.reaches(("reader",), ("talker",))
    assert not target.reaches(("reader",), ("sound",))
    group = target.group("talker")
    assert group is not None
    assert group.name == "talker"
    assert target.group("sound") is None


def test_a_declared_stage_that_the_pipeline_lacks(vllm: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(example_pipeline.IMPORTS, "codec_chunk_frames", "other.factory_args.chunk")
    report = vllm("stages: [{stage_id: 0, codec_chunk_frames: 4}]")
    assert report.of("noted")[0].outcome.text == "speaker has no stage other, for which it is meant"
