"""``omni plan --optimize`` and ``--simulate``: the deploy file is valid and starts; JSON is written."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

sys.path.insert(0, str(Path(__file__).parents[1] / "omni_qwen3"))

from released_files import write_released

import omni_core
from omni_core.cli.main import omni
from omni_planner.profile import CLIENT, Hardware, Kind, PipelineProfile, StageProfile, Visit

SAMPLE = {
    "preprocessing": Visit([CLIENT], ["mm_aggregate"]),
    "mm_aggregate": Visit(["preprocessing"], ["thinker"]),
    "thinker": Visit(["mm_aggregate"], ["decode"], {"decode": 4}, 10, 4),
    "decode": Visit(["thinker"], [CLIENT], {CLIENT: 4}),
}
COSTS: dict[str, tuple[Kind, str]] = {
    "preprocessing": ("function", "requests"),
    "mm_aggregate": ("function", "requests"),
    "thinker": ("engine", "turns"),
    "decode": ("stream", "turns"),
}


@pytest.fixture
def measured(tmp_path: Path) -> Path:
    """A profile of the demo for texts, in which a step of the thinker takes 10 ms."""
    made = PipelineProfile("demo", Hardware("test", 4), message=1e-4)
    for name, (kind, feature) in COSTS.items():
        made.stages[name] = StageProfile(kind)
        made.stages[name].cost("text").observe({feature: 1.0}, 0.01 if name == "thinker" else 0.001)
    made.kinds["text"] = [SAMPLE]
    made.save(tmp_path / "demo.json")
    return tmp_path / "demo.json"


async def test_a_plan_of_the_demo_starts(tmp_path: Path, measured: Path) -> None:
    out = tmp_path / "plan.yaml"
    asked = ["plan", "demo", "--optimize", "--profile", str(measured), "--slo", "ttft=0.1", "--rate", "30/s"]
    given = ["--cores", "3", "--requests", "60", "--trials", "14", "--out", str(out)]
    said = CliRunner().invoke(omni, [*asked, *given], catch_exceptions=False)
    assert said.exit_code == 0, said.output
    assert "plan of demo: 30 requests a second (text 100%); ttft <= 0.1 s in 95 of 100" in said.output
    assert "ESTIMATE" not in said.output
    assert "thinker" in out.read_text()
    valid = CliRunner().invoke(omni, ["config", "validate", str(out)], catch_exceptions=False)
    assert valid.exit_code == 0, valid.output
    async with omni_core.open_async(str(out)) as pipe:
        assert pipe.config.stage("thinker").process is not None
        assert (await pipe.chat("Say hello.", modalities=["text"])).text


def test_a_plan_for_gpus_is_an_estimate_of_the_released_dimensions(tmp_path: Path) -> None:
    folder, out = tmp_path / "released", tmp_path / "plan.yaml"
    folder.mkdir()
    write_released(folder)
    asked = [
        "plan",
        "qwen3-omni",
        "--model",
        str(folder),
        "--option",
        "dtype=bfloat16",
        "--optimize",
        "--slo",
        "ttfa=0.5,gap=0.1",
    ]
    given = [
        "--rate",
        "60/min",
        "--devices",
        "1x80GiB",
        "--requests",
        "20",
        "--trials",
        "2",
        "--out",
        str(out),
        "--json",
    ]
    said = CliRunner().invoke(omni, [*asked, *given], catch_exceptions=False)
    assert said.exit_code == 0, said.output
    document = json.loads(said.stdout)
    assert document["estimate"] is True
    assert document["rates"]["bandwidth_share"] == 0.6
    [best] = document["front"]
    assert best["cost"] == 1
    assert 0.02 < best["figures"]["ttfa"]["p50"] < 0.5
    assert "ESTIMATE, nothing was measured: 1 x h100 (80.0 GiB)" in out.read_text()
    valid = CliRunner().invoke(omni, ["config", "validate", str(out)], catch_exceptions=False)
    assert valid.exit_code == 0, valid.output
    mix = [each for kind in ("text=4", "image=1", "audio=1", "speech=2") for each in ("--mix", kind)]
    placed = [
        "plan",
        *asked[1:6],
        "--simulate",
        "--devices",
        "1x80GiB",
        "--rate",
        "2",
        "--requests",
        "30",
        *mix,
        "--json",
    ]
    mixed = json.loads(CliRunner().invoke(omni, [*placed, "--fail", "talker_ar@4"], catch_exceptions=False).stdout)
    assert mixed["estimate"] is True
    assert mixed["deaths"] == 1
    assert mixed["busy"]["stages"].keys() >= {"image_encoder", "audio_encoder", "talker_ar"}
    assert mixed["busy"]["stages"]["image_encoder"] > 0
    small = CliRunner().invoke(omni, [*asked, "--rate", "0.1", "--devices", "1x24GiB", "--requests", "20"])
    assert small.exit_code == 1
    assert "of the 24.0 GiB of GPU 0" in str(small.exception)


def test_an_objective_that_no_request_has_is_an_error(measured: Path) -> None:
    asked = ["plan", "demo", "--optimize", "--profile", str(measured), "--slo", "ttft=1,gap=0", "--rate", "1"]
    said = CliRunner().invoke(omni, [*asked, "--cores", "1", "--requests", "20", "--trials", "1"])
    assert said.exit_code == 1
    assert "the simulated requests have no gap" in str(said.exception)


def test_the_simulation_is_a_question_of_the_plan_too(measured: Path) -> None:
    asked = ["plan", "demo", "--simulate", "--profile", str(measured), "--rate", "1", "--requests", "20", "--json"]
    said = CliRunner().invoke(omni, asked, catch_exceptions=False)
    assert json.loads(said.stdout)["requests"] > 5


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["--rate", "1"], "either --devices"),
        (["--devices", "1x80GiB"], "one of --rate, --concurrency and --conversations"),
        (["--devices", "1x80GiB", "--rate", "fast"], "such as 20/s"),
        (["--devices", "1x80GiB", "--rate", "1", "--out", "no/such/folder.yaml"], "there is no folder"),
    ],
)
def test_wrong_arguments_are_named(arguments: list[str], problem: str) -> None:
    said = CliRunner().invoke(omni, ["plan", "demo", "--optimize", "--slo", "ttfa=1", *arguments])
    assert said.exit_code
    assert problem in f"{said.output} {said.exception}"
