"""Pings the processes of a pipeline while it has work, so that stalls and computes that never end are noticed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping

from omni_core.processes.supervisor import Supervisor

PING_SECONDS = 1.0
"""The time between two pings. An idle pipeline sends none."""


class Heartbeat:
    """Calls :meth:`Supervisor.beat` of every unit once in :data:`PING_SECONDS`, from :meth:`begin` on until there is no work.

    Args:
        units: the units of the pipeline by name, as they are now.
        has_work: tells if requests are in flight.
    """

    def __init__(self, units: Mapping[str, Supervisor], has_work: Callable[[], bool]) -> None:
        self._units = units
        self._has_work = has_work
        self._loop = asyncio.get_running_loop()
        self._timer: asyncio.TimerHandle | None = None
        self._must_ping = False
        self._is_closed = False

    def begin(self) -> None:
        """There is work. Costs nothing while the heartbeat goes on."""
        if self._timer is None and not self._is_closed:
            self._timer = self._loop.call_later(PING_SECONDS, self._beat)

    def request_is_over(self) -> None:
        """A request was aborted or has failed: ping once more, as a process may still compute for it."""
        for unit in self._units.values():
            unit.request_is_over()
        self._must_ping = True
        self.begin()

    def close(self) -> None:
        """Ping no more."""
        self._is_closed = True
        if self._timer is not None:
            self._timer.cancel()

    def _beat(self) -> None:
        self._timer = None
        must_ping, self._must_ping = self._must_ping, False
        units = list(self._units.values())
        if must_ping or self._has_work() or any(unit.life.must_be_watched for unit in units):
            for unit in units:
                unit.beat()
            self.begin()
