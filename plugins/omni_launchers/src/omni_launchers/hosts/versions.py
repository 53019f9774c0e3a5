"""The comparison of two hosts: the versions of omni's distributions there, and the config that they work for."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping

from omni_core import __version__
from omni_core.api import PipelineConfig, load_plugins
from omni_core.runtime_api import unstructure


def installed() -> dict[str, str]:
    """Return the versions of omni-core and of every distribution with plugins."""
    return {"omni-core": __version__} | {each.distribution: each.version for each in load_plugins().records}


def difference(here: Mapping[str, str], there: Mapping[str, str]) -> str:
    """Return what differs of the distributions that both hosts have, for a message of ``there``; empty if nothing does."""
    found = [
        f"{name} {there[name]} is installed there, and {here[name]} here"
        for name in sorted(here.keys() & there.keys())
        if here[name] != there[name]
    ]
    return f"{'; '.join(found)}; make them equal" if found else ""


def digest(config: PipelineConfig) -> str:
    """Return a short digest of a resolved config: 12 hexadecimal digits."""
    return hashlib.blake2b(json.dumps(unstructure(config)).encode(), digest_size=6).hexdigest()
