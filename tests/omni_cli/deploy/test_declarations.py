"""Mistakes in the interface that a pipeline declares."""

from __future__ import annotations

from typing import Any

import pytest
from attrs import evolve

from omni_cli.deploy.source import LayeredSource
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError
from omni_core.interface import SPEECH, TEXT, Interface, Parameter, ParameterGroup

TEMPERATURE = Parameter("temperature", "number", "randomness", default=0.9, minimum=0.0, maximum=2.0)
LENGTH = Parameter("max_new_tokens", "integer", "length", minimum=1, aliases=["max_tokens"])
WRITER = ParameterGroup("writer", TEXT, "text", [TEMPERATURE, LENGTH])
READER = ParameterGroup("reader", SPEECH, "speech", [TEMPERATURE])
INTERFACE = Interface(roles={TEXT: "write", SPEECH: "read"}, groups=[WRITER, READER])
STAGES = [
    StageConfig(name="write", process="p", factory="m:f", next="read"),
    StageConfig(name="read", process="p", factory="m:f", terminal=True),
]
CONFIG = PipelineConfig(model_path="m", stages=STAGES, interface=INTERFACE)


def test_a_right_declaration_has_no_mistakes() -> None:
    assert LayeredSource(CONFIG).resolve().config == CONFIG


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"roles": {TEXT: "wrte", SPEECH: "read"}}, ["interface.roles.text", "'wrte'", "did you mean 'write'"]),
        ({"roles": {TEXT: "write"}}, ["interface.groups[reader].role", "'speech'"]),
        ({"groups": [evolve(WRITER, parameters=[evolve(LENGTH, default=0)])]}, ["groups[writer][max_new_tokens].default"]),
        ({"groups": [evolve(WRITER, parameters=[LENGTH, Parameter("max_tokens", "integer", "")])]}, ["'max_tokens'", "more than once"]),
        ({"params": [Parameter("temperature", "number", "")]}, ["interface.params", "'temperature'", "more than once"]),
        ({"params": [Parameter("reader", "number", "")]}, ["interface.params", "'reader'", "more than once"]),
        ({"groups": [WRITER, evolve(READER, name="writer")]}, ["interface.params", "'writer'", "more than once"]),
        ({"metadata": [evolve(TEMPERATURE, default=9)]}, ["interface.metadata[temperature].default"]),
    ],
)  # fmt: skip
def test_mistakes_of_a_declaration_are_problems_of_the_config(change: dict[str, Any], words: list[str]) -> None:
    with pytest.raises(ConfigError) as caught:
        LayeredSource(evolve(CONFIG, interface=evolve(INTERFACE, **change))).resolve()
    for word in words:
        assert word in str(caught.value)
