"""The suite for presets: it passes right ones, and each of its tests finds the mistake that it is for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError
from omni_core.hookspecs import PipelineComponent
from omni_core.plugins import PluginRegistry
from omni_core.plugins.discovery import PluginRecord
from omni_testing import PresetConformance
from omni_testing.presets import PresetMachine

RIGHT = "# One GPU.\npipeline: writing\nstages: {writer: {gpu: 0, gpu_memory: 6GiB}}\n"


def made(model_path: str) -> PipelineConfig:
    """Return a pipeline of one stage."""
    stage = StageConfig(name="writer", process="w", factory="json:dumps", terminal=True)
    return PipelineConfig(model_path=model_path, stages=[stage])


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    presets = tmp_path / "writing_plugin" / "presets"
    presets.mkdir(parents=True)
    (presets / "one.yaml").write_text(RIGHT)
    (presets / "cpu.yaml").write_text("# No GPU.\npipeline: writing\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    component = PipelineComponent("writing", f"{__name__}:made", "writes", presets="writing_plugin:presets")
    found = PluginRegistry([PluginRecord("p", "d", "1", "m", components={"omni_pipelines": [component]})])
    for module in ("omni_cli.deploy.source", "omni_testing.presets"):
        monkeypatch.setattr(f"{module}.load_plugins", lambda: found)
    return presets


def suite(memory: str = "8GiB", device: int = 0, names: str = "one cpu") -> PresetConformance:
    class Presets(PresetConformance):
        pipeline = "writing"
        machines: Mapping[str, PresetMachine] = {
            name: {
                "one": PresetMachine(1, memory, {"writer": [device]}),
                "cpu": PresetMachine(0, "0", {"writer": [None]}),
            }[name]
            for name in names.split()
        }

        def checkpoint(self) -> str:
            return "m"

    return Presets()


def test_right_presets_pass(folder: Path) -> None:
    suite().test_every_preset_has_a_machine_and_a_line_about_it()
    suite().test_every_preset_fits_its_machine()
    suite().test_every_preset_is_valid()


def test_a_preset_without_a_machine_or_a_comment_is_found(folder: Path) -> None:
    with pytest.raises(AssertionError):
        suite(names="one").test_every_preset_has_a_machine_and_a_line_about_it()
    (folder / "one.yaml").write_text(RIGHT.partition("\n")[2])
    with pytest.raises(AssertionError, match="begin it with a comment"):
        suite().test_every_preset_has_a_machine_and_a_line_about_it()


def test_a_preset_that_does_not_fit_or_is_elsewhere_is_found(folder: Path) -> None:
    for wrong in (suite(memory="4GiB"), suite(device=1)):
        with pytest.raises(AssertionError):
            wrong.test_every_preset_fits_its_machine()
    (folder / "one.yaml").write_text(RIGHT.replace("gpu_memory", "gpu_memry"))
    with pytest.raises(ConfigError, match=r"did you mean 'gpu_memory'"):
        suite().test_every_preset_fits_its_machine()
