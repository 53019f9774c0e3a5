"""Configs: strict, every problem with its path; overrides that are never silent; validation of every rule."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from omni_cli.deploy.files import leaves
from omni_cli.deploy.override_layers import Layer, apply
from omni_cli.deploy.writing import dump_json, dump_yaml, load_config
from omni_core.config.loading import read_yaml, structure, unstructure
from omni_core.config.overrides import parse_flag
from omni_core.config.schema import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError


def stage(name: str, **fields: Any) -> StageConfig:
    return StageConfig(**{"name": name, "factory": "m:f", "process": name, **fields})


def flags(*texts: str) -> Layer:
    return Layer("--set", [parse_flag(text) for text in texts])


def overlay(values: dict[str, Any], name: str = "overlay.yaml") -> Layer:
    return Layer(name, [each for key, value in values.items() for each in leaves((key,), value, lambda _: name)])


def diamond(**changes: Any) -> PipelineConfig:
    stages = [
        stage("start", next=["left", "right", "join"], route_fn="m:route", project_payload={"left": "m:project"}),
        stage("left", next="join", gpu=0, relay=RelayConfig(credits=4)),
        stage("right", next="join", stream_to=["end"], stream_done_to_fn="m:done"),
        stage("join", next="end", wait_for=["start", "left", "right"], wait_for_fn="m:wait", merge_fn="m:merge"),
        stage("end", terminal=True),
    ]
    return PipelineConfig(**{"model_path": "m", "name": "diamond", "stages": stages, **changes})


def with_stage(stage_name: str, /, **changes: Any) -> PipelineConfig:
    config = diamond()
    return evolve(
        config, stages=[evolve(each, **changes) if each.name == stage_name else each for each in config.stages]
    )


def test_the_defaults_are_the_documented_ones() -> None:
    config = PipelineConfig(model_path="m", stages=[StageConfig(name="a", factory="m:f", terminal=True, process="a")])
    only = config.stages[0]
    assert (config.relay_backend, config.fused_stages, config.runtime_overrides, config.env_defaults) == (
        "shm",
        [],
        {},
        {},
    )
    assert config.resolved_name == "m"
    assert config.resolved_entry_stage == "a"
    assert config.terminal_stages == ["a"]
    assert (only.tp_size, only.gpu, only.next_stages, only.stream_to, only.factory_args) == (1, None, [], [], {})
    assert config.endpoints == EndpointsConfig(None)


def test_a_saved_config_reads_back_equal(tmp_path: Path) -> None:
    config = diamond(
        env_defaults={"A": "1"}, fused_stages=[["join", "end"]], runtime_overrides={"left": {"x": [1, {"y": 2}]}}
    )
    (tmp_path / "saved.json").write_text(dump_json(config))
    (tmp_path / "saved.yaml").write_text(dump_yaml(config))
    assert load_config(tmp_path / "saved.yaml") == config
    assert load_config(tmp_path / "saved.json") == config
    assert structure(unstructure(config)) == config


def test_every_problem_is_reported_with_its_path() -> None:
    values = unstructure(diamond())
    values["stages"][1]["tp_size"] = "two"
    values["stages"][1]["relay"] = {"credit": 3}
    values["stages"][2]["gpu"] = "cuda:0"
    values["stages"][3]["terminal"] = 1
    values["relay_backand"] = "shm"
    del values["stages"][4]["name"]
    with pytest.raises(ConfigError) as caught:
        structure(values)
    lines = str(caught.value).splitlines()
    for expected in (
        "stages[left].tp_size: must be int, is 'two'",
        "stages[left].relay.credit: unknown field; did you mean 'credits'?",
        "stages[right].gpu: must be a GPU number",
        "stages[join].terminal: must be bool, is 1",
        "relay_backand: unknown field; did you mean 'relay_backend'?",
        "name: required",
    ):
        assert any(expected in line for line in lines), (expected, lines)


@pytest.mark.parametrize(("text", "word"), [("a: 1\na: 2\n", "duplicate"), ("a: [", "YAML"), ("\x00", "YAML")])
def test_broken_yaml_is_a_clear_error(tmp_path: Path, text: str, word: str) -> None:
    (tmp_path / "broken.yaml").write_text(text)
    with pytest.raises(ConfigError, match=f"(?i)broken.yaml.*{word}|{word}"):
        read_yaml(tmp_path / "broken.yaml")


def test_a_valid_config_passes() -> None:
    validate(diamond())


BROKEN: list[tuple[PipelineConfig, str]] = [
    (diamond(stages=[]), "at least one stage"),
    (with_stage("left", name="right"), "stages[right].name: 2 stages"),
    (with_stage("left", next="jion"), "stages[left].next: no stage is called 'jion'; did you mean 'join'?"),
    (with_stage("left", next=None), "stages[left]: set exactly one of `next` and `terminal: true`"),
    (with_stage("end", next="start"), "stages[end]: set exactly one"),
    (with_stage("end", route_fn="m:f"), "stages[end].route_fn: not valid on a terminal stage"),
    (with_stage("left", stream_done_to_fn="m:f"), "stages[left].stream_done_to_fn: needs `stream_to`"),
    (with_stage("left", project_payload={"end": "m:f"}), "stages[left].project_payload.end"),
    (with_stage("join", merge_fn=None), "stages[join].merge_fn: required"),
    (with_stage("end", merge_fn="m:f"), "stages[end].merge_fn: has no effect"),
    (with_stage("join", wait_for=["start", "left"]), "stages[join].wait_for: 'right' sends here too"),
    (with_stage("start", next=["left", "right"]), "stages[join].wait_for: 'start' does not send here"),
    (with_stage("left", process=None), "stages[left].process: required"),
    (with_stage("left", tp_size=2, gpu=[0]), "stages[left].tp_size: is 2, but `gpu` lists 1"),
    (with_stage("left", replicas=10**12), "stages[left]: replicas times tp_size must be at most 1024"),
    (with_stage("left", tp_size=10**400), "stages[left]: replicas times tp_size must be at most 1024"),
    (with_stage("left", tp_size=2, gpu=[0, 1], process="right"), "process 'right': a tensor parallel stage"),
    (
        with_stage("right", process="left", gpu=1),
        "process 'left': its stages have different `gpu` (stages[left].gpu: 0, stages[right].gpu: 1)",
    ),
    (diamond(entry_stage="begin"), "entry_stage: no stage is called 'begin'"),
    (diamond(entry_stage="left"), "entry_stage: no path leads from the entry stage 'left' to 'start'"),
    (diamond(runtime_overrides={"lift": {}}), "runtime_overrides.lift: no stage is called that; did you mean 'left'?"),
    (diamond(fused_stages=[["left", "join"]]), "fused_stages[0]"),
    (diamond(fused_stages=[["start", "left"]]), "fused_stages[0]: 'start' must route to 'left' only"),
    (diamond(fused_stages=[["join"]]), "fused_stages[0]: fuse at least two"),
    (with_stage("join", next="start"), "is a cycle"),
    (with_stage("left", relay=RelayConfig(credits=-1)), "stages[left].relay.credits: must be at least 1, is -1"),
    (with_stage("left", relay=RelayConfig(slot_size_mb=0)), "stages[left].relay.slot_size_mb: must be at least 1"),
    (with_stage("left", cpus=2.0), "stages[left].cpus: the launcher 'local' places nothing by it"),
    (with_stage("left", labels={"a": "b"}), "stages[left].labels: the launcher 'local' places nothing by it"),
    (with_stage("left", cpus=0.0), "stages[left].cpus: must be positive, is 0"),
    (with_stage("left", memory="8 gallons"), "stages[left].memory: '8 gallons' is no amount of memory"),
    (
        with_stage("left", process="right", gpu=None, labels={"a": "b"}),
        "process 'right': its stages have different `labels`",
    ),
    (with_stage("left", relay=RelayConfig(inline_bytes=-1)), "stages[left].relay.inline_bytes: must not be negative"),
]


@pytest.mark.parametrize(("config", "expected"), BROKEN, ids=[expected for _, expected in BROKEN])
def test_every_rule_is_checked(config: PipelineConfig, expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(config)
    assert expected in str(caught.value)


def test_overrides_change_their_field_and_record_their_source() -> None:
    file = overlay({"relay_backend": "nixl", "stages": {"left": {"gpu": 1, "factory_args": {"a": {"b": 1}}}}})
    changes = ["left.gpu=2", "left.factory_args.a.c=[1, 2]", "left.relay.credits=8"]
    resolved = apply(diamond(), file, flags(*changes, "right.process=left", "env_defaults.OMP_NUM_THREADS='2'"))
    left = resolved.config.stage("left")
    assert (left.gpu, left.factory_args, left.relay) == (2, {"a": {"b": 1, "c": [1, 2]}}, RelayConfig(credits=8))
    assert resolved.config.stage("right").process == "left"
    assert resolved.config.relay_backend == "nixl"
    assert resolved.config.env_defaults == {"OMP_NUM_THREADS": "2"}
    assert resolved.provenance["left.gpu"] == ("--set left.gpu=2", 1, 2)
    assert diamond().stage("left").gpu == 0, "the pipeline's own config is untouched"


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (["lift.gpu=1"], "'lift' is neither a stage nor a pipeline field; did you mean 'left'?"),
        (["left.gpus=1"], "'gpus' is not a field here; did you mean 'gpu'?"),
        (["left.gpu=1", "left.gpu=2"], "left.gpu is set twice"),
        (["left.next=end"], "'next' is decided by the pipeline alone"),
        (["interface=null"], "'interface' is decided by the pipeline alone"),
        (["config_cls=x"], "'config_cls' is decided by the pipeline alone"),
        (["stages={left: {gpu: 0}}"], "no stage is called 'stages'"),
        (["left=1"], "name a field of the stage"),
        (["left.gpu.x=1"], "'gpu' has no fields of its own"),
        (["left.tp_size=many"], "stages[left].tp_size: must be int"),
        (["left.relay.credit=1"], "did you mean 'credits'"),
        (["left.relay.settings=3", "left.relay.settings.x=1"], "left.relay.settings is set as a whole and in part"),
        (["left.factory_args.a.b=1", "left.factory_args.a={}"], "left.factory_args.a is set as a whole and in part"),
        (["left.factory_args.a=1", "runtime_overrides.left.a=2"], "left.factory_args.a is set twice"),
        (["runtime_overrides.left=1"], "runtime_overrides.left=1: must be a mapping of arguments, is 1"),
        (["runtime_overrides.lift.x=1"], "did you mean 'left'?"),
        (["endpoints.base=/x"], "did you mean 'base_path'?"),
        (["nonsense"], "must be of the form"),
        (["left.gpu=[1"], "no valid YAML"),
    ],
)
def test_an_override_that_changes_nothing_is_an_error(given: list[str], expected: str) -> None:
    with pytest.raises(ConfigError) as caught:
        apply(diamond(), flags(*given))
    assert expected in str(caught.value)


def test_hosts_and_relay_settings_can_be_set_by_both() -> None:
    file = overlay(
        {
            "hosts": {"far.example": "tcp://10.0.0.2:1"},
            "stages": {"left": {"relay": {"settings": {"folder": "/a", "x": 1}}}},
        }
    )
    given = flags("hosts.near.example=tcp://10.0.0.3:1", "left.relay.settings.folder=/b")
    config = apply(diamond(), file, given).config
    assert config.hosts == {"far.example": "tcp://10.0.0.2:1", "near.example": "tcp://10.0.0.3:1"}
    assert config.stage("left").relay == RelayConfig(credits=4, settings={"folder": "/b", "x": 1})


def test_a_flag_changes_part_of_an_overlay() -> None:
    whole = flags("left.factory_args={a: {b: 1}}")
    resolved = apply(diamond(), whole, flags("left.factory_args.a.c=2"))
    assert resolved.config.stage("left").factory_args == {"a": {"b": 1, "c": 2}}
    assert whole.overrides[0].value == {"a": {"b": 1}}
    with pytest.raises(ConfigError, match="'a' is 1, which has no parts"):
        apply(diamond(), flags("left.factory_args.a=1"), flags("left.factory_args.a.c=2"))
    config = apply(diamond(), flags("left.relay=null"), flags("left.relay.credits=3")).config
    assert config.stage("left").relay == RelayConfig(credits=3)


def test_runtime_overrides_are_weaker_than_overlays_and_flags() -> None:
    given = {"left": {"a": 1, "b": 1, "c": {"d": 1, "e": 1}}}
    config = evolve(with_stage("left", factory_args={"a": 0, "z": 0}), runtime_overrides=given)
    file = overlay({"stages": {"left": {"factory_args": {"b": 2}}}}, "o.yaml")
    resolved = apply(config, file, flags("left.factory_args.c.d=3", "runtime_overrides.left.y=3"))
    assert resolved.config.stage("left").factory_args == {"a": 1, "z": 0, "b": 2, "c": {"d": 3, "e": 1}, "y": 3}
    assert resolved.config.runtime_overrides == {}
    assert resolved.provenance["left.factory_args.a"] == ("runtime_overrides", 0, 1)
    assert resolved.provenance["left.factory_args.b"] == ("o.yaml", 1, 2)
    assert config.runtime_overrides == given


def test_a_stage_takes_its_relay_as_a_mapping() -> None:
    given = StageConfig(name="a", factory="m:f", relay={"slot_size_mb": 8, "settings": {"folder": "/tmp"}})
    assert given.relay == RelayConfig(slot_size_mb=8, settings={"folder": "/tmp"})
    with pytest.raises(ConfigError, match=r"relay\.slot_size: unknown field; did you mean 'slot_size_mb'"):
        StageConfig(name="a", factory="m:f", relay={"slot_size": 8})
    with pytest.raises(ConfigError, match="must be a RelayConfig or a mapping"):
        StageConfig(name="a", factory="m:f", relay="shm")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("first", "second", "name"),
    [
        ({"process": "p", "replicas": 2}, {"process": "p.1"}, "p.1"),
        ({"tp_size": 2}, {"process": "a_tp1"}, "a_tp1"),
        ({"process": "a_tp1"}, {"process": "a", "tp_size": 2}, "a_tp1"),
        ({"process": "p", "replicas": 2, "tp_size": 2}, {"process": "p.1_tp0"}, "p.1_tp0"),
        ({"process": "p", "replicas": 2, "tp_size": 2}, {"process": "p.1"}, "p.1"),
        ({"process": "p", "replicas": 2, "tp_size": 2}, {"process": "p.1", "tp_size": 3}, "p.1_tp0"),
        ({"process": "p", "replicas": 12}, {"process": "p.1", "replicas": 2}, None),
        ({"process": "p", "replicas": 2}, {"process": "p.2"}, None),
        ({"process": "p"}, {"process": "p.1"}, None),
    ],
)
def test_no_two_processes_have_one_name(first: dict[str, Any], second: dict[str, Any], name: str | None) -> None:
    stages = [stage("a", **{"next": "b", "process": "a", **first}), stage("b", **{"terminal": True, **second})]
    config = PipelineConfig(model_path="m", stages=stages)
    if name is None:
        validate(config)
        return
    with pytest.raises(ConfigError, match=rf"process '{name}': .*stages\[a\] \(process .*stages\[b\] \(process"):
        validate(config)
