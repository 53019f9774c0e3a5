"""Places of the released model's stages on machines that are not here, and the presets: from the headers of its tensors alone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from math import prod
from pathlib import Path
from typing import Any, ClassVar

import pytest
from click.testing import CliRunner
from qwen25_released import released, released_shapes, write_released

from omni_cli.deploy.budgets import problems
from omni_cli.deploy.fitting import placed
from omni_core.cli.main import omni
from omni_core.config.completion import DoesNotFitError, Machine
from omni_core.config.placement import plan
from omni_core.errors import ConfigError
from omni_qwen25.code2mel import create_code2mel
from omni_qwen25.config import parse_config, read_config
from omni_qwen25.memory import networks_of, tensors_of
from omni_qwen25.networks import load_talker, load_thinker
from omni_qwen25.pipeline import qwen25_omni, qwen25_omni_text
from omni_testing import PresetConformance
from omni_testing.presets import PresetMachine
from omni_torch.checkpoints.headers import TensorInfo
from omni_torch.checkpoints.hub import listing

GIB = 2**30
DECODERS_AND_ENCODERS = ("image_encoder", "audio_encoder", "thinker", "talker")


@pytest.mark.parametrize("size", ["7B", "3B"])
def test_sizes_from_the_config_alone_are_those_of_the_tensors(size: str) -> None:
    raw = released(size)
    model = parse_config(raw)
    headers = {name: TensorInfo("BF16", prod(shape)) for name, shape in released_shapes(raw).items()}
    for name, network in networks_of(model).items():
        here, there = (network.weight_values(tensors, 1) for tensors in (tensors_of(model), headers))
        assert here == pytest.approx(there, rel=1e-3 if network.cache is not None else 0.1), name


def test_a_plan_needs_the_config_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({**released("7B"), "architectures": ["Qwen2_5OmniModel"]}))
    arguments = ["plan", "qwen25", "--model", str(tmp_path), "--gpus", "1", "--gpu-memory", "48GiB"]
    told = CliRunner().invoke(omni, arguments)
    assert (told.exit_code, "thinker: bfloat16 weights 14.2 GiB" in told.output) == (0, True), told.output
    assert "(sizes from config.json)" in told.output


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    made = write_released(tmp_path_factory.mktemp("released"))
    yield made
    for path in made.iterdir():
        path.unlink()


@pytest.mark.parametrize(
    ("gpus", "memory", "ranks", "devices", "positions"),
    [
        # GPUs, GiB of each, thinker ranks, devices, positions of the thinker's KV cache
        (1, 40, 1, {"thinker": 0, "talker": 0, "code2mel": 0, "mel2wav": 0, "image_encoder": 0}, 100_000),
        (2, 24, 1, {"thinker": 0, "talker": 1, "code2mel": 1, "mel2wav": 1, "audio_encoder": 1}, 110_000),
        (3, 12, 2, {"thinker": [0, 1], "talker": 2}, 28_000),
    ],
)
def test_the_released_model_is_placed_on_the_gpus_that_there_are(
    folder: Path, gpus: int, memory: int, ranks: int, devices: dict[str, Any], positions: int
) -> None:
    placement = placed(qwen25_omni(str(folder)), Machine([memory * GIB] * gpus, here=False))
    config = placement.config
    assert problems(plan(config), [memory * GIB] * gpus) == []
    assert config.stage("thinker").tp_size == ranks
    assert {name: config.stage(name).gpu for name in devices} == devices
    assert {config.stage(name).factory_args["dtype"] for name in DECODERS_AND_ENCODERS} == {"bfloat16"}
    assert {config.stage(name).factory_args["dtype"] for name in ("code2mel", "mel2wav")} == {"float32"}
    found = int(placement.notes["thinker"].rpartition(": ")[2].split()[0].replace(",", ""))
    assert positions <= found < 1.3 * positions


def test_what_does_not_fit_is_refused_with_what_would(folder: Path) -> None:
    with pytest.raises(
        DoesNotFitError, match=r"thinker 15\.\d GiB, talker .* It would fit 2 GPUs of 24\.0 GiB or 1 GPU of 32"
    ):
        placed(qwen25_omni(str(folder)), Machine([24 * GIB], here=False))
    assert placed(qwen25_omni_text(str(folder)), Machine([24 * GIB], here=False)).config.stage("thinker").gpu == 0


def test_the_sizes_are_those_of_what_is_loaded(tiny: dict[str, Path]) -> None:
    """On a tiny checkpoint, whose thinker, talker and token2wav can be made whole."""
    path = str(tiny["b"])
    config, tensors = read_config(path), listing(path).tensors
    networks = networks_of(config)
    assert config.talker is not None
    loaded = {"thinker": load_thinker(path, config), "talker": load_talker(path, config.talker)}
    loaded["code2mel"] = create_code2mel(path)._network._network
    for name, model in loaded.items():
        held = sum(each.numel() for each in model.state_dict().values())
        assert networks[name].weight_values(tensors) == held, name
    assert sum(each.weight_values(tensors) for each in networks.values()) == sum(
        each.values for each in tensors.values()
    )
    assert networks["thinker"].ranks == (1, 2)


def test_devices_and_dtypes_that_do_not_exist_are_refused(tiny: dict[str, Path]) -> None:
    path = str(tiny["a"])
    assert qwen25_omni(path).stage("thinker").gpu == "auto"
    assert qwen25_omni(path, gpu="none").stage("thinker").gpu is None
    with pytest.raises(ConfigError, match="--option gpu=some: must be the number of a GPU, auto, or none"):
        qwen25_omni(path, gpu="some")
    with pytest.raises(ConfigError, match="there is no such dtype; there are: auto, float32"):
        qwen25_omni(path, dtype="int8")  # type: ignore[typeddict-item]
    with pytest.raises(ConfigError, match="token2wav computes in float32, as in the reference, not in bfloat16"):
        create_code2mel(path, dtype="bfloat16")


class TestPresets(PresetConformance):
    pipeline = "qwen25"
    machines: ClassVar = {
        "cpu": PresetMachine(devices={"thinker": [None], "talker": [None], "code2mel": [None]}),
        "1x48": PresetMachine(1, "48GiB", {"thinker": [0], "talker": [0], "code2mel": [0], "mel2wav": [0]}),
        "2x24": PresetMachine(2, "24GiB", {"thinker": [0], "talker": [1], "code2mel": [1], "mel2wav": [1]}),
        "4x16": PresetMachine(4, "16GiB", {"thinker": [0, 1], "talker": [2], "code2mel": [3], "image_encoder": [3]}),
    }

    @pytest.fixture(autouse=True)
    def machine(self, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
        """A machine with 48 GB, of which the system has some, whose processor has no instructions for bfloat16."""
        monkeypatch.setattr("omni_torch.placement.devices.available_memory", lambda: 40 * GIB)
        monkeypatch.setattr("omni_torch.placement.devices.computes_bfloat16", lambda: False)
        self.folder = folder

    def checkpoint(self) -> str:
        return str(self.folder)
