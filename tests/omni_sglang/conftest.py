"""SGLang runs here without a GPU, on the stand-ins of ``cpu_shim``, and only in the nox session ``sglang``."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "omni_engine")]

if find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]
elif find_spec("sgl_kernel") is None:
    import cpu_shim

    cpu_shim.install()
    os.environ["PYTHONPATH"] = os.pathsep.join([str(HERE / "site"), *filter(None, [os.environ.get("PYTHONPATH")])])

_spec = spec_from_file_location("end_to_end_fixtures", HERE.parent / "end_to_end" / "conftest.py")
assert _spec is not None
assert _spec.loader is not None
_fixtures = module_from_spec(_spec)
_spec.loader.exec_module(_fixtures)
cases, checkpoints, files, reference = (_fixtures.cases, _fixtures.checkpoints, _fixtures.files, _fixtures.reference)
