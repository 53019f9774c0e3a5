"""Sessions side by side. nox runs one after the other, and half of ours leave a processor free."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor

import nox
from nox.command import CommandFailed

WHEELS = [] if os.environ.get("OMNI_WHEELS") == "built" else ["build"]
"""Requirements of sessions that install our wheels: none where ``OMNI_WHEELS=built`` says that ``dist/`` has them."""


def run_sessions(session: nox.Session, *names: str, option: str | None = None, silent: bool = False) -> None:
    """Run sessions one after the other with the wheels of ``dist/``, all of them even if one fails.

    Args:
        option: of nox.
        silent: print the output at the end.

    Raises:
        CommandFailed: a session failed.
    """
    command = (sys.executable, "-m", "nox", *filter(None, [option]), "-s", *names)
    said = session.run(*command, env={"OMNI_WHEELS": "built"}, external=True, silent=silent)
    if silent:
        print(said, flush=True)


def run_lanes(session: nox.Session, first: tuple[str, ...], second: tuple[str, ...], then: tuple[str, ...]) -> None:
    """Run the sessions of two lists side by side, and those of a third one when both have ended, also where one has failed. The output of
    the second list comes at its end; after it, and beside the rest of the first list, the environments of the third one are made.

    Raises:
        CommandFailed: a session failed.
    """

    def run_second() -> None:
        try:
            run_sessions(session, *second, silent=True)
        finally:
            run_sessions(session, *then, option="--install-only", silent=True)

    try:
        with ThreadPoolExecutor(1) as pool:
            running = pool.submit(run_second)
            try:
                run_sessions(session, *first)
            finally:
                running.result()
    except CommandFailed:
        run_sessions(session, *then)
        raise
    run_sessions(session, *then, option="--no-install")
