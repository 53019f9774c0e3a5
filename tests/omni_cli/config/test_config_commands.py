"""``omni config explain``, ``diff`` and ``init``: what they say is what is in force, and what ``init`` writes validates."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner, Result

from omni_cli.config import explain, init, users
from omni_cli.config.values import by_path
from omni_cli.deploy.source import LayeredSource
from omni_core.cli.main import omni
from omni_core.config.documents import parse_yaml
from omni_core.config.loading import unstructure
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError
from omni_core.hookspecs import PipelineComponent
from omni_core.interface import TEXT, Interface, Parameter, ParameterGroup
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.plugins.discovery import PluginRecord

MOST = 16
INTERFACE = Interface(
    roles={TEXT: "writer"},
    outputs=["text"],
    groups=[
        ParameterGroup("writer", TEXT, "the text", [Parameter("temperature", "number", "how hot", 0.5, minimum=0)])
    ],
    metadata=[Parameter("speaker", "string", "the voice")],
)


def write(model_path: str, most: int = MOST, name: str | None = None) -> None:
    """Write.

    Args:
        most: requests computed
            together. name: something else.
    """


def made(model_path: str, *, dtype: str = "float32") -> PipelineConfig:
    """Return a pipeline of one stage."""
    stage = StageConfig(
        name="writer",
        process="w",
        factory=f"{__name__}:write",
        terminal=True,
        replicas=2,
        factory_args={"name": dtype},
    )
    return PipelineConfig(model_path=model_path, name="writing", stages=[stage])


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> PluginRegistry:
    component = PipelineComponent(
        "writing", f"{__name__}:made", "writes", options={"dtype": "weights"}, interface=INTERFACE
    )
    record = PluginRecord("plugin", "distribution", "1", "module", components={"omni_pipelines": [component]})
    commands, owner = load_plugins().components("omni_commands"), "omni_commands"
    records = [
        PluginRecord(each.name, each.distribution, "1", "m", components={owner: [component]})
        for component, each in commands
    ]
    found = PluginRegistry([record, *records])
    for module in (
        "omni_cli.deploy.source",
        "omni_core.plugins",
        "omni_cli.pipelines",
        "omni_cli.config.validate",
    ):
        monkeypatch.setattr(f"{module}.load_plugins", lambda: found)
    for each in (users, init):
        monkeypatch.setattr(each, "load_plugins", lambda: found)
    monkeypatch.setenv("OMNI_PLATFORM", "cpu")
    return found


DEPLOY = """pipeline: writing
model_path: m
stages:
  writer:
    factory_args: {most: 8}
    relay: big
relays: {big: {credits: 9}}
defaults: {params: {text: {temperature: 1}}}
platforms:
  cpu: {stages: {writer: {factory_args: {most: 4}}}}
server: {port: 9000}
"""


@pytest.fixture
def deploy(tmp_path: Path) -> str:
    (tmp_path / "d.yaml").write_text(DEPLOY)
    return str(tmp_path / "d.yaml")


def told(*arguments: str) -> Result:
    return CliRunner().invoke(omni, ["config", *arguments])


def test_every_layer_of_a_value_is_shown_with_the_winner_and_the_reader(
    deploy: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_SET__WRITER__FACTORY_ARGS__MOST", "3")
    shown = told(
        "explain", deploy, "writer.factory_args.most", "--set", "*.factory_args.most=2", "--set", "writer.gpu=0"
    )
    words = [re.sub(r" {2,}", "  ", line) for line in shown.output.splitlines()]
    assert words == [
        "writer.factory_args.most = 2",
        "  pipeline  (not set; the default is 16)",
        f"  {deploy}:5  8",
        f"  platform cpu of {deploy}:10  4",
        "  OMNI_SET__WRITER__FACTORY_ARGS__MOST  3",
        "  --set *.factory_args.most=2  2  <- wins",
        "  --set  -",
        f"  read by {__name__}:write(most): requests computed together",
    ]


@pytest.mark.parametrize(
    ("path", "lines"),
    [
        (
            "writer.relay",
            ["writer.relay.credits = 9", "d.yaml:6 9 <- wins", "read by RelayConfig.credits: how many slots"],
        ),
        (
            "relays.big.credits",
            ["relays.big.credits = 9", "d.yaml:7 9 <- wins", "read by RelayConfig.credits: how many slots"],
        ),
        (
            "defaults",
            [
                "defaults.params.text.temperature = 1",
                "(not set; the default is 0.5)",
                "read by request, params.writer: how hot",
            ],
        ),
        (
            "server.port",
            ["server.port = 9000", "(not set; the default is 8000)", "read by omni serve --port: The port."],
        ),
        ("pipeline", ["pipeline = writing", "d.yaml:1 writing <- wins"]),
        (
            "retries",
            [
                "retries is not set",
                "(not set; the default is 0)",
                "read by PipelineConfig.retries: how often a request",
            ],
        ),
        ("writer.factory_args.name", ["writer.factory_args.name = float32", "pipeline float32 <- wins"]),
        ("writer.gpu_memory", ["writer.gpu_memory is not set", "read by StageConfig.gpu_memory: how much memory"]),
    ],
)
def test_every_kind_of_value_has_its_reader(deploy: str, path: str, lines: list[str]) -> None:
    shown = re.sub(r" +", " ", told("explain", deploy, path).output)
    for line in lines:
        assert line in shown


def test_without_a_path_all_that_is_not_the_pipelines_own_is_shown(deploy: str) -> None:
    document = json.loads(told("explain", deploy, "--json").stdout)
    assert {each["path"]: each["value"] for each in document} == {
        "relays.big.credits": 9,
        "pipeline": "writing",
        "model_path": "m",
        "writer.factory_args.most": 4,
        "writer.relay.credits": 9,
        "defaults.params.text.temperature": 1,
        "server.port": 9000,
    }
    for each in document:
        assert each["layers"][-1]["layer"] == each["winner"]
        number = int(each["layers"][-1]["origin"].rpartition(":")[2])
        assert str(each["value"]) in DEPLOY.splitlines()[number - 1] or each["path"] == "writer.relay.credits"


def test_a_value_that_becomes_the_default_is_shown_as_it_is() -> None:
    found = told("explain", "writing", "writer.replicas", "--model", "m", "--set", "writer.replicas=1").output
    assert found.startswith("writer.replicas = 1\n")


def test_what_a_whole_mapping_takes_away_is_not_set_any_more() -> None:
    source = ("--model", "m", "--set", "writer.factory_args={most: 3}")
    shown = re.sub(r" +", " ", told("explain", "writing", "writer.factory_args.name", *source).output)
    assert shown.startswith("writer.factory_args.name is not set\n")
    assert " --set writer.factory_args={most: 3} (removed) <- wins" in shown
    document = json.loads(told("explain", "writing", "writer.factory_args.name", "--json", *source).stdout)
    assert (document[0]["value"], document[0]["winner"]) == (None, "--set")


def test_a_whole_pipeline_s_own_values_have_their_line(tmp_path: Path) -> None:
    stage = f"  - {{name: writer, process: w, factory: '{__name__}:write', terminal: true, replicas: 2}}"
    (tmp_path / "whole.yaml").write_text(f"model_path: m\nstages:\n{stage}\n")
    (tmp_path / "d.yaml").write_text("base: whole.yaml\nretries: 1\n")
    shown = told("explain", str(tmp_path / "d.yaml"), "writer.replicas").output
    assert f"  {tmp_path}/whole.yaml:3 " in shown
    (tmp_path / "e.yaml").write_text((tmp_path / "whole.yaml").read_text().replace(": m", ": n"))
    assert told("diff", str(tmp_path / "d.yaml"), str(tmp_path / "e.yaml")).output.splitlines() == [
        f"model_path: m ({tmp_path}/whole.yaml:1) -> n ({tmp_path}/e.yaml:1)",
        f"retries: 1 ({tmp_path}/d.yaml:2) -> not set",
    ]


def test_a_path_may_begin_with_stages(deploy: str) -> None:
    assert told("explain", deploy, "stages.writer.factory_args.most").output.startswith(
        "writer.factory_args.most = 4\n"
    )
    assert "writer.factory = " in told("explain", deploy, "stages").output


@pytest.mark.parametrize(
    ("path", "words"),
    [
        ("interface.roles", "the interface is the pipeline's own"),
        ("limits.imags", "did you mean 'limits.images'"),
        ("writer.process.x", "did you mean 'writer.process'"),
        ("nothing", "`omni config show` prints the whole of it"),
    ],
)
def test_a_path_that_no_layer_can_set_is_an_error(deploy: str, path: str, words: str) -> None:
    assert words in str(told("explain", deploy, path).exception)


def test_a_default_that_is_computed_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(init, "argument", lambda stage, name: users.User("x", "help", "Limits().most"))
    assert "#       # most: ...  # help" in told("init", "writing", "--model", "m").output


def test_an_argument_that_no_part_takes_is_found(deploy: str) -> None:
    result = told("validate", deploy, "--set", "writer.factory_args.moust=3")
    assert "stages[writer].factory_args.moust: this stage has no such parameter; did you mean 'most'?" in str(
        result.exception
    )


def test_a_path_that_is_not_there_is_an_error(deploy: str) -> None:
    result = told("explain", deploy, "writer.factory_args.moust")
    assert isinstance(result.exception, ConfigError)
    assert "writer.factory_args.moust: the config has no such path; did you mean 'writer.factory_args.most'" in str(
        result.exception
    )


def test_a_difference_has_both_origins(deploy: str, tmp_path: Path) -> None:
    (tmp_path / "e.yaml").write_text("base: d.yaml\nretries: 2\nstages: {writer: {factory_args: {name: x}}}\n")
    result = told("diff", deploy, str(tmp_path / "e.yaml"))
    assert result.exit_code == 1
    assert result.output.splitlines() == [
        f"writer.factory_args.name: float32 (pipeline) -> x ({tmp_path}/e.yaml:3)",
        f"retries: not set -> 2 ({tmp_path}/e.yaml:2)",
    ]
    same = told("diff", deploy, deploy)
    assert (same.exit_code, "are equal" in same.output) == (0, True)


def uncommented(text: str) -> str:
    """Return a file of ``omni config init`` with every value in force, but for examples and those whose value it cannot know."""
    lines = []
    for line in text.splitlines()[2:]:
        plain = line.removeprefix("# ")
        if not plain.startswith(("base:", "relays:", "  large:")) and ": ..." not in plain and plain != "options:":
            lines.append(plain)
    return "\n".join(lines)


def test_a_file_to_begin_with_validates_as_it_is_and_with_every_comment_in_force(tmp_path: Path) -> None:
    path = tmp_path / "new.yaml"
    assert told("init", "writing", "--model", "m", "--out", str(path)).exit_code == 0
    usual = LayeredSource("writing", "m").resolve().config
    assert LayeredSource(str(path)).resolve().config == usual
    text = path.read_text()
    for expected in ("#   dtype: ...  # weights", "#       # most: 16  # requests computed together", "port: 8000 "):
        assert expected in text
    path.write_text(uncommented(text))
    values: Any = parse_yaml(path.read_text(), "new")[0]
    assert {"pipeline", "model_path", "defaults", "limits", "stages", "platforms", "server", "retries"} <= values.keys()
    changed = LayeredSource(str(path)).resolve().config
    now, before = by_path(unstructure(changed)), by_path(unstructure(usual))
    assert {
        name: value
        for name, value in now.items()
        if before.get(name) != value and not name.startswith(("server", "defaults"))
    } == {}
    assert "valid" in told("validate", str(path)).output
    again = told("init", "writing", "--model", "m", "--out", str(path))
    assert "the file exists" in str(again.exception)


def test_the_layer_of_this_machine_is_named(deploy: str, registry: PluginRegistry) -> None:
    resolved = LayeredSource(deploy).resolve()
    placed = evolve(resolved.config, stages=[evolve(resolved.config.stages[0], gpu=3)])
    (found,) = explain.explanations(resolved, placed, "writer.gpu")
    assert found.winner is not None
    assert (found.value, found.winner.layer) == (3, explain.MACHINE)
