"""The configs of operations."""

from __future__ import annotations

from typing import Any

import pytest

from omni_cli.live.changes import group_of, replaced, scaled
from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.errors import ConfigError


def stage(name: str, **fields: Any) -> StageConfig:
    return StageConfig(**{"name": name, "factory": "m:f", "process": name, **fields})


def pipeline(**fields: Any) -> PipelineConfig:
    """Return a pipeline ``a``, ``b``, ``c`` whose last two share a process; ``fields`` are those of ``a``."""
    stages = [
        stage("a", next="b", **fields),
        stage("b", next="c", process="back"),
        stage("c", process="back", terminal=True),
    ]
    return PipelineConfig(model_path="none", stages=stages)


def test_a_process_is_named_by_itself_or_by_its_only_stage() -> None:
    config = pipeline(process="front")
    assert group_of(config, "a")[0] == group_of(config, "front")[0] == "front"
    assert [each.name for each in group_of(config, "back")[1]] == ["b", "c"]
    with pytest.raises(ConfigError, match=r"stage 'c' shares the process 'back' with b, .*: name the process, 'back'"):
        group_of(config, "c")
    with pytest.raises(ConfigError, match=r"no stage or process is called 'bakc'; did you mean 'back'"):
        group_of(config, "bakc")


def test_a_stage_that_has_the_name_of_its_process_is_not_taken_for_it_alone() -> None:
    config = PipelineConfig(model_path="none", stages=[stage("a", next="b"), stage("b", process="a", terminal=True)])
    assert [each.name for each in group_of(config, "a")[1]] == ["a", "b"]
    with pytest.raises(ConfigError, match="stage 'b' shares the process 'a' with a"):
        group_of(config, "b")


def test_settings_change_fields_of_one_stage_and_keep_their_neighbours() -> None:
    config = pipeline(factory_args={"x": 1, "y": {"z": 2, "w": 3}})
    stages = group_of(config, "a")[1]
    new = replaced(config, stages, {"factory_args.y.z": 5, "a.startup_timeout": 7.0})
    assert new.stage("a").factory_args == {"x": 1, "y": {"z": 5, "w": 3}}
    assert new.stage("a").startup_timeout == 7.0
    assert new.stages[1:] == config.stages[1:]
    assert config.stage("a").factory_args["y"]["z"] == 2
    assert replaced(config, stages, {}) is config


def test_settings_of_a_process_of_several_stages_name_the_stage() -> None:
    config = pipeline()
    stages = group_of(config, "back")[1]
    assert replaced(config, stages, {"c.factory_args.x": 1}).stage("c").factory_args == {"x": 1}
    with pytest.raises(ConfigError, match=r"set factory_args.x: begin with one of the stages of the process: b, c"):
        replaced(config, stages, {"factory_args.x": 1})


@pytest.mark.parametrize(
    "field", ["next", "process", "stream_to", "relay.credits", "affinity_key", "balance", "replicas"]
)
def test_what_others_go_by_is_not_changed(field: str) -> None:
    config = pipeline()
    with pytest.raises(ConfigError, match=rf"set {field}: '{field.partition('.')[0]}' cannot be changed while"):
        replaced(config, group_of(config, "a")[1], {field: 1})


def test_bounds_of_a_stage_that_scales_by_itself_are_those_of_the_start() -> None:
    config = pipeline()
    with pytest.raises(
        ConfigError, match=r"set autoscale\.max: 'autoscale' cannot .*: its bounds are those of the start"
    ):
        replaced(config, group_of(config, "a")[1], {"autoscale.max": 3})


def test_every_stage_of_a_process_is_scaled() -> None:
    config = pipeline()
    new = scaled(config, group_of(config, "back")[1], 3, {})
    assert [each.replicas for each in new.stages] == [1, 3, 3]


def test_devices_of_further_replicas_follow_those_that_are_there_and_are_cut_again() -> None:
    config = pipeline(gpu=[0])
    stages = group_of(config, "a")[1]
    with pytest.raises(ConfigError, match=r"stages\[a\].replicas \* tp_size: is 2, but `gpu` lists 1 devices"):
        scaled(config, stages, 2, {})
    with pytest.raises(ConfigError, match="replica 0 of a runs elsewhere: list its own gpu and host first"):
        scaled(config, stages, 2, {"gpu": [1, 0]})
    two = scaled(config, stages, 2, {"gpu": [0, 1]})
    assert two.stage("a").gpu == [0, 1]
    assert scaled(two, group_of(two, "a")[1], 1, {}).stage("a").gpu == [0]


def test_hosts_of_replicas() -> None:
    config = pipeline(host="x")
    endpoints = EndpointsConfig(address="127.0.0.1", key_file="k")
    config = PipelineConfig(
        model_path="none",
        stages=config.stages,
        endpoints=endpoints,
        hosts={"x": "tcp://127.0.0.1:1", "y": "tcp://127.0.0.1:2"},
    )
    stages = group_of(config, "a")[1]
    assert scaled(config, stages, 2, {}).stage("a").host == "x"
    three = scaled(config, stages, 3, {"a.host": ["x", "y", None]})
    assert three.stage("a").hosts == ["x", "y"]
    assert scaled(three, group_of(three, "a")[1], 2, {}).stage("a").host == ["x", "y"]


def test_hosts_of_ranks_are_cut_by_replicas() -> None:
    config = pipeline(tp_size=2, host=["x", "y"])
    endpoints = EndpointsConfig(accept="tcp://127.0.0.1:1", key_file="k")
    config = PipelineConfig(model_path="none", stages=config.stages, endpoints=endpoints)
    two = scaled(config, group_of(config, "a")[1], 2, {"host": ["x", "y", "z", None]})
    assert scaled(two, group_of(two, "a")[1], 1, {}).stage("a").host == ["x", "y"]


def test_other_settings_do_not_go_with_a_number() -> None:
    config = pipeline()
    with pytest.raises(ConfigError, match=r"set factory_args.x: replicas differ in gpu and host only"):
        scaled(config, group_of(config, "a")[1], 2, {"factory_args.x": 1})
    with pytest.raises(ConfigError, match="a stage has at least one replica, not 0"):
        scaled(config, group_of(config, "a")[1], 0, {})


def test_a_stage_with_a_host_for_each_rank_is_told_how_many_it_needs() -> None:
    config = pipeline(tp_size=2, host=["x", "y"])
    with pytest.raises(ConfigError, match=r"stages\[a\]\.host lists one for each rank: give 4 for 2 replicas"):
        scaled(config, config.stages, 2, {})


def test_a_stage_is_not_scaled_beyond_what_a_pipeline_may_have() -> None:
    config = pipeline()
    with pytest.raises(ConfigError, match=r"stages\[a\]: replicas times tp_size must be at most 1024"):
        scaled(config, group_of(config, "a")[1], 10**12, {})
