"""The 110 deploy files of the vllm-omni 0.30 wheel: none raises, none loses a key, and those of our models convert and run.

The wheel is downloaded from the package index into the user's cache, once; where the index has none, these tests are skipped.
"""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from omni_cli.deploy.budgets import problems
from omni_cli.deploy.fitting import placed
from omni_cli.deploy.platforms import PLATFORMS
from omni_cli.deploy.source import LayeredSource
from omni_cli.importing import output
from omni_cli.importing.report import Report
from omni_cli.importing.vllm_omni.convert import convert
from omni_core.config.completion import Machine
from omni_core.config.placement import plan
from omni_core.plugins import load_plugins

VERSION = "0.30.0"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "omni-tests"
PREFIX = "vllm_omni/deploy/"

OURS = {
    "qwen2_5_omni": "qwen25",
    "fish_qwen3_omni": "fish-s2",
    "fish_qwen3_omni_2gpu": "fish-s2",
    "fish_qwen3_omni_high_concurrency_dual_gpu": "fish-s2",
    "fish_qwen3_omni_high_concurrency_single_gpu": "fish-s2",
    "qwen3_omni_duplex": "qwen3-omni",
    "qwen3_omni_moe": "qwen3-omni",
    "qwen3_omni_moe_mori_intranode": "qwen3-omni",
    "qwen3_omni_moe_thinking": "qwen3-omni-text",
}


def wheel() -> Path:
    """The wheel in the cache, downloaded if it is not there."""
    found = list(CACHE.glob(f"vllm_omni-{VERSION}-*.whl"))
    if not found:
        options = ["--no-deps", "--only-binary=:all:", "--python-version", "3.12", "--disable-pip-version-check", "-q"]
        options += ["--retries", "1", "--timeout", "30"]
        download = [sys.executable, "-m", "pip", "download", *options, f"vllm-omni=={VERSION}", "-d", str(CACHE)]
        done = subprocess.run(download, capture_output=True, text=True, timeout=240, check=False)
        found = list(CACHE.glob(f"vllm_omni-{VERSION}-*.whl"))
        if done.returncode or not found:
            reason = (done.stderr.strip().splitlines() or ["nothing was downloaded"])[-1]
            pytest.skip(f"vllm-omni {VERSION} cannot be downloaded from the package index: {reason}")
    return found[0]


@pytest.fixture(scope="module")
def bundled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the deploy files."""
    folder = tmp_path_factory.mktemp("wheel")
    with zipfile.ZipFile(wheel()) as archive:
        archive.extractall(folder, [name for name in archive.namelist() if name.startswith(PREFIX)])
    return folder / PREFIX


@pytest.fixture(scope="module")
def converted(bundled: Path) -> dict[str, Report]:
    """The report of each file of our models by its name."""
    pytest.importorskip("omni_qwen3.plugin", reason="omni-qwen3 is not installed")
    pytest.importorskip("omni_fish_s2.plugin", reason="omni-fish-s2 is not installed")
    return {name: convert(bundled / f"{name}.yaml", load_plugins()) for name in OURS}


def files_of(report: Report, path: Path) -> list[Path]:
    """The file of a report and those that it is based on."""
    return sorted({path, *(Path(entry.leaf.file) for entry in report.entries)})


def test_every_key_of_every_file_is_in_its_report_once(
    bundled: Path, every_key_once: Callable[[Report, list[Path]], None]
) -> None:
    paths = sorted(bundled.glob("*.yaml"))
    assert len(paths) == 110
    for path in paths:
        report = convert(path, load_plugins())
        every_key_once(report, files_of(report, path))


def test_most_keys_of_our_models_are_taken(converted: dict[str, Report]) -> None:
    assert {name: report.title for name, report in converted.items()} == OURS
    assert [report for report in converted.values() if report.of("refused")] == []
    for pipelines in (("fish-s2",), ("qwen3-omni", "qwen3-omni-text")):
        reports = [report for report in converted.values() if report.title in pipelines]
        keys = sum(len(report.entries) for report in reports)
        assert sum(report.counts["taken"] for report in reports) >= 0.85 * keys


@pytest.mark.parametrize("name", OURS)
def test_files_of_our_models_validate_and_plan(converted: dict[str, Report], name: str, tmp_path: Path) -> None:
    path = tmp_path / "deploy.yaml"
    path.write_text(output.text(converted[name], name))
    for platform in PLATFORMS:
        config = LayeredSource(str(path), platform=platform).resolve().config
        gpus = [80 * 2**30] * 8
        assert problems(plan(placed(config, Machine(gpus, here=False)).config), gpus) == []


@pytest.mark.parametrize(
    ("name", "stages", "params"),
    [
        (
            "qwen3_omni_moe",
            ("thinker", "talker_ar", "code2wav"),
            {"max_new_tokens": 8, "talker": {"max_new_tokens": 24}},
        ),
        ("fish_qwen3_omni", ("semantic_ar", "vocoder"), {"max_new_tokens": 24}),
    ],
)
def test_a_converted_file_runs(
    converted: dict[str, Report], name: str, stages: tuple[str, ...], params: Any, tmp_path: Path
) -> None:
    """On a tiny checkpoint, without the GPUs of the file."""
    import omni_core

    path = tmp_path / "deploy.yaml"
    path.write_text(output.text(converted[name], name))
    elsewhere = {f"{stage}.{field}": None for stage in stages for field in ("gpu", "gpu_memory")}
    with omni_core.open(path, options={"processes": "one"}, set=elsewhere) as pipe:
        reply = pipe.chat("Hello.", params=params)
    assert reply.audio
    assert reply.audio.seconds > 0
