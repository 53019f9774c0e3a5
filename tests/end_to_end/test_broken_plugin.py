"""A broken plugin installed beside ours does not stop a run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

PLUGINS = {
    "broken-import": "import does_not_exist\n",
    "wrong-level": "raise RuntimeError('must not be imported')\n",
    "duplicate-relay": (
        "from omni_core.hookspecs import Component, hookimpl\n"
        "@hookimpl\ndef omni_launchers():\n    return [Component('twice', 'x:y', 'one')]\n"
    ),
    "duplicate-again": (
        "from omni_core.hookspecs import Component, hookimpl\n"
        "@hookimpl\ndef omni_launchers():\n    return [Component('twice', 'x:z', 'two')]\n"
    ),
    "exits": "raise SystemExit(3)\n",
}


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """An environment in which every broken plugin is installed."""
    for name, source in PLUGINS.items():
        module = name.replace("-", "_") + "_plugin"
        (tmp_path / f"{module}.py").write_text(source)
        info = tmp_path / f"{name.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[omni]\n{name} = {module}{' [relays-90]' * (name == 'wrong-level')}\n")
    path = os.pathsep.join(filter(None, [str(tmp_path), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}


def omni(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "omni_core.cli", *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=240, check=False)


def test_the_main_job_still_runs(environment: dict[str, str], checkpoints: dict[str, Path], tmp_path: Path) -> None:
    out = tmp_path / "reply.wav"
    arguments = [
        "--model",
        str(checkpoints["a"]),
        "--text",
        "hello",
        "--max-tokens",
        "12",
        "--out",
        str(out),
        "--seed",
        "1",
    ]
    answer = omni(environment, "run", "qwen3-omni", *arguments)
    assert answer.returncode == 0, answer.stderr
    assert out.stat().st_size > 44
