"""Plan the released model's stages on the GPUs that there are, with the memory of each: from headers alone, without a GPU.

The stand-in has the released names, shapes and dtype; its weights are holes in sparse files.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from click.testing import CliRunner, Result
from hub_stand_in import serve
from quantized_checkpoints import write_quantized
from released_files import write_released

from omni_cli.deploy.budgets import problems
from omni_cli.deploy.fitting import placed
from omni_core.cli.main import omni
from omni_core.config.completion import DoesNotFitError, Machine, completed
from omni_core.config.placement import plan
from omni_qwen3.config import read_config
from omni_qwen3.memory import networks_of
from omni_qwen3.pipeline import qwen3_omni, qwen3_omni_text
from omni_qwen3.talker_network import load_talker
from omni_qwen3.thinker_network import load_thinker
from omni_torch.checkpoints.hub import listing
from omni_torch.processes.tensor_parallel import TensorParallel

GIB = 2**30
NETWORKS = ("image_encoder", "audio_encoder", "thinker", "talker_ar", "code2wav")


@pytest.fixture(scope="module")
def released(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = write_released(tmp_path_factory.mktemp("released"))
    yield folder
    for path in folder.iterdir():
        path.unlink()


def run(released: Path, command: str, *arguments: str) -> Result:
    return CliRunner().invoke(omni, [command, "qwen3-omni", "--model", str(released), *arguments])


def _on(gpus: int, memory: str, *more: str) -> list[str]:
    return ["--gpus", str(gpus), "--gpu-memory", memory, *more]


TABLE: list[tuple[int, str, int, dict[str, Any], int]] = [
    # GPUs, each, thinker ranks, devices, positions of the thinker's KV cache
    (1, "80GiB", 1, {"thinker": 0, "talker_ar": 0, "code2wav": 0, "image_encoder": 0, "audio_encoder": 0}, 70_000),
    (2, "80GiB", 1, {"thinker": 0, "talker_ar": 1, "code2wav": 1, "image_encoder": 1, "audio_encoder": 1}, 190_000),
    (2, "48GiB", 2, {"thinker": [0, 1]}, 120_000),
    (4, "24GiB", 4, {"thinker": [0, 1, 2, 3], "talker_ar": 0}, 13_000),
    (8, "24GiB", 4, {"thinker": [0, 1, 2, 3], "talker_ar": 4, "code2wav": 4}, 190_000),
    (8, "80GiB", 1, {"thinker": 0, "talker_ar": 1, "code2wav": 1}, 190_000),
    (1, "141GiB", 1, {"thinker": 0, "talker_ar": 0}, 500_000),
]


@pytest.mark.parametrize(("gpus", "memory", "ranks", "devices", "positions"), TABLE)
def test_the_released_model_is_placed_on_the_gpus_that_there_are(
    released: Path, gpus: int, memory: str, ranks: int, devices: dict[str, Any], positions: int
) -> None:
    capacity = int(memory.removesuffix("GiB")) * GIB
    placement = placed(qwen3_omni(str(released)), Machine([capacity] * gpus, here=False))
    config = placement.config
    processes = plan(config)
    assert problems(processes, [capacity] * gpus) == []
    assert config.stage("thinker").tp_size == ranks
    assert {name: config.stage(name).gpu for name in devices} == devices
    assert {config.stage(name).factory_args["dtype"] for name in NETWORKS} == {"bfloat16"}
    found = int(placement.notes["thinker"].rpartition(": ")[2].split()[0].replace(",", ""))
    assert positions <= found < 1.3 * positions
    for gpu in range(gpus):  # room for the processes' contexts beside the budgets
        there = [process for process in processes if process.gpu == gpu]
        given = sum(budget.of(capacity) or 0 for each in there for budget in each.budgets().values() if budget)
        assert not there or given + len(there) * 400 * 2**20 <= capacity


def test_what_plan_prints_is_what_config_says(released: Path) -> None:
    shown = run(released, "plan", "--gpus", "2", "--gpu-memory", "80GiB", "--json")
    assert shown.exit_code == 0, shown.output
    document = json.loads(shown.stdout)
    budgets = {s["name"]: s["gpu_memory"] for process in document["processes"] for s in process["stages"]}
    config = placed(qwen3_omni(str(released)), Machine([80 * GIB] * 2, here=False)).config
    assert budgets["thinker"] == f"{int(str(config.stage('thinker').gpu_memory).removesuffix('MiB')) / 1024:.1f} GiB"
    assert "bfloat16 weights 56.9 GiB" in document["notes"]["thinker"]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (_on(2, "24GiB"), ["does not fit 2 GPUs of 24.0 GiB", "thinker 58.", "4 GPUs of 24.0 GiB", "1 GPU of 80.0 GiB"]),
        (_on(1, "64GiB"), ["does not fit 1 GPU of 64.0 GiB", "2 GPUs of 64.0 GiB", "1 GPU of 80.0 GiB"]),
        (_on(1, "80GiB", "--option", "dtype=float32"), ["2 GPUs of 80.0 GiB", "these with --option dtype=bfloat16"]),
        (_on(1, "80GiB", "--set", "thinker.gpu_memory=20GiB"), ["stages[thinker].gpu_memory", "20.0 GiB is too small", "at least 58."]),
        (_on(1, "80GiB", "--set", "thinker.factory_args.kv_cache_mb=32768"), ["does not fit 1 GPU of 80.0 GiB", "2 GPUs of 80.0 GiB"]),
        (_on(1, "80GiB", "--set", "thinker.factory_args.dtype=bf16"), ["there is no dtype 'bf16'; did you mean 'bfloat16'?"]),
        (["--option", "gpu=-1"], ["--option gpu=-1: must be the number of a GPU, auto, or none"]),
        (["--option", "dtype=bf16"], ["there is no such dtype; did you mean 'bfloat16'?"]),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_what_would(
    released: Path, arguments: list[str], expected: list[str]
) -> None:
    result = run(released, "plan", *arguments)
    assert result.exit_code == 1
    for text in expected:
        assert text in str(result.exception), result.exception


def test_overrides_count(released: Path) -> None:
    """A value given by ``--set`` stands in the plan, and the rest adapts to it."""

    def budget(*settings: str) -> dict[str, str]:
        result = run(released, "plan", "--gpus", "1", "--gpu-memory", "80GiB", "--json", *settings)
        document = json.loads(result.stdout)
        return {s["name"]: s["gpu_memory"] for process in document["processes"] for s in process["stages"]}

    small = budget("--set", "thinker.factory_args.kv_cache_mb=1024")
    assert float(small["thinker"].split()[0]) == pytest.approx(56.9 + 0.4 + 1.0, abs=0.3)
    assert float(small["talker_ar"].split()[0]) > float(budget()["talker_ar"].split()[0])
    assert budget("--set", "thinker.gpu_memory=60GiB")["thinker"] == "60.0 GiB"
    wide = budget("--option", "gpu=0")
    assert wide == budget()


def test_a_stage_keeps_its_device_and_ranks(released: Path) -> None:
    machine = Machine([80 * GIB] * 8, here=False)
    config = qwen3_omni(str(released))
    by_name = {stage.name: stage for stage in config.stages}

    def with_thinker(**fields: Any) -> Any:
        stages = [evolve(each, **fields) if each.name == "thinker" else each for each in by_name.values()]
        return placed(evolve(config, stages=stages), machine).config

    assert with_thinker(gpu=5).stage("thinker").gpu == 5
    assert with_thinker(tp_size=4).stage("thinker").gpu == [0, 1, 2, 3]
    replicas = with_thinker(replicas=6)
    assert replicas.stage("thinker").gpu == [0, 1, 2, 3, 4, 5]
    assert replicas.stage("talker_ar").gpu == 6


def test_in_one_process_all_is_on_one_gpu(released: Path) -> None:
    config = placed(qwen3_omni(str(released), processes="one"), Machine([80 * GIB] * 2, here=False)).config
    assert {config.stage(name).gpu for name in NETWORKS} == {0}
    assert len(plan(config)) == 1


def test_without_speech_less_is_needed(released: Path) -> None:
    config = placed(qwen3_omni_text(str(released)), Machine([66 * GIB], here=False)).config
    assert config.stage("thinker").gpu == 0


def test_a_cpu_run_of_a_model_larger_than_memory_is_refused_before_anything_is_read(
    released: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: [])
    monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 16 * GIB)
    monkeypatch.setattr("omni_torch.placement.devices.computes_bfloat16", lambda: False)
    monkeypatch.setattr("omni_torch.placement.devices._has_kernel_for_bfloat16", lambda: False)
    with pytest.raises(
        DoesNotFitError, match=r"131\.\d GiB in float32 \(.*16\.0 GiB are free; --option dtype=bfloat16"
    ):
        completed(qwen3_omni(str(released)))
    monkeypatch.setattr("omni_torch.placement.devices._has_kernel_for_bfloat16", lambda: True)
    kept = r"68\.3 GiB in float32, decoders as they are stored in bfloat16 \(thinker .*16\.0 GiB are free\."
    with pytest.raises(DoesNotFitError, match=kept):
        completed(qwen3_omni(str(released)))
    monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 90 * GIB)
    fitting = qwen3_omni(str(released))
    assert completed(fitting).stage("thinker").factory_args["dtype"] == "float32"
    for option, value in (("quantization", "int8_weight_only"), ("gguf", "thinker.gguf"), ("decoder", "mine:make")):
        stages = [
            evolve(each, factory_args={**each.factory_args, option: value}) if each.name == "thinker" else each
            for each in fitting.stages
        ]
        with pytest.raises(DoesNotFitError, match=r"take 12\d\.\d GiB in float32"):
            completed(evolve(fitting, stages=stages))
    monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 16 * GIB)
    with pytest.raises(DoesNotFitError, match=r"65\.\d GiB in bfloat16"):
        completed(qwen3_omni(str(released), dtype="bfloat16", gpu="none"))


def test_the_dtype_on_a_cpu_is_what_it_computes(released: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def dtype(native: bool, stored: str = "BF16", **options: Any) -> str:
        monkeypatch.setattr("omni_torch.placement.devices.computes_bfloat16", lambda: native)
        config = placed(qwen3_omni(str(released), **options), Machine([], here=False)).config
        assert config.stage("thinker").gpu is None
        return str(config.stage("thinker").factory_args["dtype"])

    assert dtype(native=True) == "bfloat16"
    assert dtype(native=False) == "float32"
    assert dtype(native=False, dtype="bfloat16") == "bfloat16"
    assert dtype(native=True, dtype="auto", gpu="cpu") == "bfloat16"


def test_config_show_says_what_was_chosen(released: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: [80 * GIB])
    shown = CliRunner().invoke(omni, ["config", "show", "qwen3-omni", "--model", str(released)])
    assert shown.exit_code == 0, shown.output
    thinker = next(each for each in json.loads(shown.stdout)["stages"] if each["name"] == "thinker")
    assert (thinker["gpu"], thinker["factory_args"]["dtype"]) == (0, "bfloat16")
    assert thinker["gpu_memory"].endswith("MiB")
    said = CliRunner().invoke(omni, ["config", "explain", "qwen3-omni", "thinker.gpu", "--model", str(released)])
    assert "thinker.gpu = 0" in said.stdout
    assert re.search(r"this machine +0 +<- wins", said.stdout)
    monkeypatch.setattr("omni_cli.deploy.fitting.detect", lambda: [24 * GIB])
    small = CliRunner().invoke(omni, ["config", "show", "qwen3-omni", "--model", str(released)])
    assert "Warning: left open, because it does not fit this machine" in small.stderr
    thinker = next(each for each in json.loads(small.stdout)["stages"] if each["name"] == "thinker")
    assert thinker["gpu"] == "auto"


PAGE = (Path(__file__).parents[2] / "docs/qwen3-omni.md").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    "row", re.findall(r"^\| (\d) of (\w+) \| gpu ([\d, ]+) \| gpu ([\d, ]+) \| (.*) \|$", PAGE, re.M)
)
def test_the_table_of_the_page_is_what_plan_says(released: Path, row: tuple[str, ...]) -> None:
    gpus, memory, thinker, talker, positions = row
    result = run(released, "plan", "--gpus", gpus, "--gpu-memory", memory, "--json")
    document = json.loads(result.stdout)
    places: dict[str, list[str]] = {}
    for process in document["processes"]:
        for stage in process["stages"]:
            places.setdefault(stage["name"], []).append(str(stage["gpu"]))
    assert (", ".join(places["thinker"]), ", ".join(places["talker_ar"])) == (thinker, talker)
    assert document["notes"]["thinker"].endswith(f": {positions}")


@pytest.mark.parametrize("arguments", re.findall(r"\| `(--[^`]+)` \|$", PAGE, re.M))
def test_the_variations_of_the_page_fit(released: Path, arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 256 * GIB)
    result = run(released, "plan", *shlex.split(arguments))
    assert result.exit_code == 0, result.exception


def test_the_refusal_of_the_page_is_real(released: Path) -> None:
    result = run(released, "plan", "--gpus", "2", "--gpu-memory", "24GiB")
    assert str(result.exception) in PAGE


def test_a_plan_of_the_hub_s_checkpoint_transfers_a_few_megabytes(released: Path, tmp_path: Path) -> None:
    with serve() as hub:
        hub.repositories["Qwen/Stand-In"] = released
        command = [
            sys.executable,
            "-m",
            "omni_core.cli",
            "plan",
            "Qwen/Stand-In",
            "--gpus",
            "4",
            "--gpu-memory",
            "24GiB",
        ]
        home = {"HF_HOME": str(tmp_path / "hf"), "XDG_CACHE_HOME": str(tmp_path)}
        planned = subprocess.run(
            command,
            env={**os.environ, "HF_ENDPOINT": hub.endpoint, **home},
            capture_output=True,
            text=True,
            timeout=120,
        )
    assert planned.returncode == 0, planned.stderr
    assert "thinker_tp3    gpu 3" in planned.stdout
    assert sum(path.stat().st_size for path in released.iterdir()) > 65 * GIB
    assert hub.sent < 5_000_000
    assert not hub.weights_sent()


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_weights_that_are_counted_are_those_that_are_loaded(tiny: dict[str, Path], ranks: int) -> None:
    folder = tiny["a"]
    config = read_config(folder)
    networks, tensors = networks_of(config), listing(str(folder)).tensors
    parallel = TensorParallel(0, ranks)
    assert ranks in networks["thinker"].ranks
    thinker = load_thinker(str(folder), config, parallel=parallel)
    assert networks["thinker"].weight_values(tensors, ranks) * 4 == sum(each.nbytes for each in thinker.parameters())
    talker = load_talker(str(folder), config)
    assert networks["talker_ar"].weight_values(tensors) * 4 == sum(each.nbytes for each in talker.parameters())
    counted = sum(sum(name.startswith(each.prefixes) for name in tensors) for each in networks.values())
    assert counted == len(tensors)  # each tensor is counted for one stage


@pytest.mark.parametrize(
    "form",
    [
        {"symmetric": False},
        {"bits": 8, "reordered": True},
        {"method": "awq", "symmetric": False},
        {"method": "compressed-tensors"},
        {"method": "compressed-tensors", "bits": 8},
    ],
    ids=str,
)
def test_words_of_a_few_bits_are_counted_as_what_a_gpu_holds(
    tiny: dict[str, Path], tmp_path: Path, form: dict[str, Any]
) -> None:
    pattern = r"^thinker\.model\.layers\.\d+\.(self_attn|mlp\.experts)\..*_proj\.weight$"
    write_quantized(tiny["a"], tmp_path / "narrow", pattern, group=32, **form)
    thinker = networks_of(read_config(tiny["a"]))["thinker"]
    plain, narrow = (listing(str(folder)).tensors for folder in (tiny["a"], tmp_path / "narrow"))
    for ranks in (1, 2):
        assert thinker.weight_values(narrow, ranks, unpacked=True) == thinker.weight_values(plain, ranks)
    assert thinker.weight_values(narrow) < thinker.weight_values(plain) / 2
