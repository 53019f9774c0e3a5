"""The runs of pytest in a session: the second run of what failed in the first, and tests beside others."""

from __future__ import annotations

import json
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import nox
from nox.command import CommandFailed

SECOND_RUN_LIMIT = 5
"""The most failures for which there is a second run; more than these are no accident."""


def run_tests(
    session: nox.Session, *arguments: str, env: dict[str, str], others_end: threading.Event | None = None
) -> None:
    """Run pytest; run what failed once more, alone, and fail if it fails again.

    Many tests kill processes, cut networks and race them on machines that other programs share, and one failure by such an accident in
    thousands of tests would hide the result of all others. The session's output says which tests have passed in their second run only:
    docs/decisions/0055-a-second-run.md.

    Args:
        others_end: set when tests that run beside these have ended. These take processors only while nothing else needs them; the output
            of the first run is printed at its end, and a second one waits for the others.

    Raises:
        CommandFailed: more than :data:`SECOND_RUN_LIMIT` tests failed, the run ended before its end, or a test failed twice.
    """
    with tempfile.TemporaryDirectory(prefix="omni-nox-") as folder:
        pytest = ("python", "-m", "pytest", "-o", f"cache_dir={folder}")
        try:
            if others_end is None:
                session.run(*pytest, *arguments, env=env)
            else:
                idle = (*IDLE, f"{session.bin}/python", *pytest[1:])
                said = session.run(*idle, *arguments, env=env, silent=True, external=True)
                if said is not None:  # None: only the environment is made
                    print(said, flush=True)
        except CommandFailed:
            failed = _failed(Path(folder))
            if not 0 < len(failed) <= SECOND_RUN_LIMIT:
                raise
            if others_end is not None:
                others_end.wait()
            session.warn(f"failed, and run once more: {', '.join(failed)}")
            session.run(*pytest, *_alone(arguments), "--last-failed", "--last-failed-no-failures", "none", env=env)
            session.warn(f"passed in the second run only: {', '.join(failed)}")


IDLE = ("chrt", "--idle", "0")
"""The beginning of a command whose process runs only while no other wants its processor."""


@contextmanager
def beside(session: nox.Session, *arguments: str, env: dict[str, str]) -> Iterator[None]:
    """Run tests that compute while those of the block, which mostly wait, leave the processors free; after them where
    `chrt` is missing or not allowed.

    Raises:
        CommandFailed: as in :func:`run_tests`, after the block.
    """
    if shutil.which(IDLE[0]) is None or subprocess.run([*IDLE, "true"], check=False).returncode:
        try:
            yield
        finally:
            run_tests(session, *arguments, env=env)
        return
    end = threading.Event()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run_tests, session, *arguments, env=env, others_end=end)
        try:
            yield
        finally:
            end.set()
            running.result()


def _failed(cache: Path) -> list[str]:
    """Return the ids of the tests that pytest wrote down as failed."""
    path = cache / "v" / "cache" / "lastfailed"
    return sorted(json.loads(path.read_text())) if path.is_file() else []


def _alone(arguments: tuple[str, ...]) -> list[str]:
    """Return the arguments of pytest without those that spread tests over processes."""
    kept = list(arguments)
    for option in ("-n", "--dist"):
        if option in kept:
            place = kept.index(option)
            del kept[place : place + 2]
    return kept
