"""The presets: the released model fits the machine of each, as the planner sees it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar

import pytest
from released_files import write_released

from omni_cli.deploy.fitting import placed
from omni_cli.deploy.source import LayeredSource
from omni_core.config.completion import DoesNotFitError, Machine
from omni_testing import PresetConformance
from omni_testing.presets import PresetMachine

GIB = 2**30


class TestPresets(PresetConformance):
    pipeline = "qwen3-omni"
    machines: ClassVar = {
        "cpu": PresetMachine(devices={"thinker": [None], "talker_ar": [None], "code2wav": [None]}),
        "1x80": PresetMachine(1, "80GiB", {"thinker": [0], "talker_ar": [0], "code2wav": [0]}),
        "2x80": PresetMachine(2, "80GiB", {"thinker": [0], "talker_ar": [1], "code2wav": [1]}),
        "4x24": PresetMachine(4, "24GiB", {"thinker": [0, 1, 2, 3], "talker_ar": [0], "code2wav": [1]}),
        "8x80": PresetMachine(8, "80GiB", {"thinker": [0, 1, 2, 3, 4], "talker_ar": [5, 6], "code2wav": [5, 6]}),
    }

    @pytest.fixture(autouse=True)
    def laptop(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A laptop with 96 GB, of which the system has some, and whose processor has no instructions for bfloat16."""
        monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 80 * GIB)
        monkeypatch.setattr("omni_torch.placement.devices.computes_bfloat16", lambda: False)

    @pytest.fixture(autouse=True)
    def released(self, tmp_path: Path) -> Iterator[None]:
        self.folder = write_released(tmp_path)
        yield
        for path in tmp_path.iterdir():
            path.unlink()

    def checkpoint(self) -> str:
        return str(self.folder)

    def test_a_smaller_laptop_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 60 * GIB)
        config = LayeredSource("qwen3-omni/cpu", self.checkpoint(), platform="cpu").resolve().config
        with pytest.raises(DoesNotFitError, match=r"weights on the CPU take 65\.7 GiB in bfloat16"):
            placed(config, Machine([]))
