"""``omni doctor``: the machine, requirements of what is installed, the default relay, the engine, optional components, and JSON."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import Distribution
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from click.testing import CliRunner

from omni_cli import machine_facts
from omni_cli.requirements import unmet
from omni_core.hookspecs import Component, PipelineComponent, SchedulerComponent
from omni_core.plugins import PluginRecord, PluginRegistry

command = import_module("omni_cli.doctor")


class Installed(Distribution):
    """A distribution with these requirements."""

    def __init__(self, *requirements: str) -> None:
        lines = [f"Requires-Dist: {each}" for each in requirements]
        self._text = "\n".join(["Metadata-Version: 2.1", "Name: omni-mine", "Version: 3.0", *lines, ""])

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


def test_missing_or_old_packages_are_named_with_the_command() -> None:
    needs = (
        "omni-core>=0.1,<0.2", "omni-core>=9", "no-such-thing >=2", "pytest9; extra == 'test'", "click[a,b] (>=8)",
        "old-thing; python_version < '3'", "omni-core!=0.1.0", "omni-core==0.*",
    )  # fmt: skip
    assert list(unmet(Installed(*needs))) == [
        "omni-mine 3.0 needs omni-core>=9, and 0.1.0 is installed: pip install 'omni-core>=9'",
        "omni-mine 3.0 needs no-such-thing, which is not installed: pip install 'no-such-thing>=2'",
        "omni-mine 3.0 needs omni-core!=0.1.0, and 0.1.0 is installed: pip install 'omni-core!=0.1.0'",
    ]


def looked_at(
    monkeypatch: pytest.MonkeyPatch, *relays: Component, needs: str = "omni-core", **others: list[Any]
) -> tuple[int, dict[str, Any]]:
    record = PluginRecord("p", "dist-p", "1.0", "m", components={"omni_relays": list(relays), **others})
    monkeypatch.setattr(command, "load_plugins", lambda: PluginRegistry([record]))
    monkeypatch.setattr(command, "ours", lambda: [Installed(needs)])
    result = CliRunner().invoke(command.doctor, ["--json"])
    assert result.exit_code == (1 if json.loads(result.stdout)["to_do"] else 0)
    said = CliRunner().invoke(command.doctor, []).stdout
    assert ("Nothing needs attention." in said) is (result.exit_code == 0)
    return result.exit_code, json.loads(result.stdout)


def test_the_default_relay_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    _, report = looked_at(monkeypatch)
    assert any("the default relay 'shm' is not installed" in line for line in report["to_do"])
    _, report = looked_at(monkeypatch, Component("shm", "json:loads", "s"))
    assert not any("relay" in line for line in report["to_do"])


def test_optional_components_are_not_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    relays = (
        Component("away", "json:loads", "s", probe=lambda: "no such device"),
        Component("wrong", "json:laods", "s"),
        Component("shm", "json:loads", "s"),
    )
    code, report = looked_at(monkeypatch, *relays, needs="omni-core>=9")
    assert code == 1
    assert report["not_usable"] == {"relay away": "no such device"}
    assert any(line.startswith("relay wrong: its target 'json:laods'") for line in report["to_do"])
    assert any("needs omni-core>=9" in line for line in report["to_do"])
    assert report["machine"]["cores"] >= 1


SHM = Component("shm", "json:loads", "s")


def test_a_default_relay_that_cannot_work_needs_attention(monkeypatch: pytest.MonkeyPatch) -> None:
    _, report = looked_at(monkeypatch, Component("shm", "json:loads", "s", probe=lambda: "no /dev/shm"))
    assert (
        "the default relay 'shm' cannot work here, which pipelines of several processes need: no /dev/shm"
        in report["to_do"]
    )


def test_models_need_an_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    pipelines, runner = [PipelineComponent("mine", "json:loads", "s")], Component("my-decoder", "json:loads", "s")
    code, report = looked_at(monkeypatch, SHM, omni_pipelines=pipelines, omni_model_runners=[runner])
    assert (code, report["to_do"]) == (
        1,
        ["no engine is installed, which my-decoder need; try: pip install omni-torch"],
    )
    engine = SchedulerComponent("engine", "json:loads", "s", runs_model_runners=True)
    code, report = looked_at(
        monkeypatch, SHM, omni_pipelines=pipelines, omni_model_runners=[runner], omni_schedulers=[engine]
    )
    assert (code, report["to_do"]) == (0, [])


SMI = """0, NVIDIA H100 80GB HBM3, 81559, 1024, 550.54.15, 9.0
1, NVIDIA H100 80GB HBM3, 81559, [N/A], 550.54.15, 9.0
Sun Nov 22 02:02:10 2026
| NVIDIA-SMI 550.54.15    Driver Version: 550.54.15    CUDA Version: 12.4     |
"""


def facts(**changes: Any) -> dict[str, Any]:
    torch = {"version": "2.13.0+cu128", "cuda": "12.8"}
    return {
        "shared_memory_free": None,
        "gpus_visible": [1, 1],
        "torch": torch,
        **machine_facts.graphics(SMI),
        **changes,
    }


def test_gpus_are_read_from_nvidia_smi() -> None:
    read = machine_facts.graphics(SMI)
    assert (read["driver"], read["driver_cuda"]) == ("550.54.15", "12.4")
    first, second = read["gpus"]
    assert first == {
        "name": "NVIDIA H100 80GB HBM3", "memory": 81559 * 2**20, "memory_used": 2**30, "compute_capability": "9.0",
    }  # fmt: skip
    assert second["memory_used"] is None
    assert machine_facts.graphics("") == {"gpus": [], "driver": None, "driver_cuda": None}


def test_advice_about_gpus() -> None:
    assert list(machine_facts.advice(facts())) == []
    (line,) = machine_facts.advice(facts(torch={"version": "2.13.0+cpu", "cuda": None}))
    assert "torch 2.13.0+cpu cannot use the GPU" in line
    (line,) = machine_facts.advice(facts(torch={"version": "2.15.0", "cuda": "13.0"}))
    assert line.startswith("the driver 550.54.15 supports CUDA 12.4, torch 2.15.0 needs 13.0")
    (line,) = machine_facts.advice(facts(gpus_visible=[]))
    assert "not visible" in line
    (line,) = machine_facts.advice(facts(shared_memory_free=2**20))
    assert "--shm-size" in line


def test_gpus_are_shown() -> None:
    shown = list(command._gpu_lines(facts(gpus_visible=[1])))
    assert shown[0] == "  GPU 0          NVIDIA H100 80GB HBM3, 79.6 GiB, 78.6 GiB free, compute 9.0"
    assert shown[-1] == "  visible here   1 of 2 (CUDA_VISIBLE_DEVICES)"


def test_a_container_has_the_memory_of_its_cgroup(tmp_path: Path) -> None:
    limit = tmp_path / "memory.max"
    limit.write_text("1048576\n")
    assert machine_facts.memory_limit(limit) == 2**20
    limit.write_text("max\n")
    assert machine_facts.memory_limit(limit) == machine_facts.memory_limit(tmp_path / "nowhere") > 2**20


def test_what_is_available_is_within_the_cgroup(tmp_path: Path) -> None:
    table, limit = tmp_path / "meminfo", tmp_path / "memory.max"
    table.write_text("MemAvailable:   1048576 kB\n")
    assert machine_facts.available_memory(table, limit) == 2**30
    limit.write_text("1000000\n")
    assert machine_facts.available_memory(table, limit) == 1_000_000
    (tmp_path / "memory.current").write_text("400000\n")
    (tmp_path / "memory.stat").write_text("anon 300000\ninactive_file 100000\n")
    assert machine_facts.available_memory(table, limit) == 700_000


def test_the_build_of_torch_is_read_without_importing_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    spec = SimpleNamespace(submodule_search_locations=[str(tmp_path)])
    monkeypatch.setattr(machine_facts, "find_spec", lambda name: spec)
    (tmp_path / "version.py").write_text(
        "__version__ = '2.9.0+cu128'\ncuda: Optional[str] = '12.8'\nhip: Optional[str] = None\n"
    )
    assert machine_facts.torch_build() == {"version": "2.9.0+cu128", "cuda": "12.8"}
    (tmp_path / "version.py").write_text("__version__ = '2.9.0+cpu'\ncuda: Optional[str] = None\n")
    assert machine_facts.torch_build() == {"version": "2.9.0+cpu", "cuda": None}
