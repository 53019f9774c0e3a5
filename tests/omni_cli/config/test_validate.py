"""``omni config validate``: everything that is wrong is found at once, with its file and line, and nothing that is right."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner, Result

from omni_cli.config.components import only_parameters
from omni_cli.config.server import server_problems
from omni_cli.config.validate import starving
from omni_cli.deploy.signatures import source_tree
from omni_cli.deploy.writing import dump_json
from omni_core.cli.main import omni
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError
from omni_core.hookspecs import PipelineComponent, RelayComponent
from omni_core.interface import TEXT, Interface, Parameter, ParameterGroup
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.plugins.discovery import PluginRecord

INTERFACE = Interface(
    roles={TEXT: "writer"},
    outputs=["text"],
    groups=[ParameterGroup("writer", TEXT, "the text", [Parameter("temperature", "number", "how hot", 0.5)])],
)


def write(model_path: str, most: int = 16, share: float | None = None) -> None:
    """Stand in for a factory."""


def batch(payloads: list[Any]) -> list[Any]:
    """Stand in for a function over batches."""
    return payloads


def made(model_path: str, *, dtype: str = "float32", at: str = "cpu") -> PipelineConfig:
    """Return a pipeline of two stages."""
    if model_path == "absent":
        raise ConfigError("--model 'absent' is no folder")
    if dtype != "float32":
        raise ConfigError(f"--option dtype={dtype}: there is no such dtype")
    stages = [
        StageConfig(name="writer", process="w", factory=f"{__name__}:write", next="reader"),
        StageConfig(name="reader", process="r", factory=f"{__name__}:batch", terminal=True),
    ]
    return PipelineConfig(model_path=model_path, name="writing", stages=stages)


def small() -> tuple[str, str]:
    """Return the checkpoint for a first try."""
    return "small", "No --model given: using a small one."


@pytest.fixture(autouse=True)
def registry(monkeypatch: pytest.MonkeyPatch) -> PluginRegistry:
    component = PipelineComponent(
        "writing",
        f"{__name__}:made",
        "writes",
        options={"dtype": "weights", "at": "place"},
        interface=INTERFACE,
        default_model=f"{__name__}:small",
    )
    lonely = evolve(component, name="lonely", default_model=None)
    parts: dict[str, list[Any]] = {
        "omni_pipelines": [component, lonely],
        "omni_relays": [RelayComponent("shm", "m:Relay", "memory")],
        "omni_commands": [each for each, _ in load_plugins().components("omni_commands")],
    }
    found = PluginRegistry([PluginRecord("plugin", "distribution", "1", "module", components=parts)])
    for module in ("omni_cli.deploy.source", "omni_core.plugins", "omni_cli.config.validate"):
        monkeypatch.setattr(f"{module}.load_plugins", lambda: found)
    monkeypatch.setenv("OMNI_PLATFORM", "cpu")
    source_tree.cache_clear()
    return found


def validated(path: Path | str, *flags: str) -> Result:
    return CliRunner().invoke(omni, ["config", "validate", str(path), *flags])


def problems(folder: Path, text: str, *flags: str) -> list[str]:
    """Return what is wrong with a file, without its folder."""
    (folder / "d.yaml").write_text(text)
    result = validated(folder / "d.yaml", *flags)
    assert isinstance(result.exception, ConfigError), result.output
    return str(result.exception).replace(f"{folder}/", "").splitlines()


HEAD = "pipeline: writing\nmodel_path: m\n"


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("writer: {factory_args: {most: many}}", "factory_args.most: must be an integer, is 'many'"),
        ("writer: {factory_args: {most: null}}", "factory_args.most: must be an integer, is None"),
        ("writer: {factory_args: {share: true}}", "factory_args.share: must be a number or null, is True"),
        (
            "writer: {factory_args: {moust: 1}}",
            "factory_args.moust: this stage has no such parameter; did you mean 'most'?",
        ),
        ("reader: {factory_args: {batch_size: 0}}", "factory_args.batch_size: must be a whole number of requests"),
        (
            "reader: {factory_args: {batch_wait: x, batch_size: 2}}",
            "factory_args.batch_wait: must be a number of seconds",
        ),
        ("reader: {factory: 'json:dumbs'}", "factory: 'json:dumbs': module 'json' has no attribute 'dumbs'; did you"),
        ("reader: {preload: [json, no_such_module]}", "preload: module 'no_such_module' does not exist"),
        ("reader: {merge_fn: nothing}", "merge_fn: no projection is called 'nothing'"),
    ],
)
def test_a_wrong_part_or_argument_has_its_line(tmp_path: Path, arguments: str, words: str) -> None:
    stage = arguments.partition(":")[0]
    found = problems(tmp_path, f"{HEAD}stages:\n\n  {arguments}\n")
    assert any(line.startswith(f"d.yaml:5: stages[{stage}].{words}") for line in found), found


def test_an_argument_is_checked_in_every_layer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = f"{HEAD}platforms:\n  cuda: {{stages: {{writer: {{factory_args: {{most: a}}}}}}}}\n"
    monkeypatch.setenv("OMNI_SET__WRITER__FACTORY_ARGS__SHARE", "b")
    lines = problems(tmp_path, text)
    assert [line.partition(" stages")[0] for line in lines] == ["OMNI_SET__WRITER__FACTORY_ARGS__SHARE:", "d.yaml:4:"]
    flag = "writer.factory_args.most=c"
    assert (
        f"--set {flag}: stages[writer].factory_args.most: must be an integer, is 'c'"
        in problems(tmp_path, text, "--set", flag)[0] + problems(tmp_path, text, "--set", flag)[1]
    )


def test_right_arguments_are_right(tmp_path: Path) -> None:
    stages = "stages: {writer: {factory_args: {most: 3, share: 1}}, reader: {factory_args: {batch_size: 2, batch_wait: 0.5}}}"
    (tmp_path / "d.yaml").write_text(f"{HEAD}{stages}\n")
    result = validated(tmp_path / "d.yaml")
    assert (result.stdout, result.stderr) == ("writing: 2 stages in 2 processes, valid\n", "")


def test_what_cannot_be_checked_is_said(tmp_path: Path) -> None:
    stages = (
        "stages: {writer: {factory: 'math:sin', factory_args: {most: x}}, reader: {host: h, factory_args: {most: x}}}"
    )
    places = "hosts: {h: 'tcp://h:1'}\nendpoints: {address: a, key_file: k}\n"
    (tmp_path / "d.yaml").write_text(f"{HEAD}{stages}\n{places}launcher: {{name: '{__name__}:made'}}\n")
    result = validated(tmp_path / "d.yaml")
    assert "2 processes, valid" in result.stdout, result.exception
    warned = result.stderr.replace(f"{tmp_path}/", "").splitlines()
    assert warned == [
        "Warning: d.yaml:3: stages[writer].factory_args: not checked for the factory 'math:sin', because its source cannot be read",
        "Warning: d.yaml:3: stages[reader].factory_args: not checked, because the stage runs on the host 'h'",
    ]


WRONG = """pipeline: PIPELINE
model_path: absent
base: nowhere.yaml
retires: 1
options: {dtype: f8, att: x, at: here}
stages:
  writer: {factory_args: {most: x}, gpu: 0, gpu_memory: 0.7}
  reader: {gpu: 0, gpu_memory: 0.6, startup_timeout: 0}
limits: {image: 3}
"""


@pytest.mark.parametrize(
    ("pipeline", "numbers"),
    [
        ("writing", [2, 3, 4, 5, 5, 7, 7, 8, 9]),
        ("writting", [1, 2, 3, 4, 5, 5, 7, 7, 8, 9]),
        ("lonely", [2, 3, 4, 5, 7, 8, 9]),  # without a checkpoint, nothing is known of its factories
        ("nothing", [1, 3, 4, 7, 8, 9]),
    ],
)
def test_a_wrong_source_hides_nothing_that_can_be_known(tmp_path: Path, pipeline: str, numbers: list[int]) -> None:
    lines = problems(tmp_path, WRONG.replace("PIPELINE", pipeline))
    found = [int(re.match(r"d\.yaml:(\d+)", line)[1]) for line in lines]  # type: ignore[index]
    assert found == numbers, "\n".join(lines)


def test_a_file_for_another_pipeline_is_checked_all_the_same(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text("pipeline: lonely\nstages:\n  writer: {factory_args: {most: x}}\n")
    found = str(validated("writing", "--config", str(tmp_path / "d.yaml")).exception).replace(f"{tmp_path}/", "")
    assert [line.partition(" ")[0] for line in found.splitlines()] == ["d.yaml:1:", "d.yaml:3:"], found


def test_a_value_that_a_higher_layer_hides_is_checked_too(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(f"{HEAD}retries: many\nstages: {{writer: {{env: {{A: 1}}, gpu: 0}}}}\n")
    text = "base: base.yaml\nname: [a]\nretries: 1\nplatforms: {cpu: {name: b, stages: {writer: {env: {A: '2'}}}}}\n"
    lines = problems(tmp_path, text, "--set", "writer.startup_timeout=x", "--set", "writer.gpu=null")
    assert [line.partition(": ")[0] for line in lines] == [
        "--set writer.startup_timeout=x",
        "base.yaml:3",
        "base.yaml:4",
        "d.yaml:2",
    ]


def test_variables_and_flags_are_checked_without_a_pipeline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_SET_WRITER__GPU", "1")
    lines = problems(
        tmp_path, "pipeline: nothing\nstages: {writer: {factory: a, gpu: auto}}\n", "--set", "writer.gpuu=1"
    )
    assert [line.partition(": ")[0] for line in lines] == ["OMNI_SET_WRITER__GPU", "--set writer.gpuu=1", "d.yaml:1"]


def test_budgets_above_all_of_a_device_have_their_lines(tmp_path: Path) -> None:
    (line,) = problems(
        tmp_path, f"{HEAD}stages:\n  writer: {{gpu: 0, gpu_memory: 0.7}}\n  reader: {{gpu: 0, gpu_memory: 0.6}}\n"
    )
    assert line.startswith("d.yaml:4, d.yaml:5: stages[writer].gpu_memory: budgets take 130% of GPU 0")
    (line,) = problems(tmp_path, f"{HEAD}stages:\n  writer: {{gpu: 0, gpu_memory: 0.7}}\n  reader: {{gpu: 0}}\n")
    assert line.startswith(
        "d.yaml:4, d.yaml:5: stages[reader].gpu_memory: required, because the processes w, r share GPU 0"
    )


def test_a_plan_that_does_not_fit_has_its_line(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text(f"{HEAD}stages:\n  writer: {{gpu: 3}}\n")
    result = CliRunner().invoke(omni, ["plan", str(tmp_path / "d.yaml"), "--gpus", "1", "--gpu-memory", "8GiB"])
    assert f"{tmp_path}/d.yaml:4: stages[writer].gpu: GPU 3 is wanted" in str(result.exception)


def test_the_server_is_checked_only_where_it_is_installed() -> None:
    config = PipelineConfig(model_path="m", stages=[], server={"port": 1})
    assert [*server_problems(config, None)] == ["server: nothing reads it here: pip install omni-serve"]


def test_a_route_that_can_starve_a_fan_in_is_a_warning(tmp_path: Path) -> None:
    stages = [
        StageConfig(name="start", process="p", factory="json:dumps", next=["a", "b"], route_fn="json:dumps"),
        *(StageConfig(name=name, process="p", factory="json:dumps", next="join") for name in "ab"),
        StageConfig(
            name="join", process="p", factory="json:dumps", wait_for=["a", "b"], merge_fn="json:dumps", terminal=True
        ),
    ]
    config = PipelineConfig(model_path="none", stages=stages)
    path = tmp_path / "p.json"
    path.write_text(dump_json(config))
    result = validated(path)
    assert result.exit_code == 0, result.exception
    assert "stages[join].wait_for: `route_fn` of 'start' can leave out some of a, b" in result.stderr
    assert [*starving(evolve(config, stages=[evolve(stages[0], route_fn=None), *stages[1:]]))] == []
    past = [evolve(stages[0], next=["a", "end"]), *(evolve(each, next=["c", "d"]) for each in stages[1:2])]
    past += [evolve(stages[2], name=name) for name in "cd"]
    past += [
        evolve(stages[3], wait_for=["c", "d"], terminal=False, next="end"),
        evolve(stages[3], name="end", wait_for=None),
    ]
    assert [*starving(evolve(config, stages=past))] == [], "a route past the whole fan-in starves nothing"


def test_every_component_that_is_not_there_is_named(tmp_path: Path) -> None:
    stages = [
        StageConfig(name="start", process="p", factory="json:dumbs", next="end"),
        StageConfig(name="end", process="p", factory="nowhere.at_all:f", terminal=True),
    ]
    path = tmp_path / "p.json"
    path.write_text(dump_json(PipelineConfig(model_path="none", stages=stages, placement_fn="nowhere:place")))
    numbers = [number for number, line in enumerate(path.read_text().splitlines(), 1) if '"factory"' in line]
    lines = str(validated(path).exception).replace(f"{tmp_path}/", "").splitlines()
    for line, words in zip(
        lines, ["factory: 'json:dumbs': module", "factory: 'nowhere.at_all:f': module", "placement_fn: "], strict=True
    ):
        assert words in line
    assert [line.partition(" ")[0] for line in lines[:2]] == [f"p.json:{each}:" for each in numbers]
    by_name = str(validated(path, "--set", "end.factory=no-such-factory").exception)
    assert "--set end.factory=no-such-factory: stages[end].factory: no scheduler is called" in by_name


def test_numbers_that_are_not_finite_have_no_json_form(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text(f"{HEAD}stages: {{writer: {{factory_args: {{share: .inf}}}}}}\n")
    arguments = ["config", "show", str(tmp_path / "d.yaml")]
    shown = CliRunner().invoke(omni, arguments)
    assert "stages[writer].factory_args.share: JSON has no form of inf; write the config as YAML" in str(
        shown.exception
    )
    (tmp_path / "shown.yaml").write_text(CliRunner().invoke(omni, [*arguments, "--format", "yaml"]).output)
    assert "share: .inf" in (tmp_path / "shown.yaml").read_text()
    assert "valid" in validated(tmp_path / "shown.yaml").output
    explained = CliRunner().invoke(omni, ["config", "explain", str(tmp_path / "d.yaml"), "--json"])
    json.loads(explained.stdout, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))


@pytest.mark.parametrize(
    ("reference", "expected"),
    [
        ("some_parts:plain", None),
        ("some_parts.build", {"a", "b"}),
        ("some_parts:Child", {"depth", "width"}),
        ("some_parts:Child.from_checkpoint", {"path", "dtype"}),
        ("some_parts:Fields", None),
        ("some_parts:wrapped", None),
        ("some_parts:nothing", None),
    ],
)
def test_what_is_known_to_take_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, reference: str, expected: set[str] | None
) -> None:
    (tmp_path / "some_parts.py").write_text(
        "def plain(a, **more): ...\ndef build(a, b=1): ...\nclass Base:\n    def __init__(self, depth: int, *, width=None): ...\n"
        "    @classmethod\n    def from_checkpoint(cls, path, dtype='float32'): ...\nclass Child(Base): ...\n"
        "class Fields:\n    size: int\n@build\ndef wrapped(a): ...\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    assert only_parameters(reference) == expected


def test_show_warns_of_an_argument_that_no_part_takes(tmp_path: Path) -> None:
    (tmp_path / "d.yaml").write_text(HEAD + "stages: {writer: {factory_args: {moust: 1}}}\n")
    shown = CliRunner().invoke(omni, ["config", "show", str(tmp_path / "d.yaml")])
    assert shown.exit_code == 0, shown.output
    assert '"moust": 1' in shown.stdout
    assert "factory_args.moust: this stage has no such parameter; did you mean 'most'?" in shown.stderr
