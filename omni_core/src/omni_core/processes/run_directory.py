"""The folder of a run: private, short enough for socket addresses, and removed when its owner ends in any way."""

from __future__ import annotations

import os
import subprocess
import tempfile
from pathlib import Path

from omni_core.errors import ConfigError
from omni_core.forks import forget, keep_from_forks
from omni_core.processes.family import SWEEP, run_mark, unmarked

LONGEST_SOCKET_PATH = 107
"""The limit of the address of a Unix-domain socket in bytes."""


def run_directory(base_path: str | None) -> Path:
    """A private (0700) folder for one run's sockets, in ``base_path`` or where temporary files go.

    Raises:
        ConfigError: ``base_path`` cannot be used.
    """
    base = base_path or tempfile.gettempdir()
    too_long = len(os.fsencode(base)) + len("/omni-12345678/coordinator.sock") > LONGEST_SOCKET_PATH
    if too_long and base_path is not None:
        raise ConfigError(
            f"endpoints.base_path: {base} is too long for socket addresses ({LONGEST_SOCKET_PATH} bytes); choose a shorter one"
        )
    try:
        return Path(tempfile.mkdtemp(prefix="omni-", dir="/tmp" if too_long else base))
    except OSError as error:
        raise ConfigError(f"endpoints.base_path: no folder can be made in {base}: {error.strerror}") from error


_CLEAN = SWEEP + 'trap "" INT TERM HUP; read -r _; sweep "$2"; rm -rf -- "$1"'


class DirectoryCleaner:
    """Ends what the stage processes of a run have started, and removes its folder, when its owner ends in any way: a shell that waits
    for the end of a pipe.
    """

    def __init__(self, directory: Path) -> None:
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

    def dismiss(self) -> None:
        """Remove what is left of the processes and of the folder now."""
        assert self._process.stdin is not None
        forget(self._process.stdin.fileno())
        self._process.stdin.close()
        self._process.wait()
