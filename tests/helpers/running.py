"""Runs a scheduler in a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from omni_core.scheduling.base import Scheduler


@contextmanager
def running(scheduler: Scheduler) -> Iterator[None]:
    """Start it; at the end it is stopped, and must then end."""
    thread = threading.Thread(target=scheduler.start, daemon=True)
    thread.start()
    try:
        yield
    finally:
        scheduler.stop()
        thread.join(20)
    assert not thread.is_alive()
