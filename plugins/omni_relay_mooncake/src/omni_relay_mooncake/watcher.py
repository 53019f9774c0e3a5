"""A thread that waits for the engine's transfers and sleeps while there are none."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from queue import SimpleQueue
from typing import Any

from attrs import define

RUNNING, DONE = 0, 1
"""States of a transfer in the engine's numbering; all others are failures."""

_SHORT_SECONDS, _LONG_SECONDS = 0.0001, 0.005
_LONG_AFTER_SECONDS = 0.1
"""Pauses of the thread between two polls, and the time without an event after which the longer ones apply."""

_CLOSE_SECONDS = 2.0


@define(eq=False)
class Transfer:
    """One of the engine's transfers. Its ``state`` changes once."""

    batch: int
    state: int = RUNNING


class Watcher:
    """Polls the engine for the states of transfers; ``on_end`` is called in the thread after some have ended."""

    def __init__(self, engine: Any, on_end: Callable[[], object]) -> None:
        self._engine = engine
        self._on_end = on_end
        self._new: SimpleQueue[Transfer | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="mooncake-reads", daemon=True)
        self._thread.start()

    def watch(self, batch: int) -> Transfer:
        """Watch a transfer. The engine forgets it once it has reported its end, so no other caller may poll it."""
        transfer = Transfer(batch, self._engine.transfer_check_status(batch))
        if transfer.state == RUNNING:
            self._new.put(transfer)
        return transfer

    def _run(self) -> None:
        running: list[Transfer] = []
        moved = time.monotonic()
        while True:
            while not running or not self._new.empty():
                transfer = self._new.get()
                if transfer is None:
                    return
                running.append(transfer)
                moved = time.monotonic()
            for transfer in running:
                transfer.state = self._engine.transfer_check_status(transfer.batch)
            left = [transfer for transfer in running if transfer.state == RUNNING]
            if len(left) < len(running):
                moved = time.monotonic()
                self._on_end()
            running = left
            if running:
                patient = time.monotonic() - moved > _LONG_AFTER_SECONDS
                time.sleep(_LONG_SECONDS if patient else _SHORT_SECONDS)

    def close(self) -> None:
        """End the thread, and release the engine."""
        self._new.put(None)
        self._thread.join(_CLOSE_SECONDS)
        self._engine = None
