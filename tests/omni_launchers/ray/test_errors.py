"""One-line errors of what keeps a pipeline from running on a cluster, and the absence of Ray from all other commands."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError
from omni_core.machines import LauncherOptions
from omni_launchers.ray.launcher import RayLauncher
from omni_launchers.ray.settings import Settings
from omni_testing.ours.ray import LocalCluster

CONFIG = PipelineConfig(
    model_path="none",
    stages=[StageConfig(name="one", factory="ray_stages:device", process="one", terminal=True)],
)
_OMNI = "import sys; from omni_core.cli import main; sys.argv[0] = 'omni'; main()"
WITHOUT_RAY = "import sys; sys.modules['ray'] = None; " + _OMNI
"""``omni`` where ``import ray`` fails and no such module is found."""


def omni(code: str, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, **variables}
    command = [sys.executable, "-c", code, *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=200, env=environment, check=False)


@pytest.fixture
def deploy(folder: Path) -> str:
    """A file that describes a pipeline."""
    stage = {"name": "one", "factory": "ray_stages:device", "process": "one", "terminal": True}
    path = folder / "one.json"
    path.write_text(json.dumps({"model_path": "none", "stages": [stage]}))
    return str(path)


def the_error(done: subprocess.CompletedProcess[str]) -> str:
    """Return the error of a command that has written nothing else."""
    assert done.returncode != 0
    assert done.stdout == ""
    (line,) = done.stderr.strip().splitlines()
    return line


def test_ray_is_not_installed(deploy: str) -> None:
    done = omni(WITHOUT_RAY, "run", deploy, "--launcher", "ray", "--text", "hi")
    assert the_error(done).endswith("launcher.name: ray: Ray is not installed here; pip install ray")


def test_no_cluster_runs_here(deploy: str) -> None:
    done = omni(_OMNI, "run", deploy, "--launcher", "ray", "--text", "hi", RAY_ADDRESS="127.0.0.1:1")
    assert "launcher.settings.address: no Ray cluster answers at 127.0.0.1:1 (" in the_error(done)
    done = omni(
        _OMNI, "run", deploy, "--launcher", "ray", "--set", "launcher.settings.address=localhost", "--text", "hi"
    )
    assert "no Ray cluster answers at localhost" in the_error(done)


def test_the_cluster_has_another_version(cluster: LocalCluster, deploy: str) -> None:
    code = "import ray; ray.__version__ = '2.49.0'; " + _OMNI
    done = omni(code, "run", deploy, "--launcher", "ray", "--text", "hi", RAY_ADDRESS=cluster.address)
    error = the_error(done)
    assert "refuses this process: Version mismatch: The cluster was started with: Ray: 2." in error
    assert "was started with: Ray: 2.49.0" in error


@pytest.mark.parametrize(
    ("setting", "value", "expected"),
    [
        ("strategy", "PAK", r"launcher\.settings\.strategy: there is no 'PAK'; did you mean 'PACK'"),
        ("ready_seconds", 0.0, r"launcher\.settings\.ready_seconds: must be positive, is 0"),
        ("cpus", -1.0, r"launcher\.settings\.cpus: must be positive, is -1"),
        ("address", "ray://head:10001", r"launcher\.settings\.address: ray://head:10001 is for Ray's client"),
    ],
)
def test_a_setting_is_wrong(tmp_path: Path, setting: str, value: object, expected: str) -> None:
    with pytest.raises(ConfigError, match=expected):
        RayLauncher(LauncherOptions("omni://r", tmp_path, CONFIG, {setting: value}))


def test_settings_have_defaults() -> None:
    assert Settings() == Settings(address="auto", strategy="PACK", ready_seconds=60.0, autoscaling=False, cpus=0.1)


def test_no_other_command_imports_ray(deploy: str) -> None:
    code = "import atexit, sys; atexit.register(lambda: print('ray' in sys.modules, file=sys.stderr)); " + _OMNI
    for arguments in (
        ["--help"],
        ["plugins", "list"],
        ["plugins", "show", "ray"],
        ["plan", deploy, "--launcher", "ray"],
    ):
        done = omni(code, *arguments)
        assert done.stderr.splitlines()[-1] == "False", arguments


def test_without_the_distribution_nothing_mentions_ray(deploy: str) -> None:
    for arguments in (["--help"], ["run", "--help"], ["plugins", "list"], ["config", "show", deploy]):
        done = omni(WITHOUT_RAY, *arguments, OMNI_DISABLE_PLUGINS="launchers")
        assert done.returncode == 0, done.stderr
        lines = (done.stdout + done.stderr).splitlines()
        assert not [line for line in lines if re.search(r"(?i)\bray\b", line) and not line.startswith("launcher-ray")]
