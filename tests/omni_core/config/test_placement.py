"""Placement of stages on processes and devices; a pipeline that does not fit is an error before anything starts, with
the setting to change.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from attrs import evolve

from omni_cli.deploy.budgets import check, problems
from omni_core.client import open_async
from omni_core.config.placement import Budget, Replica, parse_bytes, plan
from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError

GIB = 2**30
FAR: dict[str, Any] = {
    "hosts": {"far": "tcp://10.0.0.2:7000"},
    "endpoints": EndpointsConfig(address="10.0.0.1", key_file="key"),
}


def line(*stages: dict[str, Any], **fields: Any) -> PipelineConfig:
    """Stages a, b, c, ... each to the next, in a process of its own unless said otherwise."""
    names = "abcdefgh"[: len(stages)]
    configs = [
        StageConfig(
            **{
                "name": name,
                "factory": "m:f",
                "process": name,
                "next": names[number + 1 : number + 2] or None,
                "terminal": number + 1 == len(stages),
            }
            | stage
        )
        for number, (name, stage) in enumerate(zip(names, stages, strict=True))
    ]
    config = PipelineConfig(model_path="m", stages=configs, **fields)
    validate(config)
    return config


def test_every_replica_and_rank_has_its_device() -> None:
    config = line(
        {},
        {"tp_size": 2, "replicas": 2, "gpu": [0, 1, 2, 3], "process": "wide"},
        {"process": "x", "gpu": 4},
        {"process": "x", "gpu": 4},
    )
    found = [(p.name, p.unit, p.replica, p.rank, [s.name for s in p.stages], p.gpu) for p in plan(config)]
    assert found == [
        ("a", "a", 0, 0, ["a"], None),
        ("wide.0_tp0", "wide.0", 0, 0, ["b"], 0),
        ("wide.0_tp1", "wide.0", 0, 1, ["b"], 1),
        ("wide.1_tp0", "wide.1", 1, 0, ["b"], 2),
        ("wide.1_tp1", "wide.1", 1, 1, ["b"], 3),
        ("x", "x", 0, 0, ["c", "d"], 4),
    ]


@pytest.mark.parametrize("fields", [{"replicas": 10**12}, {"tp_size": 10**12}, {"replicas": 10**400}])
def test_no_names_are_made_of_too_many_processes(fields: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"stages\[a\]: replicas times tp_size must be at most 1024"):
        plan(line(fields))


def test_devices_of_two_hosts_are_two_devices() -> None:
    """A number is that of the host; what the other host has is not known here."""
    config = line({"gpu": 0}, {"gpu": 0, "host": "far"}, {"gpu": 7, "host": "far"}, **FAR)
    assert problems(plan(config), [8 * GIB]) == []
    shared = line({"gpu": 0, "host": "far"}, {"gpu": 0, "host": "far"}, **FAR)
    [problem] = problems(plan(shared), [8 * GIB])
    assert "share GPU 0" in problem


def test_fusing_merges_process_groups() -> None:
    config = line({}, {}, {"process": "a"}, fused_stages=[["a", "b"]])
    assert [(p.name, [s.name for s in p.stages]) for p in plan(config)] == [("a", ["a", "b", "c"])]


@pytest.mark.parametrize(
    ("stages", "fused", "expected"),
    [
        (
            [{"gpu": 0}, {"gpu": 1}],
            [["a", "b"]],
            "process 'a': its stages have different `gpu` (stages[a].gpu: 0, stages[b].gpu: 1)",
        ),
        ([{"stream_to": ["c"]}, {}, {}], [["a", "b"]], "fused_stages[0]: 'a' streams to 'c'; it may reach 'b' only"),
        ([{}, {}, {}], [["a", "c"]], "fused_stages[0]: ['a', 'c'] are not adjacent"),
        ([{}, {"tp_size": 2}], [["a", "b"]], "fused_stages[0]: tensor parallel stages cannot be fused"),
        ([{"gpu": -1}], [], "stages[a].gpu: must be a device number from 0 on, or auto, is -1"),
        ([{"gpu": 0, "gpu_memory": "lots"}], [], "stages[a].gpu_memory: 'lots' is no amount of memory"),
        ([{"gpu": 0, "gpu_memory": 1.5}], [], "stages[a].gpu_memory: 1.5 is no share"),
    ],
)
def test_an_impossible_placement_is_invalid(
    stages: list[dict[str, Any]], fused: list[list[str]], expected: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        line(*stages, fused_stages=fused)
    assert expected in str(caught.value)


@pytest.mark.parametrize(
    ("stages", "devices", "expected"),
    [
        ([{"gpu": 0}], [8 * GIB], []),
        ([{"gpu": 0}], None, []),
        ([{"gpu": 0}, {"gpu": 1}], [8 * GIB] * 2, []),
        ([{"gpu": 0, "process": "p"}, {"gpu": 0, "process": "p"}], [8 * GIB], []),
        ([{"gpu": 0, "gpu_memory": "4GiB"}, {"gpu": 0, "gpu_memory": 0.5}], [8 * GIB], []),
        ([{"gpu": 0, "gpu_memory": "4GiB"}, {"gpu": 0, "gpu_memory": "40GiB"}], None, []),
        ([{"gpu": 2}], [8 * GIB] * 2, ["stages[a].gpu", "GPU 2", "has 2 (0 to 1)"]),
        ([{"gpu": 0}], [], ["stages[a].gpu", "this host has none", "to null for the CPU"]),
        (
            [{"gpu": 0}, {"gpu": 0}],
            None,
            ["stages[a].gpu_memory: required", "processes a, b share GPU 0 (stages[a].gpu, stages[b].gpu)"],
        ),
        (
            [{"gpu": 0, "gpu_memory": "3GiB"}, {"gpu": 0, "gpu_memory": 0.7}],
            [8 * GIB],
            [
                "stages[b].gpu_memory",
                "8.6 GiB of the 8.0 GiB",
                "(stages[a].gpu_memory 3.0 GiB, stages[b].gpu_memory 70%)",
                "stages[a].gpu",
                "tp_size",
            ],
        ),
        (
            [{"gpu": 0, "gpu_memory": 0.7}, {"gpu": 0, "gpu_memory": 0.4}],
            None,
            ["stages[a].gpu_memory", "110% of GPU 0"],
        ),
        ([{"gpu": 0, "gpu_memory": "9GiB"}], [8 * GIB], ["stages[a].gpu_memory", "use a larger device"]),
        ([{"gpu": [0, 0], "replicas": 2}], [8 * GIB], ["stages[a].gpu_memory: required", "a.0, a.1 share GPU 0"]),
    ],
)
def test_a_placement_that_does_not_fit_names_the_setting_to_change(
    stages: list[dict[str, Any]], devices: list[int] | None, expected: list[str]
) -> None:
    found = problems(plan(line(*stages)), devices)
    if not expected:
        assert found == []
    for text in expected:
        assert text in found[0]


@pytest.mark.parametrize(
    ("text", "nbytes"), [("80GiB", 80 * GIB), ("1.5 GB", 1_500_000_000), ("512mib", 512 * 2**20), ("7", 7)]
)
def test_sizes(text: str, nbytes: int) -> None:
    assert parse_bytes(text) == nbytes
    assert Budget.parse(text).of(None) == nbytes


async def test_a_pipeline_that_does_not_fit_starts_nothing(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: [8 * GIB])
    config = line({"gpu": 0, "gpu_memory": "6GiB"}, {"gpu": 0, "gpu_memory": "6GiB"})
    states: list[str] = []
    with pytest.raises(ConfigError, match=r"stages\[a\]\.gpu_memory"):
        async with open_async(config, on_progress=lambda stage, state: states.append(stage)):
            pass
    assert states == []
    with pytest.raises(ConfigError, match="GPU 3 is wanted"):
        check(plan(evolve(config, stages=[evolve(config.stages[0], gpu=3, next=None, terminal=True)])), [8 * GIB])


def test_units_that_are_not_those_of_a_start_have_their_own_names_and_the_devices_of_their_slots() -> None:
    stages = [
        StageConfig(name="a", factory="m:f", process="a", next="b"),
        StageConfig(name="b", factory="m:f", tp_size=2, replicas=2, gpu=[0, 1, 2, 3], host=[None, "x"], terminal=True),
    ]
    config = PipelineConfig(model_path="none", stages=stages)
    found = plan(config, {"b": [Replica(0, 0, "b.0"), Replica(1, 4, "b.4")]})
    assert [(each.name, each.unit, each.replica, each.slot, each.gpu, each.host) for each in found] == [
        ("a", "a", 0, 0, None, None),
        ("b.0_tp0", "b.0", 0, 0, 0, None),
        ("b.0_tp1", "b.0", 0, 0, 1, None),
        ("b.4_tp0", "b.4", 4, 1, 2, "x"),
        ("b.4_tp1", "b.4", 4, 1, 3, "x"),
    ]
    assert [each.unit for each in plan(config)] == ["a", "b.0", "b.0", "b.1", "b.1"]


def test_ranks_may_be_on_hosts_of_their_own_and_each_host_is_asked_for_once() -> None:
    stage = {"process": None, "tp_size": 3, "replicas": 2, "host": ["far", None, "far", None, None, None]}
    found = plan(line(stage, **FAR))
    assert [(each.name, each.unit, each.host, each.place) for each in found] == [
        ("a.0_tp0", "a.0", "far", "a.0_tp0"),
        ("a.0_tp1", "a.0", None, "a.0_tp1"),
        ("a.0_tp2", "a.0", "far", "a.0_tp0"),
        ("a.1_tp0", "a.1", None, "a.1"),
        ("a.1_tp1", "a.1", None, "a.1"),
        ("a.1_tp2", "a.1", None, "a.1"),
    ]
    with pytest.raises(ConfigError, match=r"replicas: is 2, tp_size 3, but `host` lists 3 hosts"):
        line(stage | {"host": ["far", None, None]}, **FAR)
