"""The declared GPU budgets of the released model: one 80 GB GPU holds it in 16 bits, and a plan that does not fit is an
error.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from omni_core.cli.main import omni


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["--option", "dtype=bfloat16", "--gpus", "1"], 0, "gpu 0: 77.0 GiB of 80.0 GiB given to 5 stages"),
        (["--option", "dtype=bfloat16", "--gpus", "2", "--set", "talker_ar.gpu=1"], 0, "gpu 1: 8.0 GiB of 80.0 GiB"),
        (["--gpus", "1"], 1, "stages[thinker].gpu_memory: budgets take 154.0 GiB of the 80.0 GiB of GPU 0"),
    ],
)
def test_the_released_model_on_80_gb_cards(tmp_path: Path, arguments: list[str], code: int, expected: str) -> None:
    (tmp_path / "config.json").write_text("{}")
    command = ["plan", "qwen3-omni", "--model", str(tmp_path), "--option", "gpu=0", "--gpu-memory", "80GiB"]
    result = CliRunner().invoke(omni, [*command, *arguments])
    assert result.exit_code == code, result.output
    assert expected in result.output + str(result.exception)
