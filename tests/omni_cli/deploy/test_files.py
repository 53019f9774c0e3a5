"""Deploy files: keys, bases, presets, platforms, the environment, and the order of all of them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

import omni_core
from omni_cli.deploy.files import environment_layer, presets, read_deploy
from omni_cli.deploy.override_layers import LayeredConfig
from omni_cli.deploy.source import LayeredSource
from omni_cli.deploy.writing import dump_json, dump_yaml
from omni_core.client.source import parse_options
from omni_core.config.schema import PipelineConfig, RelayConfig, StageConfig
from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import PipelineComponent
from omni_core.interface import SPEECH, TEXT, Interface, Parameter, ParameterGroup
from omni_core.plugins import PluginRegistry
from omni_core.plugins.discovery import PluginRecord

INTERFACE = Interface(
    roles={TEXT: "writer", SPEECH: "voice"},
    outputs=["text", "audio"],
    groups=[
        ParameterGroup("writer", TEXT, "the text", [Parameter("temperature", "number", "how hot", minimum=0)]),
        ParameterGroup("voice", SPEECH, "the sound", [Parameter("top_k", "integer", "how many", aliases=["best"])]),
    ],
    metadata=[Parameter("speaker", "string", "the voice")],
)


def engine(model_path: str, device: str = "cpu", max_num_seqs: int = 64, max_model_len: int | None = None) -> None:
    """Stand in for the factory of a stage that generates."""


def sound(model_path: str, chunk: int = 25) -> None:
    """Stand in for the factory of a stage that does not."""


def made(model_path: str, *, dtype: str = "float32") -> PipelineConfig:
    """Return the pipeline of these tests: two stages that generate, and one that makes the sound."""
    if model_path.endswith("absent"):
        raise ConfigError(f"--model {model_path!r} is no folder")
    if dtype not in ("float32", "bfloat16"):
        raise ConfigError(f"--option dtype={dtype}: there is no such dtype")
    stages = [
        StageConfig(
            name="writer", process="w", factory=f"{__name__}:engine", next="voice", factory_args={"dtype": dtype}
        ),
        StageConfig(name="voice", process="v", factory=f"{__name__}:engine", next="sound"),
        StageConfig(name="sound", process="s", factory=f"{__name__}:sound", terminal=True),
    ]
    return PipelineConfig(model_path=model_path, name="speaking", stages=stages)


@pytest.fixture
def registry(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PluginRegistry:
    folder = tmp_path / "site" / "speaking_plugin" / "presets"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("")
    (folder / "two.yaml").write_text("# Two cards.\npipeline: speaking\nstages:\n  voice: {gpu: 1}\nretries: 1\n")
    (folder / "one.yaml").write_text("pipeline: speaking\n")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.delitem(sys.modules, "speaking_plugin", raising=False)  # that of the test before, whose folder is gone
    component = PipelineComponent(
        "speaking",
        f"{__name__}:made",
        "speaks",
        options={"dtype": "weights"},
        interface=INTERFACE,
        presets="speaking_plugin:presets",
    )
    record = PluginRecord("plugin", "distribution", "1", "module", components={"omni_pipelines": [component]})
    found = PluginRegistry([record])
    monkeypatch.setattr("omni_cli.deploy.source.load_plugins", lambda: found)
    return found


def written(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    return str(folder / name)


def resolved(name: str, *flags: str, platform: str = "cpu", **more: Any) -> LayeredConfig:
    return LayeredSource(name, settings=flags, platform=platform, **more).resolve()


def refusal(name: str, *flags: str, **more: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        resolved(name, *flags, **more)
    return str(caught.value).splitlines()


BUNDLED = """
pipeline: speaking
model_path: m
stages:
  writer: {gpu: 0, gpu_memory: 0.9, factory_args: {max_num_seqs: 32}}
  voice: {gpu: 0, gpu_memory: 0.7, factory_args: {max_num_seqs: 16}}
"""
MINE = """
base: bundled.yaml
stages:
  voice:
    gpu: 1
    gpu_memory: 0.5     # smaller GPU
"""


def test_the_worked_example(registry: PluginRegistry, tmp_path: Path) -> None:
    """A base, a file over it, a flag for all stages and a flag for one; the last stage has nothing of any of them."""
    written(tmp_path, "bundled.yaml", BUNDLED)
    mine = written(tmp_path, "mine.yaml", MINE)
    found = resolved(mine, "*.factory_args.max_model_len=16384", "writer.factory_args.max_num_seqs=8")
    writer, voice, last = found.config.stages
    table = [
        (stage.gpu_memory, stage.factory_args["max_num_seqs"], stage.factory_args["max_model_len"])
        for stage in (writer, voice)
    ]
    assert table == [(0.9, 8, 16384), (0.5, 16, 16384)]
    assert (last.gpu_memory, last.factory_args) == (None, {})
    origins = {path: origin for path, (origin, _, _) in found.provenance.items()}
    assert origins["writer.gpu_memory"] == f"{tmp_path}/bundled.yaml:5"
    assert origins["voice.gpu_memory"] == f"{mine}:6"
    assert origins["voice.factory_args.max_num_seqs"] == f"{tmp_path}/bundled.yaml:6"
    assert origins["writer.factory_args.max_num_seqs"] == "--set writer.factory_args.max_num_seqs=8"
    assert origins["voice.factory_args.max_model_len"] == "--set *.factory_args.max_model_len=16384"


ALL = """
pipeline: speaking
model_path: m
base: base.yaml
retries: 2
env_defaults: {A: file, B: file, C: file, D: file, E: file, F: file}
platforms:
  cpu: {env_defaults: {C: platform, D: platform, E: platform, F: platform}}
  cuda: {env_defaults: {A: never}}
"""


def test_the_layers_from_low_to_high(registry: PluginRegistry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    written(
        tmp_path,
        "inner.yaml",
        "env_defaults: {Z: inner, Y: inner}\nplatforms: {cpu: {env_defaults: {B: base platform, C: base platform}}}\n",
    )
    written(tmp_path, "base.yaml", "base: inner.yaml\nenv_defaults: {A: base, Y: base}\n")
    for name in "DEF":
        monkeypatch.setenv(f"OMNI_SET__ENV_DEFAULTS__{name}", "variable")
    found = resolved(written(tmp_path, "all.yaml", ALL), "env_defaults.F=flag")
    assert found.config.env_defaults == {
        "Z": "inner", "Y": "base", "A": "file", "B": "base platform", "C": "platform", "D": "variable", "E": "variable", "F": "flag"
    }  # fmt: skip
    assert [layer.name for layer in found.layers] == [
        f"base {tmp_path}/inner.yaml",
        f"base {tmp_path}/base.yaml",
        f"{tmp_path}/all.yaml",
        f"platform cpu of base {tmp_path}/inner.yaml",
        f"platform cpu of {tmp_path}/all.yaml",
        "environment",
        "--set",
    ]


def test_a_file_chooses_the_pipeline_its_model_and_options(registry: PluginRegistry, tmp_path: Path) -> None:
    text = "pipeline: speaking\nmodel_path: ./weights\noptions: {dtype: bfloat16}\nplatforms: {cuda: {options: {dtype: float32}}}\n"
    file = written(tmp_path, "d.yaml", text)
    config = resolved(file).config
    assert (config.model_path, config.stages[0].factory_args) == (str(tmp_path / "weights"), {"dtype": "bfloat16"})
    assert resolved(file, platform="cuda").config.stages[0].factory_args == {"dtype": "float32"}
    flags = resolved(file, model="other", options={"dtype": "float32"})
    assert (flags.config.model_path, flags.config.stages[0].factory_args) == ("other", {"dtype": "float32"})
    assert flags.provenance["options.dtype"] == ("--option dtype=float32", "bfloat16", "float32")
    assert LayeredSource(file).exists()
    assert LayeredSource(file).interface() == INTERFACE
    over = resolved("speaking", overlay=file, model="third").config
    assert (over.model_path, over.stages[0].factory_args) == ("third", {"dtype": "bfloat16"})


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "model_path: m\npipeline: speeking\n",
            ["d.yaml:2: no pipeline is called 'speeking'; did you mean 'speaking'"],
        ),
        ("retries: 1\n", ["d.yaml: `pipeline` is missing"]),
        ("pipeline: speaking\nmodel_path: 3\n", ["d.yaml:2: model_path: must be a text"]),
        ("pipeline: {a: b}\n", ["d.yaml:1: pipeline: must be a text"]),
        ("- a\n- b\n", ["d.yaml: must be a mapping of keys to values; there are: pipeline, "]),
        ("pipeline: speaking\nbase: nowhere.yaml\n", ["nowhere.yaml cannot be read"]),
        ("pipeline: speaking\nbase: speaking/tow\n", ["speaking/tow is neither a file", "did you mean 'speaking/two'"]),
        ("pipeline: speaking\nbase: [a]\n", ["d.yaml:2: base: must be a file or a preset"]),
        (
            "pipeline: speaking\nmodel_path: 2001-01-01\n",
            ["d.yaml:2: datetime.date(2001, 1, 1) is a date; a text is written in quotes"],
        ),
    ],
)
def test_a_file_that_names_no_pipeline_is_refused(
    registry: PluginRegistry, tmp_path: Path, text: str, words: list[str]
) -> None:
    lines = refusal(written(tmp_path, "d.yaml", text))
    for word in words:
        assert any(word in line for line in lines), lines


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        (
            "options: {dtype: f8}",
            "options.dtype=f8: there is no such dtype",
        ),
        (
            "options: {dtyp: f8}",
            "options.dtyp: pipeline 'speaking' does not take these options, {'dtyp': 'f8'}: TypeError",
        ),
        (
            "conectors: {}",
            "conectors: unknown key",
        ),
        (
            "relay: {}",
            "relay: unknown key; did you mean 'relays'",
        ),
        (
            "platforms: {cdua: {}}",
            "platforms: no platform is called 'cdua'; did you mean 'cuda'",
        ),
        (
            "platforms: {cpu: {pipeline: x}}",
            "platforms.cpu.pipeline: unknown key; not in a section",
        ),
        (
            "stages: {retries: {gpu: 3}}",
            "no stage is called 'retries'",
        ),
        (
            "stages: 3",
            "stages: must map names to fields",
        ),
        (
            "defaults: {params: {writer: {temperatur: 1}}}",
            "defaults.params.writer.temperatur: no such parameter; did you mean",
        ),
        (
            "defaults: {params: {text: {temperature: -1}}}",
            "defaults.params.text.temperature: must be a number, 0 or more",
        ),
        (
            "defaults: {params: {text: {temperature: 1}, writer: {temperature: 1}}}",
            "params.text: given twice, by role and as writer",
        ),
        (
            "defaults: {metadata: {speeker: x}}",
            "defaults.metadata.speeker: no such key; did you mean 'speaker'",
        ),
        (
            "defaults: {modalities: [vidoe]}",
            "defaults.modalities: 'vidoe' is not offered",
        ),
        (
            "defaults: {parms: {}, timeout: 3}",
            "'timeout' is not a field here",
        ),
        (
            "limits: {image: 3}",
            "'image' is not a field here; did you mean 'images'",
        ),
        (
            "launcher: {name: local, settings: {a: 1}}",
            "launcher.settings.a: the launcher 'local' has no settings",
        ),
        (
            "launcher: {name: hosts}",
            "launcher.name: hosts, but no stage has a `host`",
        ),
        (
            "stages: {writer: {process: x, env: {A: '1'}}, voice: {process: x}}",
            "process 'x': its stages have different `env` (stages[writer].env: {'A': '1'}, stages[voice].env: none)",
        ),
        (
            "stages: {writer: {env: {A: 1}}}",
            "stages[writer].env.A: must be str, is 1; write it in quotes",
        ),
        (
            "stages: {writer: {env: 5}}",
            "stages[writer].env: must be a mapping, is 5",
        ),
        (
            "stages: {writer: {env: {A=B: x}}}",
            "stages[writer].env.A=B: no environment variable can have this name or value: 'A=B', 'x'",
        ),
        (
            "env_defaults: {'': x}",
            "env_defaults.: no environment variable can have this name or value: '', 'x'",
        ),
        (
            "stages: {writer: {startup_timeout: .nan}}",
            "stages[writer].startup_timeout: must be a finite number, is nan",
        ),
        (
            "fused_stages: 3",
            "fused_stages: must be a list, is 3",
        ),
        (
            "runtime_overrides: 4",
            "runtime_overrides: must be a mapping, is 4",
        ),
        (
            "stages: {writer: {process: x, relay: {credits: 9}}, voice: {process: x, relay: {credits: 8}}}",
            "process 'x': its stages have different `relay` (stages[writer].relay: RelayConfig(",
        ),
        (
            "stages: {writer: {relay: {settings: {a: 1}}}, voice: {relay: {settings: {a: 2}}}}",
            "stages[voice].relay.settings: the relay 'shm' has others in stages[writer].relay.settings",
        ),
        (
            "stages: {writer: {host: away}}",
            "endpoints.key_file: required by the `host` of stages: stages[writer].host; make one",
        ),
        (
            "stages: {writer: {host: away}}",
            "endpoints.address: required by the `host` of stages: stages[writer].host; the address",
        ),
        (
            "retries: null",
            "retries: must be int, is None",
        ),
        (
            "relays: {fast: {}}",
            "relays.fast: is empty; give it a field, such as backend",
        ),
        (
            "limits: {'*': 3}",
            "limits.*: '*' is not a field here",
        ),
        (
            "stages: {writer: {preload: torch}}",
            "stages[writer].preload: must be a list of texts",
        ),
        (
            "stages: {writer: {gpu: 1, gpu: 2}}",
            "no valid YAML",
        ),
    ],
)
def test_what_is_wrong_is_refused_with_its_line(
    registry: PluginRegistry, tmp_path: Path, line: str, problem: str
) -> None:
    lines = refusal(written(tmp_path, "d.yaml", f"pipeline: speaking\nmodel_path: m\n{line}\n"))
    assert any(problem in each for each in lines), lines
    assert all("d.yaml:3: " in each for each in lines if problem in each), lines


def test_an_empty_section_says_nothing(registry: PluginRegistry, tmp_path: Path) -> None:
    written(tmp_path, "base.yaml", "pipeline: speaking\nmodel_path: m\nlimits: {images: 3}\nrequest_timeout: 9\n")
    text = "base: base.yaml\nlimits:\nserver:\nstages:\n  writer:\n  voice: {factory_args: , env: }\ndefaults: {params: , metadata: }\n"
    assert resolved(written(tmp_path, "d.yaml", text)).config == resolved(str(tmp_path / "base.yaml")).config


def test_null_sets_a_field_to_nothing(registry: PluginRegistry, tmp_path: Path) -> None:
    written(tmp_path, "base.yaml", "pipeline: speaking\nmodel_path: m\nrequest_timeout: 9\n")
    assert (
        resolved(written(tmp_path, "d.yaml", "base: base.yaml\nrequest_timeout: null\n")).config.request_timeout is None
    )


@pytest.mark.parametrize("base", ["nowhere.yaml", "speaking/three", "."])
def test_a_base_that_is_not_there_is_named_with_its_line(registry: PluginRegistry, tmp_path: Path, base: str) -> None:
    (line,) = refusal(written(tmp_path, "d.yaml", f"retries: 1\nbase: {base}\n"))
    assert line.startswith(f"{tmp_path}/d.yaml:2: base: ")


def test_a_preset_that_is_not_there_is_no_hub_id(registry: PluginRegistry) -> None:
    with pytest.raises(
        PluginError, match="neither a folder nor a preset of that pipeline; did you mean 'speaking/two'"
    ):
        resolved("speaking/twoo")


def test_a_key_with_any_character_has_its_line(registry: PluginRegistry, tmp_path: Path) -> None:
    def rule(config: PipelineConfig) -> list[str]:
        return [f"server.{key}: unknown key" for key in config.server]

    file = written(tmp_path, "d.yaml", "base: speaking/one\nmodel_path: m\nserver: {a-b: 1,\n  'c d': 2,\n  '*': 3}\n")
    with pytest.raises(ConfigError) as caught:
        LayeredSource(file).resolve(rules=[rule])
    lines = str(caught.value).replace(f"{file}:", "").splitlines()
    assert lines == ["3: server.a-b: unknown key", "4: server.c d: unknown key", "5: server.*: unknown key"]


def test_a_model_that_is_not_there_has_its_line(registry: PluginRegistry, tmp_path: Path) -> None:
    file = written(tmp_path, "d.yaml", "pipeline: speaking\nmodel_path: absent\n")
    assert refusal(file) == [f"{file}:2: model_path: 'absent' is no folder"]
    assert refusal("speaking", model="absent") == ["--model 'absent' is no folder"]


def test_defaults_twice_have_the_line_of_the_role(registry: PluginRegistry, tmp_path: Path) -> None:
    text = "pipeline: speaking\nmodel_path: m\ndefaults: {params: {speech: {top_k: 1, best: 2}}}\n"
    assert refusal(written(tmp_path, "d.yaml", text)) == [
        f"{tmp_path}/d.yaml:3: defaults.params.speech.best: given twice, by two of its names: top_k, best"
    ]


def test_an_option_twice_is_refused() -> None:
    with pytest.raises(ConfigError, match="--option: one is given twice: dtype=a, dtype=b"):
        parse_options(("dtype=a", "dtype=b"))


def test_environment_variables_of_stages_are_texts(registry: PluginRegistry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_SET__VOICE__ENV__THREADS", "4")
    flags = ("writer.env.THREADS=010", "env_defaults.A.B=true", "sound.env.QUOTED='1'", "writer.factory_args.env=3")
    config = resolved("speaking", *flags, model="m").config
    assert [stage.env for stage in config.stages] == [{"THREADS": "010"}, {"THREADS": "4"}, {"QUOTED": "1"}]
    assert (config.env_defaults, config.stages[0].factory_args["env"]) == ({"A.B": "true"}, 3)


def test_everything_that_is_wrong_is_said_at_once(registry: PluginRegistry, tmp_path: Path) -> None:
    text = (
        "pipeline: speaking\nmodel_path: m\nretires: 1\nstages:\n"
        "  writer: {gpuu: 1}\n  vioce: {gpu: 1}\n  sound: {tp_size: x, replicas: 0}\n"
        "limits: {images: -1}\ndefaults: {params: {writer: {temperature: hot}}}\nplatforms: {cpu: {stages: {voice: {gpu: -1}}}, gpu: {}}\n"
    )
    lines = refusal(written(tmp_path, "d.yaml", text), "writer.nothing=1")
    numbers = [line.partition("d.yaml:")[2].partition(":")[0] for line in lines]
    assert sorted(numbers, key=lambda each: int(each or 0)) == ["", "3", "5", "6", "7", "7", "8", "9", "10", "10"]


def test_bases_in_a_circle_are_named(registry: PluginRegistry, tmp_path: Path) -> None:
    first = written(tmp_path, "a.yaml", "base: b.yaml\n")
    written(tmp_path, "b.yaml", "\nbase: ./a.yaml\n")
    (line,) = refusal(first)
    assert line.startswith(f"{tmp_path}/b.yaml:2: base: ")
    assert line.endswith("a.yaml is a cycle")


def test_presets_are_files_of_the_distribution(registry: PluginRegistry, tmp_path: Path) -> None:
    component = registry.get("omni_pipelines", "speaking")
    assert isinstance(component, PipelineComponent)
    assert [*presets(component)] == ["one", "two"]
    for name, overlay in (("speaking/two", None), ("speaking", "speaking/two")):
        found = resolved(name, model="m", overlay=overlay)
        assert (found.config.stage("voice").gpu, found.config.retries) == (1, 1)
        assert found.provenance["voice.gpu"][0] == "speaking/two:4"
    based = written(tmp_path, "d.yaml", "base: speaking/two\nmodel_path: m\nretries: 3\n")
    assert resolved(based).config.retries == 3
    assert LayeredSource("speaking/two").exists()
    assert not LayeredSource("speaking/three").exists()


def test_a_file_for_another_pipeline_is_refused(registry: PluginRegistry, tmp_path: Path) -> None:
    other = written(tmp_path, "d.yaml", "pipeline: echo\n")
    assert refusal("speaking", overlay=other, model="m") == [
        f"{other}:1: pipeline: it is for 'echo', and 'speaking' is asked for"
    ]


def test_a_whole_pipeline_is_a_file_too(registry: PluginRegistry, tmp_path: Path) -> None:
    whole = tmp_path / "whole.json"
    whole.write_text(dump_json(made("m")))
    assert resolved(str(whole)).config == made("m")
    values = json.loads(whole.read_text()) | {
        "relays": {"big": {"credits": 9}},
        "platforms": {"cpu": {"stages": {"voice": {"relay": "big"}}}},
    }
    whole.write_text(json.dumps(values))
    assert resolved(str(whole)).config.stage("voice").relay == RelayConfig(credits=9)
    based = written(tmp_path, "d.yaml", "base: whole.json\nstages: {sound: {replicas: 2}}\n")
    assert resolved(based).config.stage("sound").replicas == 2
    assert any(
        "unknown key; `stages` is a list" in line
        for line in refusal(written(tmp_path, "o.json", json.dumps(values | {"options": {}})))
    )
    assert "an overlay cannot add or remove stages" in refusal("speaking", overlay=str(whole))[0]
    values["stages"][1]["gpuu"] = 3
    values["stages"][2]["replicas"] = 0
    lines = refusal(written(tmp_path, "wrong.json", json.dumps(values, indent=1)))
    text = (tmp_path / "wrong.json").read_text().splitlines()
    for line, word in zip(lines, ("gpuu", "replicas"), strict=True):
        number = int(line.removeprefix(f"{tmp_path}/wrong.json:").partition(":")[0])
        assert word in text[number - 1]


def test_what_is_shown_reads_back_equal(registry: PluginRegistry, tmp_path: Path) -> None:
    text = (
        BUNDLED
        + "defaults: {params: {text: {temperature: 0.5}}}\nlimits: {images: 2}\nserver: {port: 1}\nlauncher: {name: local}\n"
    )
    text += "relays: {big: {credits: 9}}\nplatforms: {cpu: {stages: {sound: {env: {A: '1'}, relay: big}}}}\n"
    config = resolved(written(tmp_path, "d.yaml", text)).config
    assert resolved(written(tmp_path, "shown.yaml", dump_yaml(config))).config == config
    assert resolved(written(tmp_path, "shown.json", dump_json(config))).config == config


def test_variables_are_paths(registry: PluginRegistry) -> None:
    variables = {
        "OMNI_SET__WRITER__FACTORY_ARGS__MAX_NUM_SEQS": "8",
        "OMNI_SET__writer__factory_args__camelCase": "[1, 2]",
        "OMNI_SET__SOUND__ENV__OMP_NUM_THREADS": "'4'",
        "OMNI_SET__RETRIES": "2",
        "OMNI_SET__TEXT_STAGE__GPU": "",
        "OMNI_SETTING": "x",
        "OMNI_SETUP": "x",
    }
    overrides = environment_layer(["writer", "sound", "retries", "Text-Stage"], variables).overrides
    assert {each.parts: each.value for each in overrides} == {
        ("writer", "factory_args", "max_num_seqs"): 8,
        ("writer", "factory_args", "camelCase"): [1, 2],
        ("sound", "env", "OMP_NUM_THREADS"): "4",
        ("retries",): 2,
        ("Text-Stage", "gpu"): "",
    }
    assert "OMNI_SET__A:1: no valid YAML" in environment_layer([], {"OMNI_SET__A": "["}).problems[0]


@pytest.mark.parametrize(
    ("variable", "spelt"),
    [
        ("OMNI_SET_WRITER__GPU", "OMNI_SET__WRITER__GPU"),
        ("OMNI_SET_WRITER_GPU", "OMNI_SET__WRITER_GPU"),
        ("OMNI_SETWRITER__GPU", "OMNI_SET__WRITER__GPU"),
        ("OMNI_SETRETRIES", "OMNI_SET__RETRIES"),
        ("OMNI_SET_NOTHING", "OMNI_SET__NOTHING"),
        ("omni_set__writer__gpu", "OMNI_SET__writer__gpu"),
        ("OMNI__SET__WRITER__GPU", "OMNI_SET__WRITER__GPU"),
    ],
)
def test_a_variable_that_is_nearly_one_is_refused_with_its_right_name(
    registry: PluginRegistry, monkeypatch: pytest.MonkeyPatch, variable: str, spelt: str
) -> None:
    monkeypatch.setenv(variable, "1")
    (line,) = refusal("speaking", model="m")
    assert line.startswith(f"{variable}: sets nothing; did you mean {spelt}")


def test_variables_are_a_layer_of_names_and_files_and_not_of_finished_configs(
    registry: PluginRegistry, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMNI_SET__VOICE__REPLICAS", "2")
    monkeypatch.setenv("OMNI_SET__OPTIONS__DTYPE", "bfloat16")
    found = resolved("speaking", "voice.replicas=3", model="m").config
    assert (found.stage("voice").replicas, found.stage("writer").factory_args) == (3, {"dtype": "bfloat16"})
    assert LayeredSource(found).resolve().config is found
    monkeypatch.setenv("OMNI_SET__VOICE__REPLICA", "2")
    assert refusal("speaking", model="m") == [
        "OMNI_SET__VOICE__REPLICA: voice.replica: 'replica' is not a field here; did you mean 'replicas'?"
    ]


def test_python_opens_a_file_too(registry: PluginRegistry, tmp_path: Path) -> None:
    file = written(tmp_path, "d.yaml", "base: speaking/one\nmodel_path: m\nretries: 2\nlimits: {images: 1}\n")
    config = omni_core.open_async(file, set={"voice.replicas": 2}, config={"limits": {"images": 3}}).config
    assert (config.retries, config.limits.images, config.stage("voice").replicas) == (2, 3, 2)


def test_what_a_file_would_hold_can_be_given(registry: PluginRegistry) -> None:
    deploy = read_deploy({"stages": {"voice": {"gpu": 1}}, "retires": 1}, registry)
    assert [override.path for layer in deploy.layers("cpu") for override in layer.overrides] == ["voice.gpu"]
    assert deploy.problems == ["config: retires: unknown key; did you mean 'retries'?"]
