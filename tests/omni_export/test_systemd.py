"""Units of systemd: they say what systemd-analyze accepts, and run commands that omni knows."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from configparser import RawConfigParser
from pathlib import Path
from typing import Any

import pytest
from omni_export_reading import parsed

from omni_launchers.hosts.curve import CurveKeys


@pytest.fixture
def made(export: Any, folder: Path) -> Path:
    given = ("--name", "demo", "--head", "10.0.0.1", "--out", "made", "--set", "env_defaults.A=50% of $HOME")
    result = export("systemd", "deploy.yaml", *given)
    assert result.exit_code == 0, result.output
    return folder / "made"


def unit(path: Path) -> dict[str, str]:
    parser = RawConfigParser(strict=False)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read(path)
    return dict(parser["Service"])


def test_the_commands_are_those_of_omni(made: Path) -> None:
    assert {each.name for each in made.iterdir()} == {
        "deploy.yaml",
        "run.key",
        "environment",
        "omni-demo.service",
        "omni-demo-voice-1.service",
    }
    line = unit(made / "omni-demo.service")["ExecStart"]
    assert '"env_defaults.A=50%% of $$HOME"' in line
    name, serve = parsed(shlex.split(line))
    assert (name, serve["pipeline"], serve["host"]) == ("serve", "/etc/omni/deploy.yaml", "127.0.0.1")
    assert (serve["accept"], serve["host_key"]) == ("tcp://10.0.0.1:7555", "${CREDENTIALS_DIRECTORY}/run.key")
    name, join = parsed(shlex.split(unit(made / "omni-demo-voice-1.service")["ExecStart"]))
    assert (name, join["head"], join["name"]) == ("hosts join", "tcp://10.0.0.1:7555", "Voice_1")
    assert str(join["key_file"]) == "${CREDENTIALS_DIRECTORY}/run.key"
    assert unit(made / "omni-demo.service")["TimeoutStopSec"] == "46"


def test_keys_are_private(made: Path) -> None:
    CurveKeys.read(made / "run.key")
    assert (made / "environment").stat().st_mode & 0o777 == 0o600


def test_systemd_accepts_them(export: Any, folder: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("needs systemd-analyze")
    given = ("deploy.yaml", "--name", "demo", "--head", "::1", "--out", "made", "--omni", sys.executable)
    assert export("systemd", *given).exit_code == 0
    (folder / "made" / "wrong.service").write_text("[Service]\nExecStart=nowhere\nTimeoutStopSec=x\n")

    def verified(name: str) -> str:
        command = ["systemd-analyze", "--man=no", "--generators=no", "verify", str(folder / "made" / name)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        return "".join(line for line in done.stderr.splitlines(keepends=True) if name in line)

    assert verified("wrong.service")
    assert verified("omni-demo.service") == ""
    assert verified("omni-demo-voice-1.service") == ""


def test_the_heads_address_is_needed_for_hosts_only(export: Any) -> None:
    result = export("systemd", "deploy.yaml", "--out", "made")
    assert result.exit_code == 2
    assert "--head: required" in result.output
    assert export("systemd", "demo", "--out", "alone").exit_code == 0
    wrong = export("systemd", "deploy.yaml", "--head", "10.0.0.1 --x", "--out", "made")
    assert "must be an address" in str(wrong.exception)
