"""Every installed plugin, found by its entry point."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest

from omni_core.testing import PluginConformance

INSTALLED = sorted({each.name for each in entry_points(group="omni")})


@pytest.mark.parametrize("entry_point", INSTALLED, scope="class")
class TestInstalled(PluginConformance):
    @pytest.fixture(autouse=True)
    def _name(self, entry_point: str, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(type(self), "entry_point", entry_point, raising=False)


def test_ours_are_installed() -> None:
    assert {"relay-shm", "engine", "qwen3"} <= set(INSTALLED)
