"""SGLang runs here without a GPU, on the stand-ins of ``cpu_shim``, and only in the nox session ``sglang``."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "omni_engine")]

if find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    import torch

    if not torch.cuda.is_available():
        import cpu_shim

        cpu_shim.install()
