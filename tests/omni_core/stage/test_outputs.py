"""The output side of a stage: the debug mode that looks for changed objects needs its distribution."""

from __future__ import annotations

import sys

import pytest

from omni_core.errors import PluginError
from omni_core.stage import outputs


def test_the_check_for_changed_objects_needs_omni_testing(monkeypatch: pytest.MonkeyPatch) -> None:
    seal = outputs._seal_of()({"a": [1]}, "first")
    seal.check("second")
    monkeypatch.setitem(sys.modules, "omni_testing.mutation", None)
    with pytest.raises(PluginError, match=r"OMNI_CHECK_MUTATION is set, .*: pip install omni-testing"):
        outputs._seal_of()
