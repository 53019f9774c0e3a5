"""The running pipelines: who owns them, which one a command line means, and the end of one."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from importlib import import_module
from pathlib import Path
from unittest.mock import Mock

import pytest
from attrs import evolve
from click.testing import CliRunner
from status_reports import report, run

from omni_cli import runs
from omni_cli.profile import profile
from omni_cli.ps import ps, stop
from omni_cli.runs import Run, chosen, duration, owner
from omni_cli.status_client import running
from omni_core.errors import ConfigError

LISTEN = """
import signal, socket, sys
if "stubborn" in sys.argv: signal.signal(signal.SIGTERM, signal.SIG_IGN)
listener = socket.socket(socket.AF_UNIX)
listener.bind(sys.argv[1])
listener.listen()
print("ready", flush=True)
signal.pause()
"""


@pytest.fixture
def listening(run_folder: Path) -> Iterator[Callable[..., tuple[Path, int]]]:
    """Starts processes that own a run folder and never answer."""
    started: list[subprocess.Popen[bytes]] = []

    def start(*arguments: str) -> tuple[Path, int]:
        folder = run_folder / f"r{len(started)}"
        folder.mkdir(0o700)
        command = [sys.executable, "-S", "-c", LISTEN, str(folder / "coordinator.sock"), *arguments]
        started.append(subprocess.Popen(command, stdout=subprocess.PIPE))
        stdout = started[-1].stdout
        assert stdout is not None
        assert stdout.readline() == b"ready\n"
        return folder, started[-1].pid

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture(autouse=True)
def soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_cli.status_client._ANSWER_SECONDS", 0.05)


def there(monkeypatch: pytest.MonkeyPatch, *found: Run) -> None:
    monkeypatch.setattr(runs, "runs", lambda folders=None: list(found))
    monkeypatch.setattr(import_module("omni_cli.ps"), "runs", lambda: list(found))


def test_the_owner_of_a_folder_is_the_process_that_listens(run_folder: Path) -> None:
    folder = run_folder / "x"
    folder.mkdir()
    assert owner(folder) is None
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "coordinator.sock"))
        listener.listen()
        assert owner(folder) == os.getpid()
    assert owner(folder) is None, "its socket is left behind by a process that was killed"


def test_only_private_folders_of_this_user_are_asked(
    listening: Callable[..., tuple[Path, int]], run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(run_folder))
    monkeypatch.setattr("omni_cli.runs.owner", connected := Mock(return_value=None))
    folder, _ = listening()
    mine = folder.rename(run_folder / "omni-mine")
    (run_folder / "omni-link").symlink_to(mine)
    assert running() == [mine]
    with pytest.raises(ConfigError, match="it has ended"):
        chosen(str(run_folder / "omni-link"))  # it is named, and the folder is this user's
    connected.assert_called_once_with(mine)
    for mode in (0o777, 0o770, 0o755, 0o701):
        mine.chmod(mode)
        assert running() == []
        with pytest.raises(ConfigError, match=r"no run folder of this user: .*0700"):
            chosen(str(mine))
    mine.chmod(0o700)
    monkeypatch.setattr("os.getuid", lambda: mine.stat().st_uid + 1)
    assert running() == []
    with pytest.raises(ConfigError, match="no run folder of this user"):
        chosen(str(mine))
    answer = CliRunner().invoke(profile, [str(mine)])
    assert isinstance(answer.exception, ConfigError)
    connected.assert_called_once_with(mine)
    (run_folder / "omni-link").unlink()
    mine.rename(folder)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.9, "59 s"), (200, "3 min 20 s"), (3 * 3600 + 61, "3 h 1 min"), (90_000, "1 d 1 h")],
)
def test_times(seconds: float, text: str) -> None:
    assert duration(seconds) == text


def test_a_run_is_named_by_folder_process_or_name(monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = run("/tmp/omni-a1", 7, report()), run("/tmp/omni-b2", 8, report())
    there(monkeypatch, first, second)
    assert chosen("8") is second
    assert chosen("omni-a1") is first
    with pytest.raises(
        ConfigError, match=r"several pipelines run; .*\n  qwen3-omni \(pid 7, up 48 s\): /tmp/omni-a1\n"
    ):
        chosen(None)
    with pytest.raises(ConfigError, match="several pipelines run"):
        chosen("qwen3-omni")
    with pytest.raises(ConfigError, match="no running pipeline is called 'qwen3-omi'; did you mean 'qwen3-omni'"):
        chosen("qwen3-omi")
    there(monkeypatch, first)
    assert chosen(None) is first
    there(monkeypatch)
    with pytest.raises(ConfigError, match="no pipeline runs here"):
        chosen(None)


def test_states_are_summed_up() -> None:
    assert run(status=report()).state == "ready"
    assert run(status=report(states={"thinker": "restarting"})).state == "thinker restarting"
    assert run(status=report(processes="pipeline", states={"pipeline": "starting"})).state == "starting"
    assert run().state == "does not answer"


def test_the_list(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, run(status=report()), run("/tmp/omni-b2", 8))
    answer = CliRunner(env={"COLUMNS": "80"}).invoke(ps, [])
    rows = [line.split() for line in answer.stdout.splitlines()]
    assert rows[1] == ["qwen3-omni", "7", "48", "s", "ready", "2", "45", "/tmp/omni-a1"]
    assert rows[2][:2] == ["?", "8"]
    first, second = json.loads(CliRunner().invoke(ps, ["--json"]).stdout)
    assert (first["name"], first["pid"], first["state"], first["requests"]["completed"]) == (
        "qwen3-omni",
        7,
        "ready",
        45,
    )
    assert (second["name"], second["uptime"], second["state"]) == (None, None, "does not answer")
    there(monkeypatch)
    assert CliRunner().invoke(ps, []).stdout == "No pipeline runs here.\n"


def test_stop_ends_the_owner(listening: Callable[..., tuple[Path, int]]) -> None:
    folder, pid = listening()
    answer = CliRunner().invoke(stop, [str(folder), "--json"])
    assert answer.exit_code == 0, answer.output
    assert json.loads(answer.stdout) == {"stopped": {"name": "?", "pid": pid, "folder": str(folder)}}
    assert owner(folder) is None
    with pytest.raises(ConfigError, match="it has ended"):
        CliRunner().invoke(stop, [str(folder)], catch_exceptions=False)


def test_stop_does_not_wait_for_ever(listening: Callable[..., tuple[Path, int]]) -> None:
    folder, pid = listening("stubborn")
    answer = CliRunner().invoke(stop, [str(folder), "--timeout", "0.1"])
    assert f"has not ended within 0.1 s; it runs: {sys.executable}" in str(answer.exception)
    assert f"kill -9 {pid}" in str(answer.exception)
    assert owner(folder) == pid


def test_a_run_is_completed_by_its_process(monkeypatch: pytest.MonkeyPatch) -> None:
    there(monkeypatch, run(status=report()), run("/tmp/omni-b2", 85, report()))
    found = runs.complete_run(None, None, "8")  # type: ignore[arg-type]
    assert [(item.value, item.help) for item in found] == [("85", "qwen3-omni /tmp/omni-b2")]


def test_a_pipeline_of_another_user_is_not_there(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(run_folder / "coordinator.sock"))
        listener.listen()
        assert owner(run_folder) == os.getpid()
        own = os.getuid()
        monkeypatch.setattr(os, "getuid", lambda: own + 1)
        assert owner(run_folder) is None


def test_brackets_of_a_name_are_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    status = report()
    there(monkeypatch, run(status=evolve(status, pipeline="[red]mine[/]")))
    assert "[red]mine[/]" in CliRunner(env={"COLUMNS": "80"}).invoke(ps, []).stdout
