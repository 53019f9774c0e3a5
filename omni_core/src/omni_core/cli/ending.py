"""The end of a command that runs a pipeline: Ctrl-C and SIGTERM end it in order, with the exit codes of the shell's convention."""

from __future__ import annotations

import signal
import sys
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

import click


@contextmanager
def signals_named() -> Iterator[None]:
    """Turn Ctrl-C and a cancellation into a line and an exit code."""
    import asyncio  # here and below: 20 ms, for which `--help` need not wait

    try:
        yield
    except KeyboardInterrupt:
        click.echo("Interrupted.", err=True)
        sys.exit(128 + signal.SIGINT)
    except asyncio.CancelledError:
        click.echo("Terminated.", err=True)
        sys.exit(128 + signal.SIGTERM)


async def until_terminated(work: Coroutine[Any, Any, None]) -> None:
    """Await ``work``; SIGTERM cancels it, so that the pipeline ends in order."""
    import asyncio

    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    await work
