"""The folder of a run: private, with room for socket addresses, and gone when its owner is killed."""

from __future__ import annotations

import fcntl
import os
import signal
import stat
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from omni_core.errors import ConfigError, StartupError
from omni_core.processes.run_directory import LONGEST_SOCKET_PATH, DirectoryCleaner, restore_directory, run_directory


def test_it_is_private_and_in_the_base_path() -> None:
    # not tmp_path: a checkout in a deep folder makes it too long for socket addresses
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        first, second = run_directory(folder), run_directory(folder)
        assert first != second
        assert first.parent == Path(folder)
        assert stat.S_IMODE(first.stat().st_mode) == 0o700


def test_a_base_path_that_is_too_long_or_not_there_is_an_error(tmp_path: Path) -> None:
    long = tmp_path / ("x" * LONGEST_SOCKET_PATH)
    with pytest.raises(ConfigError, match=r"endpoints\.base_path: .* is too long for socket addresses"):
        run_directory(str(long))
    with pytest.raises(ConfigError, match=r"endpoints\.base_path: no folder can be made in /nowhere"):
        run_directory("/nowhere")


def test_a_long_tmpdir_is_left_for_a_short_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", "/tmp/" + "x" * LONGEST_SOCKET_PATH)
    folder = run_directory(None)
    assert folder.parent == Path("/tmp")
    folder.rmdir()


def test_a_cleaner_that_is_dismissed_leaves_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "0.sock").touch()
    DirectoryCleaner(folder).dismiss()
    assert not folder.exists()


OWNER = """
import sys, time
from pathlib import Path
from omni_core.processes.run_directory import DirectoryCleaner
cleaner = DirectoryCleaner(Path(sys.argv[1]))
print("ready", flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("name", ["run", "a b'c; $(x)"])
def test_the_folder_of_an_owner_that_was_killed_is_removed(tmp_path: Path, name: str) -> None:
    folder, other = tmp_path / name, tmp_path / "other"
    for each in (folder, other):
        each.mkdir()
        (each / "0.sock").touch()
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder)], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    assert owner.stdout.readline() == "ready\n"
    owner.send_signal(signal.SIGKILL)
    owner.wait()
    until = time.monotonic() + 10
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.01)
    assert not folder.exists()
    assert (other / "0.sock").exists()


def is_locked(folder: Path) -> bool:
    """Return whether systemd-tmpfiles spares a folder: it tries to lock it, as it says in tmpfiles.d(5)."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return False


def test_the_folder_is_locked_while_the_run_lasts(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    cleaner = DirectoryCleaner(folder)
    assert is_locked(folder)
    folder.rmdir()
    restore_directory(folder)
    assert not is_locked(folder)
    cleaner.hold()
    assert is_locked(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    cleaner.dismiss()
    assert not folder.exists()


def test_a_folder_that_somebody_else_has_made_is_not_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch()
    for name in ("link", "file"):
        with pytest.raises(StartupError, match=f"folder .*/{name} was removed, and made by somebody else"):
            restore_directory(tmp_path / name)
    restore_directory(tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 4711)
    with pytest.raises(StartupError, match="made by somebody else"):
        restore_directory(tmp_path)


def test_without_room_for_temporary_files_there_is_one_sentence(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", None)
    monkeypatch.setattr(tempfile, "_candidate_tempdir_list", lambda: ["/nowhere"])
    with pytest.raises(ConfigError, match=r"^no temporary file can be made \(.*\): set TMPDIR .* see `ulimit -f`$"):
        run_directory(None)
