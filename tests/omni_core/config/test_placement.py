"""Placement of stages on processes and devices; a pipeline that does not fit is an error before anything starts, with
the setting to change.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner

from omni_core.cli.main import omni
from omni_core.client import open_pipeline
from omni_core.config.loading import dump_json
from omni_core.config.placement import Budget, check, parse_bytes, plan, problems
from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError

GIB = 2**30


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


def test_fusing_merges_process_groups() -> None:
    config = line({}, {}, {"process": "a"}, fused_stages=[["a", "b"]])
    assert [(p.name, [s.name for s in p.stages]) for p in plan(config)] == [("a", ["a", "b", "c"])]


@pytest.mark.parametrize(
    ("stages", "fused", "expected"),
    [
        ([{"gpu": 0}, {"gpu": 1}], [["a", "b"]], "process 'a': its stages name different GPUs (a: 0, b: 1)"),
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
        ([{"gpu": 0}, {"gpu": 0}], None, ["stages[a].gpu_memory: required", "processes a, b share GPU 0"]),
        (
            [{"gpu": 0, "gpu_memory": "3GiB"}, {"gpu": 0, "gpu_memory": 0.7}],
            [8 * GIB],
            ["stages[b].gpu_memory", "8.6 GiB of the 8.0 GiB", "a 3.0 GiB, b 70%", "stages[a].gpu", "tp_size"],
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
    monkeypatch.setattr("omni_core.config.completion.detect", lambda: [8 * GIB])
    config = line({"gpu": 0, "gpu_memory": "6GiB"}, {"gpu": 0, "gpu_memory": "6GiB"})
    states: list[str] = []
    with pytest.raises(ConfigError, match=r"stages\[a\]\.gpu_memory"):
        async with open_pipeline(config, on_progress=lambda stage, state: states.append(stage)):
            pass
    assert states == []
    with pytest.raises(ConfigError, match="GPU 3 is wanted"):
        check(plan(evolve(config, stages=[evolve(config.stages[0], gpu=3, next=None, terminal=True)])), [8 * GIB])


def test_the_command(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(dump_json(line({}, {"gpu": 0, "gpu_memory": "6GiB"}, {"gpu": 0, "gpu_memory": "3GiB"})))
    fits = CliRunner().invoke(omni, ["plan", str(path), "--gpus", "1", "--gpu-memory", "10GiB"])
    assert fits.exit_code == 0, fits.output
    assert "gpu 0: 9.0 GiB of 10.0 GiB given to 2 stages" in fits.output
    full = CliRunner().invoke(omni, ["plan", str(path), "--gpus", "1", "--gpu-memory", "8GiB", "--json"])
    assert full.exit_code == 1
    document, _ = json.JSONDecoder().raw_decode(full.stdout)
    assert [each["gpu"] for each in document["processes"]] == [None, 0, 0]
    assert document["processes"][1]["stages"] == [{"name": "b", "gpu": 0, "gpu_memory": "6.0 GiB"}]
    assert "stages[b].gpu_memory" in document["problems"][0]
    wrong = CliRunner().invoke(omni, ["plan", str(path), "--gpu-memory", "8GiB"])
    assert wrong.exit_code == 2


def test_gpus_of_another_host_are_its_own(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    fields = {"hosts": {"far": "tcp://10.0.0.2:7555"}, "endpoints": EndpointsConfig(None, "10.0.0.1", "k")}
    mine, theirs = {"gpu": 0, "gpu_memory": "6GiB"}, {"gpu": 3, "gpu_memory": "60GiB", "host": "far"}
    path.write_text(dump_json(line({}, mine, theirs, **fields)))
    shown = CliRunner().invoke(omni, ["plan", str(path), "--gpus", "1", "--gpu-memory", "8GiB"])
    assert shown.exit_code == 0, shown.output
    assert "gpu 3 on far" in shown.output
    assert "gpu 0: 6.0 GiB of 8.0 GiB given to 1 stages" in shown.output
