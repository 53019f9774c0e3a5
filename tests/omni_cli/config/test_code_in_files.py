"""Commands that only look at a config import and call nothing that a file names."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from omni_core.cli.main import omni
from omni_core.errors import ConfigError

WHOLE = """
name: strange
model_path: none
relay_backend: strange:relay
terminal_stages_fn: strange:terminal
placement_fn: strange:place
fetch_fn: strange:fetch
stages:
- {name: a, process: p, factory: "strange:factory", factory_args: {decoder: "strange:decoder"}, next: [b], stream_to: [b],
   route_fn: "strange:route", stream_done_to_fn: "strange:done", project_payload: {b: "strange:project"}, expand_fn: "strange:expand",
   balance: "strange:balance", work_fn: "strange:work", preload: [strange], relay: {backend: "strange:relay"},
   autoscale: {most: 2, policy: "strange:policy"}}
- {name: b, process: q, model_runner: "strange:runner", feedback: "strange:feedback", scheduler: "strange:scheduler", wait_for: [a],
   wait_for_fn: "strange:wait", merge_fn: "strange:merge", terminal: true}
"""
DEPLOY = """
pipeline: demo-image
placement_fn: strange:place
stages: {encode: {factory: "strange:factory", preload: [strange]}}
"""
VLLM = """
pipeline: strange
stages:
- {stage_id: 0, scheduler_cls: "strange.Scheduler", worker_cls: "strange:Worker", custom_process_input_func: strange.func}
"""


@pytest.fixture(params=["whole", "deploy"])
def file(request: pytest.FixtureRequest, folder: Path) -> str:
    path = folder / "file.yaml"
    path.write_text({"whole": WHOLE, "deploy": DEPLOY}[request.param])
    return str(path)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder with a module that leaves a file when it is imported."""
    (tmp_path / "strange.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w').close()\ndef __getattr__(name): ...\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "strange", raising=False)
    monkeypatch.setattr("omni_cli.plan.gpus_of", lambda config: [80 << 30])
    yield tmp_path
    sys.modules.pop("strange", None)


def runs_nothing(folder: Path) -> bool:
    return not (folder / "ran").exists() and "strange" not in sys.modules


@pytest.mark.parametrize("command", ["config show", "config validate", "config explain", "config graph"])
def test_what_a_file_names_is_shown_and_not_imported(command: str, file: str, folder: Path) -> None:
    result = CliRunner().invoke(omni, [*command.split(), file])
    assert (runs_nothing(folder), result.exit_code) == (True, 0), result.exception
    if command in ("config show", "config explain"):
        assert "placement_fn: is code that the file names" in result.output


def test_a_plan_needs_consent_for_a_placement_that_a_file_names(file: str, folder: Path) -> None:
    result = CliRunner().invoke(omni, ["plan", file])
    assert isinstance(result.exception, ConfigError)
    assert "file.yaml:" in str(result.exception)
    assert str(result.exception).endswith("to call it: --set placement_fn=strange:place")
    assert runs_nothing(folder)
    CliRunner().invoke(omni, ["plan", file, "--set", "placement_fn=strange:place"])
    assert (folder / "ran").exists()


def test_a_placement_that_a_variable_names_is_called(file: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_SET__PLACEMENT_FN", "strange:place")
    CliRunner().invoke(omni, ["plan", file])
    assert (folder / "ran").exists()


def test_files_of_another_system_are_converted_without_importing_what_they_name(folder: Path) -> None:
    (folder / "vllm.yaml").write_text(VLLM)
    (folder / "sglang.yaml").write_text(
        "config_cls: strange.Config\nmodel_path: m\nstages:\n- {name: a, factory: strange.f}\n"
    )
    for system in ("vllm-omni", "sglang-omni"):
        for name in ("vllm.yaml", "sglang.yaml"):
            CliRunner().invoke(omni, ["import", system, str(folder / name)])
    assert runs_nothing(folder)
