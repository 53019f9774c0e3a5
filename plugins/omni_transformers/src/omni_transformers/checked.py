"""The record of the architectures that were compared with transformers, made by ``tests/omni_transformers/record.py``."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path

FILE = Path(__file__).with_name("checked.json")


@cache
def checked() -> dict[str, dict[str, str]]:
    """Return by architecture: ``backend``, what it ``streams``, and the version of ``transformers`` that it was compared with."""
    found: dict[str, dict[str, str]] = json.loads(FILE.read_text(encoding="utf-8"))
    return found
