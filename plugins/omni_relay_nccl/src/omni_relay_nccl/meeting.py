"""Rendezvous of the two processes of a group: a torch store through which each learns the other's address."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from torch.distributed import Store  # type: ignore[attr-defined]

PATIENCE_SECONDS = 30.0
"""Seconds that one side waits for the other, unless that dies earlier; torch's own limit is not used."""


class MeetingStore(Store):
    """A store of two processes. ``tell`` sends each value that is set to the other; used in a channel's thread, filled
    from the event loop.
    """

    def __init__(self, tell: Callable[[str, bytes], object]) -> None:
        super().__init__()
        self._tell = tell
        self._values: dict[str, bytes] = {}
        self._changed = threading.Condition()
        self._alone = False

    def put(self, key: str, value: bytes) -> None:
        """Store a value that the other side has set."""
        with self._changed:
            self._values[key] = value
            self._changed.notify_all()

    def leave(self) -> None:
        """End the store because the other side is gone: a waiting call raises an error."""
        with self._changed:
            self._alone = True
            self._changed.notify_all()

    def set(self, key: str, value: bytes) -> None:  # type: ignore[override]
        self.put(key, bytes(value))
        self._tell(key, bytes(value))

    def get(self, key: str) -> bytes:
        self.wait([key])
        return self._values[key]

    def check(self, keys: list[str]) -> bool:
        return all(key in self._values for key in keys)

    def wait(self, keys: list[str], timeout: Any = None) -> None:
        with self._changed:
            if not self._changed.wait_for(lambda: self._alone or self.check(keys), PATIENCE_SECONDS):
                raise RuntimeError("the other process does not join")
            if not self.check(keys):
                raise RuntimeError("the other process is gone")
