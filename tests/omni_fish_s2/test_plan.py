"""Fish S2's budgets: from its headers and the size of its codec, so that a small card holds it."""

from __future__ import annotations

from pathlib import Path

import pytest

from omni_cli.deploy.fitting import placed
from omni_core.config.completion import Machine
from omni_core.errors import ConfigError
from omni_fish_s2.config import read_config
from omni_fish_s2.memory import networks_of
from omni_fish_s2.pipeline import fish_s2
from omni_fish_s2.slow import load_decoders
from omni_testing.tiny.fish_s2 import write_tiny_checkpoint
from omni_torch.checkpoints.hub import listing


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_checkpoint(tmp_path_factory.mktemp("fish") / "tiny")


def test_a_small_card_holds_it(checkpoint: Path) -> None:
    config = placed(fish_s2(str(checkpoint)), Machine([24 * 2**30], here=False)).config
    assert [stage.gpu for stage in config.stages] == [0, 0, 0]
    assert {stage.factory_args["dtype"] for stage in config.stages} == {"float32"}


def test_the_weights_that_are_counted_are_those_that_are_loaded(checkpoint: Path) -> None:
    config = read_config(checkpoint)
    counted = networks_of(config)["semantic_ar"].weight_values(listing(str(checkpoint)).tensors) * 4
    model = load_decoders(str(checkpoint), config)
    loaded = {each.data_ptr(): each.nbytes for each in model.parameters()}
    assert counted == sum(loaded.values())


def test_a_checkpoint_without_its_codec_is_named(checkpoint: Path) -> None:
    (checkpoint / "codec.pth").rename(checkpoint / "other")
    try:
        with pytest.raises(ConfigError, match=r"codec\.pth is missing"):
            placed(fish_s2(str(checkpoint)), Machine([]))
    finally:
        (checkpoint / "other").rename(checkpoint / "codec.pth")
