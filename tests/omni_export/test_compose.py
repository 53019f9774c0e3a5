"""Compose files: services that run commands which omni knows, with the devices and secrets that they need."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omni_export_reading import documents, parsed

from omni_launchers.hosts.curve import CurveKeys


@pytest.fixture
def made(export: Any, folder: Path) -> dict[str, Any]:
    result = export(
        "compose", "deploy.yaml", "--image", "omni:0.1", "--name", "demo", "--gpus", "head=1", "--out", "made"
    )
    assert result.exit_code == 0, result.output
    (document,) = documents((folder / "made" / "compose.yaml").read_text())
    assert isinstance(document, dict)
    return document


def test_the_commands_are_those_of_omni(made: dict[str, Any]) -> None:
    services = made["services"]
    assert set(services) == {"head", "voice-1"}
    name, serve = parsed(services["head"]["command"])
    assert (name, serve["pipeline"], serve["accept"]) == ("serve", "/etc/omni/deploy.yaml", "tcp://head:7555")
    assert services["head"]["hostname"] == "head"
    name, join = parsed(services["voice-1"]["command"])
    assert (name, join["head"], join["name"]) == ("hosts join", "tcp://head:7555", "Voice_1")
    assert serve["host_key"] == str(join["key_file"]) == "/run/secrets/run.key"
    assert services["head"]["stop_grace_period"] == "46s"


def test_devices_are_not_shared(made: dict[str, Any]) -> None:
    ids = {
        name: service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name, service in made["services"].items()
    }
    assert ids == {"head": ["0"], "voice-1": ["1", "2"]}


def test_files_and_secrets_are_there_and_private(made: dict[str, Any], folder: Path) -> None:
    out = folder / "made"
    assert (out / "files" / "deploy.yaml").read_text() == (folder / "deploy.yaml").read_text()
    CurveKeys.read(out / made["secrets"]["run.key"]["file"])
    assert (out / ".env").stat().st_mode & 0o777 == 0o600
    assert (out / ".env").read_text().startswith("OMNI_API_KEY=")
    assert made["services"]["head"]["environment"]["OMNI_API_KEY"].startswith("${OMNI_API_KEY:?")
    assert "OMNI_API_KEY" not in made["services"]["voice-1"]["environment"]


def test_dollars_of_a_command_are_not_variables_of_compose(export: Any, folder: Path) -> None:
    export("compose", "demo", "--image", "omni:0.1", "--out", "made", "--set", "thinker.env.A=$HOME")
    (document,) = documents((folder / "made" / "compose.yaml").read_text())
    assert "thinker.env.A=$$HOME" in document["services"]["head"]["command"]
    assert "secrets" not in document


def test_the_health_check_asks_the_server(made: dict[str, Any]) -> None:
    command, python, flag, script = made["services"]["head"]["healthcheck"]["test"]
    assert (command, python, flag) == ("CMD", "python", "-c")
    with pytest.raises(OSError, match="refused"):
        exec(compile(script.replace("9000", "1"), "healthcheck", "exec"))
