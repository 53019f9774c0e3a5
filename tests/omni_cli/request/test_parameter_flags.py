"""Flags made from an interface, and values given as KEY=VALUE: where they go in a request, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import claiming
import click
import pytest
from click.testing import CliRunner

import omni_cli.deploy.source
from omni_cli.pipelines import described
from omni_cli.request.parameter_flags import GIVEN, parameter_flags
from omni_cli.request.run import run
from omni_core.cli.request import set_at
from omni_core.config.loading import parse_assignment
from omni_core.errors import ConfigError
from omni_core.interface import SEED, SPEECH, TEXT, Interface, Parameter, ParameterGroup
from omni_core.plugins import PluginRecord, PluginRegistry

COMMON = [
    Parameter("temperature", "number", "how hot", 0.0, minimum=0, maximum=2),
    Parameter("max_new_tokens", "integer", "how long", minimum=1, aliases=["max_tokens"]),
    Parameter(SEED, "integer", "where it begins"),
    Parameter("ids", "integers", "which"),
]
INTERFACE = Interface(
    roles={TEXT: "write", SPEECH: "read"},
    groups=[
        ParameterGroup("writer", TEXT, "the text", [*COMMON, Parameter("stop", "strings", "where it ends")]),
        ParameterGroup("reader", SPEECH, "the sound", COMMON),
    ],
    params=[Parameter("codes", "boolean", "codes too", False)],
    metadata=[
        Parameter("speaker", "string", "the voice"),
        Parameter("model", "string", "taken by a flag of the command"),
    ],
)


def parsed(*arguments: str) -> Any:
    given: dict[str, Any] = {}

    @click.command(params=list(parameter_flags(INTERFACE, {"--model"})))
    @click.pass_context
    def command(context: click.Context) -> None:
        given.update(context.meta.get(GIVEN, {}))

    answer = CliRunner().invoke(command, arguments, catch_exceptions=False)
    return given if answer.exit_code == 0 and "--help" not in arguments else answer.output


def test_flags_set_what_they_name() -> None:
    assert parsed() == {}
    for other in ("--max-tokens", "--max-new-tokens"):
        assert parsed(other, "5") == {"params": {"max_new_tokens": 5}}
    assert parsed("--temperature", "0", "--max-tokens", "5", "--seed", "0", "--speaker", "7", "--codes") == {
        "params": {"temperature": 0, "max_new_tokens": 5, "seed": 0, "codes": True},
        "metadata": {"speaker": "7"},
    }
    assert parsed(
        "--reader-temperature", "1.5", "--writer-temperature", "1", "--reader-seed", "3", "--stop", "a", "--stop", "b"
    ) == {"params": {"reader": {"temperature": 1.5, "seed": 3}, "writer": {"temperature": 1}, "stop": ["a", "b"]}}


def test_help_groups_flags_and_says_bounds_and_defaults() -> None:
    text = parsed("--help")
    assert "--reader-temperature NUMBER" in text
    assert "How hot  [0 to 2; default 0.0]" in text
    assert "--writer-temperature" not in text, "the plain flag says it"
    assert "--model" not in text
    assert "ids" not in text


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--temperature", "3"], ["--temperature", "0 to 2", "'3'"]),
        (["--temperature", "hot"], ["--temperature", "must be a number"]),
        (["--max-tokens", "1.5"], ["--max-tokens", "must be an integer, 1 or more"]),
        (["--max-tokens", "-3"], ["'-3'"]),
        (["--temprature", "1"], ["--temprature", "--temperature"]),
    ],
)
def test_wrong_values_are_refused_at_once(arguments: list[str], words: list[str]) -> None:
    for word in words:
        assert word in parsed(*arguments)


def test_assignments_are_yaml() -> None:
    texts = ["a.b=5", "x=[1, 2]", "y=true", "z=no", "empty=", "s=a=b"]
    assert [parse_assignment("--param", text, "KEY=VALUE") for text in texts] == [
        ("a.b", 5), ("x", [1, 2]), ("y", True), ("z", "no"), ("empty", ""), ("s", "a=b"),
    ]  # fmt: skip
    for wrong in ("a", "=3", "a=[1"):
        with pytest.raises(ConfigError, match="--param"):
            parse_assignment("--param", wrong, "KEY=VALUE")


def test_a_place_is_taken_once() -> None:
    tree: dict[str, Any] = {}
    set_at(tree, ("params", "a", "b"), 1, "--param")
    for path in (("params", "a", "b"), ("params", "a"), ("params", "a", "b", "c", "d")):
        with pytest.raises(click.UsageError, match="given twice"):
            set_at(tree, path, 2, "--param")


def test_flags_are_those_of_the_named_checkpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = PluginRegistry([PluginRecord("p", "d", "1", "m", components={"omni_pipelines": [claiming.COMPONENT]})])
    monkeypatch.setattr(omni_cli.deploy.source, "load_plugins", lambda: registry)
    (tmp_path / "config.json").write_text(json.dumps(claiming.CONFIG))
    (tmp_path / "deploy.yaml").write_text(f"model_path: {tmp_path}\n")
    named = (["--model", str(tmp_path)], ["--config", str(tmp_path / "deploy.yaml")])
    for given in named:
        answer = CliRunner().invoke(run, ["speaker", *given, "--help"], catch_exceptions=False)
        assert "[ann, bo]" in answer.output, answer.output
    assert "--speaker" not in CliRunner().invoke(run, ["speaker", "--help"], catch_exceptions=False).output


def test_pipelines_says_that_a_checkpoint_decides() -> None:
    lines = list(described(claiming.COMPONENT))
    assert lines == [
        "    checkpoints: those that it can run and no other plugin names",
        "    Of a checkpoint it offers: omni run speaker --model MODEL --help",
    ]
