"""Commands are imported before tests replace `load_plugins`."""

from __future__ import annotations

import pytest

from omni_core.plugins import load_plugins
from omni_core.references import load


@pytest.fixture(scope="session", autouse=True)
def _commands_are_imported() -> None:
    """Import every command: a module that is first imported while a test has replaced ``omni_core.plugins.load_plugins`` would keep the
    replacement, and commands of later tests in this process would find no plugins.
    """
    for component, _ in load_plugins().components("omni_commands"):
        load(component.target)
