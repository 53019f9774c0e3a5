"""Every kernel compiles for GPUs. That needs no GPU, but a process in which Triton does not interpret."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest


@pytest.mark.skipif(find_spec("triton") is None, reason="triton is not installed")
@pytest.mark.parametrize("capability", [80, 90])
def test_every_kernel_compiles(capability: int, tmp_path: Path) -> None:
    pytest.importorskip("omni_torch.engine")
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    script = Path(__file__).parents[1] / "helpers/compile_all.py"
    done = subprocess.run(
        [sys.executable, str(script), str(capability)], env=environment, capture_output=True, text=True, timeout=250
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.split()
    assert len(lines) == len(set(lines)) >= (56 if capability < 89 else 67), "one line per kernel, dtype and tile"
