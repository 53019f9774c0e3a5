"""Files of the working directory stand for no module, in any process: there may be a stranger's beside a checkpoint."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

NAMES = ("attrs", "json", "msgpack", "numpy", "omni_core", "omni_torch", "queue", "secrets", "torch")

RUN = """
import sys
from omni_core.client import open as open_pipeline
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest

def main():
    env = {"OWN": "1"} if "fresh" in sys.argv else {}  # a process with variables of its own is no fork
    stage = StageConfig(name="a", process="p", factory="own_stage:shout", terminal=True, env=env)
    with open_pipeline(PipelineConfig(model_path="none", stages=[stage])) as pipe:
        print(pipe.submit(OmniRequest("hello"))["a"])

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A working directory with modules of others, and beside it a stage."""
    (tmp_path / "here").mkdir()
    (tmp_path / "stages").mkdir()
    for name in NAMES:
        (tmp_path / f"here/{name}.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'a').write('{name} ')\n")
    (tmp_path / "stages/own_stage.py").write_text("def shout(payload):\n    return payload.request.inputs.upper()\n")
    (tmp_path / "run.py").write_text(RUN)
    return tmp_path


def said(folder: Path, *command: str, way: str = "", **environment: str) -> str:
    path = os.pathsep.join(
        filter(None, [str(folder / "stages"), os.environ.get("PYTHONPATH")])
    )  # an empty part is the folder
    ended = subprocess.run(
        [sys.executable, *command, way], cwd=folder / "here", env={**os.environ, "PYTHONPATH": path, **environment},
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize("way", ["forked", pytest.param("fresh", marks=pytest.mark.full)])
def test_stage_processes_import_nothing_from_the_working_directory(folder: Path, way: str) -> None:
    assert said(folder, str(folder / "run.py"), way=way) == "HELLO"
    assert not (folder / "ran").exists(), (folder / "ran").read_text()


@pytest.mark.parametrize("way", ["forked", pytest.param("fresh", marks=pytest.mark.full)])
def test_stages_of_a_program_in_the_working_directory_are_found(folder: Path, way: str) -> None:
    for name in NAMES:
        (folder / f"here/{name}.py").unlink()
    (folder / "stages/own_stage.py").rename(folder / "here/own_stage.py")
    (folder / "run.py").rename(folder / "here/run.py")
    assert said(folder, "run.py", way=way) == "HELLO"
    assert said(folder, "-m", "run", way=way) == "HELLO"
