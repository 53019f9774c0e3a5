"""The end of a run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from omni_core.config.schema import EndpointsConfig, LauncherConfig, PipelineConfig, StageConfig
from omni_core.errors import StartupError
from omni_core.launch.runner import MultiProcessPipelineRunner
from omni_core.machines import LocalLauncher, Need
from omni_core.plugins import PluginRegistry


async def test_a_launcher_that_fails_to_release_neither_hides_the_cause_nor_leaves_files(
    caplog: pytest.LogCaptureFixture, run_folder: Path
) -> None:
    stage = StageConfig(name="s", factory="json:loads", process="s", terminal=True)
    config = PipelineConfig(
        model_path="none",
        stages=[stage],
        launcher=LauncherConfig(f"{__name__}:Sloppy"),
        endpoints=EndpointsConfig(str(run_folder)),
    )
    with pytest.raises(StartupError, match="no machine is free"):
        await MultiProcessPipelineRunner(config, PluginRegistry([])).start()
    assert "the cluster does not answer" in caplog.text
    assert list(run_folder.iterdir()) == []


class Sloppy(LocalLauncher):
    async def acquire(self, needs: Sequence[Need]) -> None:
        raise StartupError("no machine is free")

    async def release(self) -> None:
        raise OSError("the cluster does not answer")
