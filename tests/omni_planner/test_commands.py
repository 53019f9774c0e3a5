"""``omni plan --optimize`` and ``omni simulate``: what they print, and deploy files that are valid."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from released_files import write_released

from omni_core.cli.main import omni


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """A checkpoint of the released dimensions without bytes, as a source."""
    folder = tmp_path_factory.mktemp("released")
    write_released(folder)
    return ["qwen3-omni", "--model", str(folder), "--option", "dtype=bfloat16"]


def said(*arguments: str) -> str:
    found = CliRunner().invoke(omni, arguments, catch_exceptions=False)
    assert found.exit_code == 0, found.output
    return found.stdout


SHORT = ["--request", "speech:text=50,audio=1,reply=10,speech=2"]
SLO = ["--slo", "ttfa=0.5,gap=0.1", "--rate", "60/min", "--requests", "20", *SHORT]


def test_a_plan_is_an_estimate_of_the_released_dimensions(tmp_path: Path, released: list[str]) -> None:
    out, plan = tmp_path / "plan.yaml", tmp_path / "plan.json"
    asked = ["plan", *released, "--optimize", *SLO, "--devices", "1x80GiB"]
    plan.write_text(said(*asked, "--out", str(out), "--json"))
    document = json.loads(plan.read_text())
    assert document["estimate"] is True
    assert document["rates"]["bandwidth_share"] == 0.6
    [best] = document["front"]
    assert (best["cost"], best["met"]) == (1, True)
    assert 0.02 < best["figures"]["ttfa"]["p50"] < 0.5
    assert 0 < max(best["busy"].values()) < 1
    assert "ESTIMATE, nothing was measured: 1 x h100 (80.0 GiB)" in out.read_text()
    said("config", "validate", str(out))
    shown = said(*asked)
    assert "plan of qwen3-omni: 1 requests a second (speech 100%); ttfa <= 0.5 s, gap <= 0.1 s in 95 of 100" in shown
    assert "-> 1 GPU: ttft p50" in shown
    assert "   thinker: process thinker, gpu 0 (bfloat16 weights 56.9 GiB" in shown


def test_a_plan_that_does_not_fit_or_keep_up_says_so(released: list[str]) -> None:
    asked = ["plan", *released, "--optimize", *SLO]
    small = CliRunner().invoke(omni, [*asked, "--devices", "1x24GiB"])
    assert small.exit_code == 1
    assert "of the 24.0 GiB of GPU 0" in str(small.exception)
    strict = said(*asked, "--devices", "1x80GiB", "--slo", "ttfa=0.001", "--trials", "2")
    assert "NOT MET: ttfa; the nearest is marked" in strict


def test_a_plan_for_hosts_has_cells(tmp_path: Path, released: list[str]) -> None:
    out, fleet = tmp_path / "cell.yaml", tmp_path / "fleet.json"
    asked = [
        "plan",
        *released,
        "--optimize",
        "--slo",
        "ttft=0.5",
        "--mix",
        "text=1",
        "--rate",
        "40/s",
        "--devices",
        "9x1xh100",
    ]
    fleet.write_text(said(*asked, "--request", "text:text=50,reply=20", "--out", str(out), "--json"))
    document = json.loads(fleet.read_text())
    assert (document["gpus_of_a_cell"], document["spare"]) == (1, 1)
    assert document["hosts"] == document["cells"] == len(document["bears"]) + document["cells"] - 1 > 1
    assert document["cell"]["per_second"] > 0
    said("config", "validate", str(out))


def test_a_simulation_of_kinds_with_pictures_and_sound(tmp_path: Path, released: list[str]) -> None:
    mix = [each for kind in ("text=4", "image=1", "audio=1", "speech=2") for each in ("--mix", kind)]
    asked = [*released, "--devices", "1x80GiB", "--rate", "2", "--requests", "30", *SHORT, *mix]
    path = tmp_path / "simulated.json"
    path.write_text(said("simulate", *asked, "--json"))
    document = json.loads(path.read_text())
    assert (document["requests"], document["refused"], document["estimate"]) == (30, 0, True)
    assert document["busy"]["stages"]["image_encoder"] > 0
    assert document["first"].keys() == {"decode", "code2wav"}
    assert document["done"]["p95"] >= document["done"]["p50"] > document["first"]["decode"]["p50"] > 0
    assert document["busy"]["devices"]["0"] > 0
    shown = said("plan", *released, "--simulate", *asked[5:])
    assert "ESTIMATE, nothing was measured" in shown
    assert "30 requests, " in shown
    assert "late sound" in shown


def test_the_demo_can_be_estimated_too() -> None:
    assert "first code2wav" in said("simulate", "demo", "--devices", "1xl4", "--concurrency", "2", "--requests", "4")


OPTIMIZE = "plan demo --optimize --slo ttfa=1"


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("simulate demo", "--devices is missing; say which GPUs may be used, such as 2x80GiB"),
        (f"{OPTIMIZE} --rate 1", "--devices is missing; say which GPUs may be used, such as 2x80GiB"),
        (f"{OPTIMIZE} --devices 1x80GiB", "one of --rate, --concurrency and --conversations"),
        (f"{OPTIMIZE} --devices 1x80GiB --rate fast", "such as 20/s"),
        (f"{OPTIMIZE} --devices 1x80GiB --rate 1 --out no/such/f.yaml", "there is no folder"),
        (f"{OPTIMIZE} --devices 1x80GiB --concurrency 1 --mix text=1 --requests 20", "requests have no ttfa"),
        ("simulate demo --devices 1x80GiB", "give either --concurrency or --rate"),
        ("simulate demo --devices 1x80GiB --rate 1 --mix sounds=1", "no such kind of request; there are text"),
        ("simulate demo --devices 1x80GiB --rate 1 --mix text=none", "must be KIND=WEIGHT"),
        ("simulate demo --devices 1x80GiB --rate 1 --mix text=-1", "must be greater than 0"),
        ("simulate demo --devices 2x1xh100 --rate 1", "one host is simulated"),
    ],
)
def test_wrong_arguments_are_named(line: str, problem: str) -> None:
    found = CliRunner().invoke(omni, line.split())
    assert found.exit_code
    assert problem in f"{found.output} {found.exception}"
