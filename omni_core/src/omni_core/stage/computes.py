"""The requests that a scheduler computes now, of one that does not report it: by when it has last read its inbox or put something out."""

from __future__ import annotations

import math
import time

from omni_core.scheduling.base import Scheduler
from omni_core.stage.active_requests import ActiveRequest, Requests


class Computes:
    """The running compute of one scheduler."""

    def __init__(self, scheduler: Scheduler, requests: Requests) -> None:
        self._scheduler, self._requests = scheduler, requests
        self._dropped: dict[str, float] = {}
        """Requests that the scheduler had begun when it was told to drop them, and when; until it looks into its inbox again."""

    def running(self) -> dict[str, float]:
        """Return the requests of the running compute, with the ``time.monotonic()`` of its begin.

        A compute goes on since the scheduler has last read its inbox or put something out.
        """
        scheduler = self._scheduler
        inbox, begin = scheduler.inbox, self._busy_since()
        if scheduler.outbox.is_full:  # it waits for readers
            return {}
        if begin == math.inf or (inbox.on_put is not None and not len(inbox)):  # the reader waits, or is called
            return {}
        active = self._requests.since()
        held = {name: begin for name, since in active.items() if since <= begin}
        dropped = {name: begin for name, when in self._dropped.items() if when > begin}
        return dropped | held or active  # else it reads nothing

    def note_dropped(self, active: ActiveRequest) -> None:
        """Remember a request that the scheduler is told to drop, if it has begun it."""
        begin = self._busy_since()
        if self._dropped and next(iter(self._dropped.values())) <= begin:
            self._dropped.clear()
        if active.since <= begin < math.inf and not self._scheduler.inbox.has(
            lambda message: message.request_id == active.request_id and message.type == "new_request"
        ):
            self._dropped[active.request_id] = time.monotonic()

    def _busy_since(self) -> float:
        return max(self._scheduler.inbox.read_at, self._scheduler.outbox.put_at)
