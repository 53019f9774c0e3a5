"""A host that joins runs: it dials the runner, is taken in, and dials again whenever the connection has ended."""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import Any

from omni_core.api import StartupError, watched
from omni_core.runtime_api import Sparing, join_address, split_address
from omni_launchers.hosts import messages, versions
from omni_launchers.hosts.server import HostServer

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
"""Seconds between two attempts to join: the first pause, doubled up to the longest."""

_HEAD = "head://"


def own_address(head: str) -> str:
    """Return ``tcp://HOST:0`` with the address by which this host would reach ``head``.

    Raises:
        StartupError: there is no route to it.
    """
    host, port = split_address(head)
    try:
        family, kind, _, _, place = socket.getaddrinfo(host, port or 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(place)  # sends nothing
            return join_address(probe.getsockname()[0], 0)
    except OSError as error:
        raise StartupError(f"{head}: no way leads there from this host: {error.strerror}") from error


class Joining:
    """Keeps a host server in the run of a runner, and of each that follows it at that address. Made on an event loop.

    Args:
        head: the ``tcp://`` address where the run accepts hosts.
        host, stage: as which host to join, or for which stage.
        digest: that of the only config to work for.
        once: do not dial again; the end of the run is a refusal, and so is that of the connection while there is no run.

    Attributes:
        refused: gets a StartupError when the runner refuses this host for good.
    """

    def __init__(
        self, server: HostServer, head: str, host: str = "", stage: str = "", digest: str = "", once: bool = False
    ) -> None:
        self._server = server
        self._head = head
        self._once = once
        self._request = messages.JoinRun(server.address, host, stage, versions.installed(), digest)
        self._loop = asyncio.get_running_loop()
        self._pause = FIRST_PAUSE
        self._timer: asyncio.TimerHandle | None = None
        self._has_said = False
        self.refused: asyncio.Future[None] = self._loop.create_future()
        server.on_message, server.on_lost, server.digest = self._on_message, self._lost, digest
        if once:
            server.on_over = lambda: self._refuse(f"{head}: the run is over")
        self._dial()

    def _dial(self) -> None:
        self._timer = None
        self._dialling = watched(self._connect(), f"joining {self._head}", lambda error: self._lost(_HEAD, str(error)))

    async def _connect(self) -> None:
        """Dial where the runner's name leads now. ZMQ would not tell of a name that leads nowhere."""
        host, port = split_address(self._head)
        try:
            found = await self._loop.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except OSError as error:
            self._lost(_HEAD, f"{host}: {error.strerror}")
            return
        self._server.control.drop(_HEAD)
        self._server.control.peer_is_up(_HEAD, join_address(*found[0][4][:2]))
        self._server.control.send(_HEAD, self._request)

    def _on_message(self, message: Any) -> None:
        if not isinstance(message, messages.JoinAnswer):
            logger.error("a host cannot handle a %s", type(message).__name__)
        elif message.problem and message.final:
            self._refuse(f"{self._head} refuses this host: {message.problem}")
        elif message.problem:
            self._again(message.problem)
        else:
            logger.warning("joined %s as host %r", self._head, message.host)
            self._pause, self._has_said = FIRST_PAUSE, False

    def _lost(self, endpoint: str, reason: str) -> None:
        if endpoint == _HEAD and self._once:
            if not self._server.has_runs:  # a run has a connection of its own, which may be silent for longer
                self._refuse(f"{self._head}: no connection: {reason}")
        elif endpoint == _HEAD:
            self._again(reason)

    def _refuse(self, reason: str) -> None:
        if not self.refused.done():
            self.refused.set_exception(StartupError(reason))

    def _again(self, reason: str) -> None:
        if not self._has_said:
            logger.warning("waiting for %s (%s)", self._head, reason)
            self._has_said = True
        if self._timer is None:
            self._timer = self._loop.call_later(self._pause, self._dial)
            self._pause = min(2 * self._pause, LONGEST_PAUSE)

    def close(self) -> None:
        """Dial no more."""
        self._dialling.cancel()
        if self._timer is not None:
            self._timer.cancel()
        self._server.on_lost = lambda endpoint, reason: None
        self._server.on_over = lambda: None
