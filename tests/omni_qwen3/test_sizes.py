"""Sizes from ``config.json`` alone are those of the checkpoint's tensors, and enough for a plan."""

from __future__ import annotations

from math import prod
from pathlib import Path

import pytest
from click.testing import CliRunner
from released import RELEASED
from released_files import ENCODERS, released_shapes, write_released

from omni_core.cli.main import omni
from omni_core.errors import ConfigError
from omni_qwen3.config import parse_config
from omni_qwen3.memory import fetch, networks_of
from omni_qwen3.sizes import tensors_of
from omni_torch.checkpoints.headers import TensorInfo

MODEL = parse_config(RELEASED)


@pytest.mark.parametrize("ranks", [1, 2, 4, 8])
def test_every_rank_has_as_many_weights_as_by_the_headers(ranks: int) -> None:
    headers = {name: TensorInfo("BF16", prod(shape)) for name, shape in (released_shapes(RELEASED) | ENCODERS).items()}
    for name, network in networks_of(MODEL).items():
        here, there = (network.weight_values(tensors, ranks) for tensors in (tensors_of(MODEL), headers))
        tolerance = 1e-3 if network.cache is not None else 0.2
        assert here == pytest.approx(there, rel=tolerance), name


def test_a_plan_needs_the_config_alone(tmp_path: Path) -> None:
    write_released(tmp_path)
    for path in tmp_path.glob("*.safetensors*"):
        path.unlink()

    def told(*arguments: str) -> tuple[int, str]:
        found = CliRunner().invoke(omni, ["plan", "qwen3-omni", "--model", str(tmp_path), *arguments])
        return found.exit_code, f"{found.output} {found.exception}"

    code, fits = told("--gpus", "4", "--gpu-memory", "24GiB")
    assert code == 0
    assert "thinker: bfloat16 weights 15.1 GiB" in fits
    assert "(sizes from config.json)" in fits
    code, refused = told("--gpus", "2", "--gpu-memory", "24GiB")
    assert (code, "It would fit 4 GPUs of 24.0 GiB or 2 GPUs of 40.0 GiB or 1 GPU of 80.0 GiB" in refused) == (1, True)
    narrow = [f"--set={name}.factory_args.quantization=float8_weight_only" for name in ("thinker", "talker_ar")]
    code, fits = told("--gpus", "2", "--gpu-memory", "24GiB", *narrow)
    assert (code, "thinker: float8 weights 14.8 GiB" in fits) == (0, True)
    assert "holds no weights" not in told()[1], "a plan of this machine loads nothing"
    with pytest.raises(ConfigError, match="holds no weights"):
        fetch(str(tmp_path))
