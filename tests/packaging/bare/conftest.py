"""These tests run only where the core is alone: in the nox session ``bare``."""

from importlib.util import find_spec

if find_spec("omni_cli") is not None:
    collect_ignore_glob = ["test_*.py"]
