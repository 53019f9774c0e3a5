"""The output side of a stage: the debug mode that looks for changed objects needs a service."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from omni_core.errors import PluginError
from omni_core.protocol.specs import StageSpec
from omni_core.stage.outputs import Outputs


def outputs(services: dict[str, str]) -> Outputs:
    outbound = SimpleNamespace(lock=threading.RLock(), local={}, services=services)
    parts: Any = (None, None, outbound, None, None)
    ignore: Any = lambda *arguments: None  # noqa: E731
    return Outputs(StageSpec(name="s"), *parts, ignore, ignore, ignore)


async def test_the_check_for_changed_objects_is_a_service(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_CHECK_MUTATION", "1")
    assert outputs({"mutation-seal": "operator:add"})._seal_of is not None
    with pytest.raises(PluginError, match=r"OMNI_CHECK_MUTATION needs .*: pip install omni-testing"):
        outputs({})
    monkeypatch.setenv("OMNI_CHECK_MUTATION", "0")
    assert outputs({})._seal_of is None
