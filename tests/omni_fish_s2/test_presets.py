"""The presets: the released model fits the machine of each, as the planner sees it."""

from __future__ import annotations

import json
from math import prod
from pathlib import Path
from typing import ClassVar

import pytest
from fish_released import NAMES, RELEASED, on_disk

from omni_cli.deploy.budgets import problems
from omni_cli.deploy.fitting import placed
from omni_cli.deploy.source import LayeredSource
from omni_core.config.completion import DoesNotFitError, Machine
from omni_core.config.placement import plan
from omni_fish_s2.memory import CODEC
from omni_testing import PresetConformance
from omni_testing.presets import PresetMachine
from omni_testing.stand_in import write_stand_in

GIB = 2**30


def write_released(folder: Path) -> Path:
    """Write a stand-in for the released checkpoint: the decoders' tensors in bfloat16, the codec's in float32, as holes."""
    write_stand_in(folder, RELEASED, {on_disk(name): shape for name, shape in NAMES["decoders"].items()})
    with (folder / CODEC).open("wb") as codec:
        codec.truncate(4 * sum(map(prod, NAMES["codec"].values())))
    return folder


class TestPresets(PresetConformance):
    pipeline = "fish-s2"
    machines: ClassVar = {
        "cpu": PresetMachine(devices={"preprocessing": [None], "semantic_ar": [None], "vocoder": [None]}),
        "1x80": PresetMachine(1, "80GiB", {"preprocessing": [0], "semantic_ar": [0], "vocoder": [0]}),
        "2x80": PresetMachine(2, "80GiB", {"preprocessing": [1], "semantic_ar": [0], "vocoder": [1]}),
        "4x24": PresetMachine(4, "24GiB", {"preprocessing": [3], "semantic_ar": [0, 1, 2], "vocoder": [3]}),
        "8x80": PresetMachine(8, "80GiB", {"preprocessing": [7], "semantic_ar": [0, 1, 2, 3, 4], "vocoder": [5, 6]}),
    }

    @pytest.fixture(autouse=True)
    def released(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """A stand-in for the checkpoint, and a laptop with 32 GB, of which the system has some, without instructions for bfloat16."""
        self.folder = write_released(tmp_path)
        monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 26 * GIB)
        monkeypatch.setattr("omni_torch.placement.devices.computes_bfloat16", lambda: False)

    def checkpoint(self) -> str:
        return str(self.folder)

    def test_a_smaller_machine_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without a kernel for it; with one, weights in bfloat16 stay so."""
        monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 11 * GIB)
        monkeypatch.setattr("omni_torch.placement.devices._has_kernel_for_bfloat16", lambda: False)
        config = LayeredSource("fish-s2/cpu", self.checkpoint(), platform="cpu").resolve().config
        with pytest.raises(DoesNotFitError, match=r"weights on the CPU take 19\.\d GiB in float32 \("):
            placed(config, Machine([]))
        monkeypatch.setattr("omni_torch.placement.devices._has_kernel_for_bfloat16", lambda: True)
        with pytest.raises(
            DoesNotFitError, match=r"take 11\.\d GiB in float32, decoders as they are stored in bfloat16 \("
        ):
            placed(config, Machine([]))
        monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 12 * GIB)
        assert placed(config, Machine([])).config.stage("semantic_ar").factory_args["dtype"] == "float32"
        small = LayeredSource("fish-s2/1x80", self.checkpoint(), platform="cuda").resolve().config
        planned = plan(placed(small, Machine([8 * GIB], here=False)).config)
        assert "budgets take 11.9 GiB of the 8.0 GiB of GPU 0" in problems(planned, [8 * GIB])[0]

    def test_the_sizes_are_those_of_the_released_files(self) -> None:
        index = json.loads((self.folder / "model.safetensors.index.json").read_text())
        assert index["metadata"]["total_size"] == pytest.approx(2 * 4.56e9, rel=0.01)
