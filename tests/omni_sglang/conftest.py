"""SGLang runs here without a GPU, on the stubs of ``cpu_shim``, and only in the nox session ``sglang``."""

from __future__ import annotations

import os
import sys
from importlib.util import find_spec, module_from_spec, spec_from_file_location
from pathlib import Path

HERE = Path(__file__).parent
END_TO_END = HERE.parent / "end_to_end"

if find_spec("sglang") is None:
    collect_ignore_glob = ["test_*.py"]
else:
    sys.path.insert(0, str(HERE))
    if find_spec("sgl_kernel") is None:
        import cpu_shim

        cpu_shim.install()
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(HERE / "site"), os.environ.get("PYTHONPATH")]))
    spec = spec_from_file_location("end_to_end_fixtures", END_TO_END / "conftest.py")
    assert spec is not None
    assert spec.loader is not None
    fixtures = module_from_spec(spec)
    spec.loader.exec_module(fixtures)
    cases, checkpoints, files, reference = fixtures.cases, fixtures.checkpoints, fixtures.files, fixtures.reference
