"""Everything that is installed, found through entry points: what ``omni plugins check --full`` runs."""

from __future__ import annotations

import pytest

from omni_testing.installed import suites, untested

globals().update(suites())
# What another suite of the same code shows, again.
for name in ("LauncherSsh", "PipelineQwen25Text", "PipelineQwen3OmniText"):
    pytest.mark.full(globals()[f"Test{name}"])


def test_ours_are_tested() -> None:
    assert {"TestPluginRelayShm", "TestPluginTorch", "TestPluginQwen3"} <= set(globals())
    assert {"TestRelayShm", "TestSchedulerEngine", "TestPipelineQwen3Omni"} <= set(globals())
    assert [
        each
        for plugin in ("relay-shm", "torch", "qwen3", "qwen25", "qwen3-tts", "launchers")
        for each in untested(plugin)
    ] == []
