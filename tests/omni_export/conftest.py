"""A deploy file of the demo over two machines, and what the command writes for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from omni_core.cli.main import omni

DEPLOY = """\
# The voice is elsewhere.
pipeline: demo
options: {processes: one}
stages:
  talker_ar: {process: voice, host: Voice_1, gpu: 1}
  code2wav: {process: voice, host: Voice_1, gpu: 1}
server: {drain_seconds: 20.5, port: 9000}
"""

Export = Callable[..., Result]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of ``deploy.yaml``, where commands are run."""
    (tmp_path / "deploy.yaml").write_text(DEPLOY)
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith("OMNI_SET__")]:
        monkeypatch.delenv(name)
    return tmp_path


@pytest.fixture
def export(folder: Path) -> Export:
    """Run ``omni export`` there."""

    def run(*arguments: str) -> Result:
        return CliRunner().invoke(omni, ["export", *arguments])

    return run
