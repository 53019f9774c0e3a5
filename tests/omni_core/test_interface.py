"""Interfaces: parameters are checked by one schema, plain ones go to the group that they mean, and declarations are
validated.
"""

from __future__ import annotations

import math
from typing import Any

import pytest
from attrs import evolve

from omni_cli.deploy.writing import dump_json, load_config
from omni_core.config.loading import structure, unstructure
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, InvalidRequestError
from omni_core.interface import (
    SEED,
    SPEECH,
    TEXT,
    TRANSCRIPTION,
    Interface,
    Parameter,
    ParameterGroup,
    transcription_parameters,
)
from omni_core.structured import structured_parameter

TEMPERATURE = Parameter("temperature", "number", "how hot", 0.0, minimum=0, maximum=2)
LENGTH = Parameter("max_new_tokens", "integer", "how long", 10, 1, 2**31 - 1, aliases=["max_tokens"])
RANDOM = Parameter(SEED, "integer", "where it begins", minimum=0, maximum=2**63 - 1)
STOP = Parameter("stop", "strings", "where it ends", maximum=2)

WRITER = ParameterGroup("writer", TEXT, "the text", [TEMPERATURE, LENGTH, RANDOM, STOP])
READER = ParameterGroup("reader", SPEECH, "the sound", [TEMPERATURE, LENGTH, RANDOM])
INTERFACE = Interface(
    roles={TEXT: "write", SPEECH: "read"},
    inputs=["text"],
    outputs=["text", "audio"],
    groups=[WRITER, READER],
    params=[Parameter("return_codes", "boolean", "codes too", False)],
    metadata=[Parameter("speaker", "string", "the voice", choices=["Ann", "Bo"])],
    limits={"max_words": 10},
    voices=["Ann", "Bo"],
    sample_rate=8000,
)
CONFIG = PipelineConfig(
    model_path="none",
    stages=[
        StageConfig(name="write", process="p", factory="m:f", next="read"),
        StageConfig(name="read", process="p", factory="m:f", terminal=True),
    ],
    interface=INTERFACE,
)


def refusal(params: Any, interface: Interface = INTERFACE) -> str:
    with pytest.raises(InvalidRequestError) as caught:
        interface.check_params(params)
    return str(caught.value)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, {}),
        ({"temperature": 1}, {"writer": {"temperature": 1}}),
        ({"max_tokens": 3}, {"writer": {"max_new_tokens": 3}}),
        ({"writer": {"max_tokens": 3}, "reader": {"max_new_tokens": 4}},
         {"writer": {"max_new_tokens": 3}, "reader": {"max_new_tokens": 4}}),
        ({"stop": "END"}, {"writer": {"stop": ["END"]}}),
        ({"seed": 1}, {"writer": {"seed": 1}, "reader": {"seed": 1}}),
        ({"seed": 1, "reader": {"seed": 2}}, {"writer": {"seed": 1}, "reader": {"seed": 2}}),
        ({"return_codes": True, "temperature": 0.5, "writer": {"stop": ["a"]}},
         {"return_codes": True, "writer": {"stop": ["a"], "temperature": 0.5}}),
        ({"temperature": None, "writer": None, "seed": None}, {}),
    ],
)  # fmt: skip
def test_every_parameter_ends_in_its_group(given: dict[str, Any], expected: dict[str, Any]) -> None:
    checked = INTERFACE.check_params(given)
    assert checked == expected
    assert INTERFACE.check_params(checked) == expected, "what was checked once is valid"


def test_plain_parameters_mean_speech_where_there_is_no_text() -> None:
    spoken = evolve(INTERFACE, roles={SPEECH: "read"}, groups=[READER])
    assert spoken.check_params({"temperature": 1, "seed": 3}) == {"reader": {"temperature": 1, "seed": 3}}
    assert "params.stop: no such parameter" in refusal({"stop": "x"}, spoken)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"temprature": 1}, ["params.temprature", "did you mean 'temperature'"]),
        ({"writr": {}}, ["params.writr", "did you mean 'writer'"]),
        ({"reader": {"stop": "x"}}, ["params.reader.stop: no such parameter"]),
        ({"writer": {"max_tokns": 1}}, ["params.writer.max_tokns", "did you mean 'max_tokens'"]),
        ({"writer": 3}, ["params.writer: must be a mapping"]),
        (
            {"temperature": 1, "writer": {"temperature": 1}},
            ["params.temperature", "params.writer.temperature", "twice"],
        ),
        ({"max_tokens": 1, "max_new_tokens": 1}, ["params.max_new_tokens", "twice"]),
        ({"temperature": -1}, ["params.temperature: must be a number, 0 to 2, is -1"]),
        ({"temperature": math.nan}, ["params.temperature", "nan"]),
        ({"temperature": "hot"}, ["params.temperature", "'hot'"]),
        ({"temperature": True}, ["params.temperature", "True"]),
        ({"max_tokens": 1.5}, ["params.max_tokens: must be an integer, 1 or more, below 2**31, is 1.5"]),
        ({"seed": -1}, ["params.seed"]),
        ({"seed": 2**63}, ["params.seed", "below 2**63"]),
        ({"stop": ""}, ["params.stop"]),
        ({"stop": ["a", "b", "c"]}, ["params.stop", "at most 2"]),
        ({"stop": ["a", "b" * 1001]}, ["params.stop", "at most 1000 characters", "..."]),
        ({"return_codes": 1}, ["params.return_codes: must be true or false, is 1"]),
        ([], ["params: must be a mapping"]),
    ],
)
def test_parameters_without_effect_and_invalid_values_are_named(given: Any, words: list[str]) -> None:
    message = refusal(given)
    for word in words:
        assert word in message


def test_metadata() -> None:
    assert INTERFACE.check_metadata({"speaker": "ann", "session": object}, ["session"])["speaker"] == "ann"
    assert Parameter("speaker", "string", "by number").check(1, "metadata.speaker") == "1"
    for given, words in (
        ({"speeker": 1}, "did you mean 'speaker'"),
        ({"speaker": "Cy"}, "one of: Ann, Bo"),
        (3, "mapping"),
    ):
        with pytest.raises(InvalidRequestError, match=words):
            INTERFACE.check_metadata(given)


def test_an_interface_survives_a_file(tmp_path: Any) -> None:
    path = tmp_path / "pipeline.json"
    path.write_text(dump_json(CONFIG))
    assert load_config(path) == CONFIG
    validate(CONFIG)
    values = unstructure(CONFIG)
    values["interface"]["groups"][0]["parameters"][0]["minimun"] = 1
    with pytest.raises(
        ConfigError, match=r"groups\[writer\]\.parameters\[temperature\]\.minimun.*did you mean 'minimum'"
    ):
        structure(values)


def test_a_type_that_does_not_exist_is_named_where_it_is_declared() -> None:
    with pytest.raises(ConfigError, match=r"parameter 'x': no type is called 'nmber'; did you mean 'number'\?"):
        Parameter("x", "nmber", "")
    document = {"model_path": "m", "stages": [], "interface": {"params": [{"name": "x", "type": "nmber", "help": ""}]}}
    with pytest.raises(ConfigError, match=r"interface\.params\[x\].*no type is called 'nmber'"):
        structure(document, PipelineConfig)


def test_a_text_is_held_to_the_kinds_of_structure_that_its_pipeline_declares() -> None:
    assert INTERFACE.structured == []
    group = evolve(WRITER, parameters=[*WRITER.parameters, structured_parameter("json_schema", "regex")])
    interface = evolve(INTERFACE, groups=[group, *INTERFACE.groups[1:]])
    assert interface.structured == ["json_schema", "regex"]
    asked = {"structured": {"regex": "[a-z]+"}}
    assert interface.check_params(asked)[WRITER.name] == asked
    for wrong in ({}, {"choice": ["a"]}, {"regex": "a", "json_schema": {}}, "regex"):
        message = refusal({"structured": wrong}, interface)
        assert "params.structured: must be a mapping with one of: json_schema, regex" in message
    with pytest.raises(ConfigError, match="structured: no kind is called 'regx'; did you mean 'regex'"):
        structured_parameter("regx")


def test_a_transcription_takes_the_parameters_that_its_pipeline_chooses() -> None:
    parameters = transcription_parameters("language", "timestamps", languages=["en", "de"])
    group = ParameterGroup("listen", TRANSCRIPTION, "how it is written down", parameters)
    interface = Interface(roles={TRANSCRIPTION: "listen"}, groups=[group])
    assert interface.check_params({"language": "DE", "timestamps": "word"}) == {
        "listen": {"language": "DE", "timestamps": "word"}
    }
    assert "must be one of: en, de, is 'fr'" in refusal({"language": "fr"}, interface)
    assert "no such parameter" in refusal({"task": "translate"}, interface)
    assert [each.name for each in transcription_parameters()] == [
        "language", "task", "prompt", "temperature", "timestamps", "diarize", "logprobs",
    ]  # fmt: skip
    assert not transcription_parameters("language")[0].choices
    with pytest.raises(ConfigError, match="no transcription parameter is called 'languge'; did you mean 'language'"):
        transcription_parameters("languge")
    both = evolve(INTERFACE, groups=[*INTERFACE.groups, group])
    assert both.plain_group is WRITER
