"""The ``omni`` group: errors of every command as JSON, and advice about commands that are not installed."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import click
import pytest
from click.testing import CliRunner

from omni_core.cli.main import SECTIONS, error_document, omni
from omni_core.errors import ConfigError, OverloadedError, RequestFailedError
from omni_core.hookspecs import CommandComponent, Component
from omni_core.plugins import PluginRecord, PluginRegistry, PluginStatus
from omni_core.plugins.advice import advice


@pytest.mark.parametrize(
    ("arguments", "code", "kind", "words"),
    [
        (["plan", "nothing-like-it", "--json"], 1, "PluginError", "no pipeline is called 'nothing-like-it'"),
        (["plan", "--json"], 2, "MissingParameter", "Missing argument 'PIPELINE'"),
        (["plan", "x", "--jsn", "--json"], 2, "NoSuchOption", "'--json'"),
        (["plan", "x.yaml", "--gpu-memory", "1GiB", "--json"], 2, "UsageError", "--gpu-memory needs --gpus"),
        (["rnu", "--json"], 2, "UsageError", "did you mean 'run'?"),
        (["run", "nothing-like-it", "--text", "x", "--json"], 1, "PluginError", "no pipeline is called"),
    ],
)
def test_json_errors_are_json(arguments: list[str], code: int, kind: str, words: str) -> None:
    answer = CliRunner().invoke(omni, arguments)
    assert answer.exit_code == code, answer.output
    assert answer.stderr == ""
    error = json.loads(answer.stdout)["error"]
    assert error["type"] == kind
    assert words in error["message"]


def test_help_lists_commands_in_sections(monkeypatch: pytest.MonkeyPatch) -> None:
    def sections() -> dict[str, list[str]]:
        _, *found = re.split(r"^(\w+):$", CliRunner().invoke(omni, ["--help"]).stdout, flags=re.MULTILINE)[2:]
        return {
            name: re.findall(r"^  (\S+)", rows, re.MULTILINE)
            for name, rows in zip(found[::2], found[1::2], strict=True)
        }

    shown = sections()
    assert list(shown) == [*SECTIONS], "each command of ours has one"
    assert shown["Run"][0] == "run"
    assert {"serve", "keys"} <= {*shown["Serve"]}
    greet = Component("greet", "my_tool:greet", "says hello")
    look = CommandComponent("look", "my_tool:look", "looks", section="Look")
    record = PluginRecord("mine", "my-tool", "1", "m")
    monkeypatch.setattr(PluginRegistry, "components", lambda *_: [(greet, record), (look, record)])
    assert sections() == {"Run": ["run"], "Others": ["greet"], "Look": ["look"]}


def test_the_command_is_a_module_too() -> None:
    done = subprocess.run([sys.executable, "-m", "omni_core", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("omni, version ")


def test_json_of_what_succeeds_is_untouched() -> None:
    answer = CliRunner().invoke(omni, ["plan", "--json", "--help"])
    assert (answer.exit_code, answer.stdout.split()[0]) == (0, "Usage:")


def test_an_error_keeps_what_a_caller_may_act_on() -> None:
    failed = RequestFailedError("r-1", "decoder", "ValueError", "no")
    assert error_document(failed) == {
        "type": "ValueError", "message": str(failed), "stage": "decoder", "request_id": "r-1",
    }  # fmt: skip
    assert error_document(OverloadedError("full", 2.5))["retry_after"] == 2.5
    assert error_document(click.UsageError("wrong")) == {"type": "UsageError", "message": "wrong"}
    wrong = error_document(ConfigError("stages[decoder].gpu_memory: too much"))
    assert wrong["message"] == "stages[decoder].gpu_memory: (--set decoder.gpu_memory=...) too much"


def test_a_command_of_another_distribution_is_named_with_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_core.plugins.load_plugins", lambda: PluginRegistry([]))
    for name, distribution in {name: each for each, names in advice()["commands"].items() for name in names}.items():
        if name == "run":  # the core has one
            continue
        answer = CliRunner().invoke(omni, [name])
        assert answer.exit_code == 2
        assert f"the command {name!r} comes with {distribution}: pip install {distribution}" in answer.stderr


def test_a_command_of_a_disabled_plugin_is_told_from_one_that_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    record = PluginRecord("terminal", "omni-commands", "1", "m", PluginStatus.DISABLED, "OMNI_PLUGINS does not name it")
    monkeypatch.setattr("omni_core.plugins.load_plugins", lambda: PluginRegistry([record]))
    answer = CliRunner().invoke(omni, ["plan"])
    assert answer.exit_code == 2
    assert (
        "the command 'plan' comes with plugin 'terminal' of omni-commands 1, which is disabled: OMNI_PLUGINS does"
        in answer.stderr
    )
    assert "pip install" not in answer.stderr


@pytest.mark.parametrize("arguments", [[], ["--json"]])
def test_ctrl_c_is_a_line_and_an_exit_code(arguments: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(pipeline: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("omni_cli.deploy.source.LayeredSource.resolve", interrupted)
    answer = CliRunner().invoke(omni, ["plan", "x", *arguments])
    assert answer.exit_code == 130
    assert (answer.stdout, answer.stderr) == ("", "Interrupted.\n")
