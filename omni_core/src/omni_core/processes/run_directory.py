"""The folder of a run: private, short enough for socket addresses, and removed when its owner ends in any way."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import tempfile
from pathlib import Path

from omni_core.errors import ConfigError, StartupError
from omni_core.forks import forget, keep_from_forks
from omni_core.processes.family import SWEEP, run_mark, unmarked

LONGEST_SOCKET_PATH = 107
"""The limit of the address of a Unix-domain socket in bytes."""


def temporary_directory() -> str:
    """Return the folder where temporary files go.

    Raises:
        ConfigError: there is none that can be written.
    """
    try:
        return tempfile.gettempdir()
    except OSError as error:
        raise ConfigError(
            f"no temporary file can be made ({error.strerror}): set TMPDIR to a folder with room that you may write; see `ulimit -f`"
        ) from None


def run_directory(base_path: str | None) -> Path:
    """A private (0700) folder for one run's sockets, in ``base_path`` or where temporary files go.

    Raises:
        ConfigError: ``base_path`` cannot be used.
    """
    base = base_path or temporary_directory()
    too_long = len(os.fsencode(base)) + len("/omni-12345678/coordinator.sock") > LONGEST_SOCKET_PATH
    if too_long and base_path is not None:
        raise ConfigError(
            f"endpoints.base_path: {base} is too long for socket addresses ({LONGEST_SOCKET_PATH} bytes); choose a shorter one"
        )
    try:
        return Path(tempfile.mkdtemp(prefix="omni-", dir="/tmp" if too_long else base))
    except OSError as error:
        raise ConfigError(f"endpoints.base_path: no folder can be made in {base}: {error.strerror}") from error


def restore_directory(directory: str | Path) -> None:
    """Make a run's folder again if it is gone: cleaners of temporary files remove what is old.

    Raises:
        StartupError: it cannot be made, or somebody else has.
    """
    try:
        os.mkdir(directory, 0o700)
    except FileExistsError:
        found = os.lstat(directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid():
            raise StartupError(f"the run's folder {directory} was removed, and made by somebody else") from None
    except OSError as error:
        raise StartupError(
            f"the run's folder {directory} was removed and cannot be made again: {error.strerror}"
        ) from error


_CLEAN = SWEEP + 'trap "" INT TERM HUP; read -r _; sweep "$2"; rm -rf -- "$1"'


class DirectoryCleaner:
    """Ends what the stage processes of a run have started, and removes its folder, when its owner ends in any way: a shell that waits
    for the end of a pipe.
    """

    def __init__(self, directory: Path) -> None:
        self._directory, self._lock = directory, -1
        self.hold()
        self._process = subprocess.Popen(
            ["/bin/sh", "-c", _CLEAN, "omni-directory-cleaner", str(directory), run_mark(directory)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
            env=unmarked(),
        )
        assert self._process.stdin is not None
        keep_from_forks(self._process.stdin.fileno())

    def hold(self) -> None:
        """Lock the folder, so that systemd-tmpfiles spares it however old it is."""
        self.let_go()
        self._lock = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(self._lock, fcntl.LOCK_SH | fcntl.LOCK_NB)

    def let_go(self) -> None:
        """Unlock it."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def dismiss(self) -> None:
        """Remove what is left of the processes and of the folder now."""
        assert self._process.stdin is not None
        self.let_go()
        forget(self._process.stdin.fileno())
        self._process.stdin.close()
        self._process.wait()
