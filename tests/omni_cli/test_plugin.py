"""The distribution as a plugin: light, declared, with commands that can be imported."""

from __future__ import annotations

from typing import ClassVar

from omni_testing import PluginConformance


class TestCliPlugin(PluginConformance):
    entry_point: ClassVar[str] = "cli"
