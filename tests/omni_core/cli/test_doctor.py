"""``omni doctor``: requirements of what is installed, the default relay, optional components, and JSON."""

from __future__ import annotations

import json
from importlib import import_module
from importlib.metadata import Distribution
from typing import Any

import pytest
from click.testing import CliRunner

from omni_core.hookspecs import Component
from omni_core.launch.requirements import unmet
from omni_core.plugins import PluginRecord, PluginRegistry

command = import_module("omni_core.cli.doctor")


class Installed(Distribution):
    """A distribution with these requirements."""

    def __init__(self, *requirements: str) -> None:
        lines = [f"Requires-Dist: {each}" for each in requirements]
        self._text = "\n".join(["Metadata-Version: 2.1", "Name: omni-mine", "Version: 3.0", *lines, ""])

    def read_text(self, filename: str) -> str | None:
        return self._text if filename == "METADATA" else None

    def locate_file(self, path: Any) -> Any:
        raise NotImplementedError


def test_missing_or_old_packages_are_named_with_the_command() -> None:
    needs = ("omni-core>=0.1,<0.2", "omni-core>=9", "no-such-thing >=2", "pytest; extra == 'test'", "click[a,b] (>=8)")
    assert list(unmet(Installed(*needs))) == [
        "omni-mine 3.0 needs omni-core>=9, and 0.1.0 is installed: pip install 'omni-core>=9'",
        "omni-mine 3.0 needs no-such-thing, which is not installed: pip install 'no-such-thing>=2'",
    ]


def looked_at(
    monkeypatch: pytest.MonkeyPatch, *relays: Component, needs: str = "omni-core"
) -> tuple[int, dict[str, Any]]:
    record = PluginRecord("p", "dist-p", "1.0", "m", components={"omni_relays": list(relays)})
    monkeypatch.setattr(command, "load_plugins", lambda: PluginRegistry([record]))
    monkeypatch.setattr(command, "ours", lambda: [Installed(needs)])
    result = CliRunner().invoke(command.doctor, ["--json"])
    assert result.exit_code == (1 if json.loads(result.stdout)["to_do"] else 0)
    return result.exit_code, json.loads(result.stdout)


def test_the_default_relay_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    _, report = looked_at(monkeypatch)
    assert any("the default relay 'shm' is not installed" in line for line in report["to_do"])
    _, report = looked_at(monkeypatch, Component("shm", "json:loads", "s"))
    assert not any("relay" in line for line in report["to_do"])


def test_optional_components_are_not_errors(monkeypatch: pytest.MonkeyPatch) -> None:
    relays = (
        Component("away", "json:loads", "s", probe=lambda: "no such device"),
        Component("wrong", "json:laods", "s"),
        Component("shm", "json:loads", "s"),
    )
    code, report = looked_at(monkeypatch, *relays, needs="omni-core>=9")
    assert code == 1
    assert report["not_usable"] == {"relay away": "no such device"}
    assert any(line.startswith("relay wrong: its target 'json:laods'") for line in report["to_do"])
    assert any("needs omni-core>=9" in line for line in report["to_do"])
    assert report["machine"]["cores"] >= 1
