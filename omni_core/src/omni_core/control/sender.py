"""The IO shell of a :class:`~omni_core.control.peer.Peer`: writes to a link what the peer has pending, and watches the link."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from omni_core.control.framing import Frame, Work
from omni_core.control.network import Link
from omni_core.control.peer import Peer
from omni_core.errors import OmniError

_FRAMES_AT_ONCE = 64
"""Frames written to one peer before other events are handled."""


class Sender:
    """The connection to one peer.

    Args:
        open_link: makes a connection to it, or ``None`` if it is not there.
    """

    def __init__(
        self, endpoint: str, loop: asyncio.AbstractEventLoop, open_link: Callable[[Sender], Link | None]
    ) -> None:
        self.peer = Peer(endpoint)
        self._loop = loop
        self._open_link = open_link
        self._link: Link | None = None
        self._watching = False
        self._waiting: list[asyncio.Future[None]] = []

    def connect(self) -> None:
        """Connect and write what waits. A peer that is not there yet is connected to when it is said to be up."""
        if self._link is not None:
            return
        self._link = self._open_link(self)
        if self._link is not None:
            self.peer.up()
            self._watch(bool(self.peer.waiting))

    def send(self, frame: Frame) -> None:
        self.peer.push(frame)
        if self._link is not None and not self._watching:
            self._flush()

    def _flush(self) -> None:
        assert self._link is not None
        peer, frames = self.peer, 0
        while peer.waiting and frames < _FRAMES_AT_ONCE:
            try:
                written = self._link.write(peer.pending())
            except BlockingIOError:
                written = 0
            except OSError:
                # The process has died, which its parent will tell. What is not written in full is its successor's.
                self.disconnect()
                return
            if not peer.wrote(written):
                break
            frames += 1
        self._watch(bool(peer.waiting))
        if self._waiting:
            self._let_send()

    def _watch(self, wanted: bool) -> None:
        if wanted != self._watching and self._link is not None:
            self._watching = wanted
            self._link.when_writable(self._flush if wanted else None)

    def lose(self, link: Link) -> bool:
        """A link has ended by itself. Return whether it was the one in use."""
        if link is not self._link:
            return False
        self.disconnect()
        return True

    def disconnect(self) -> None:
        """Close the link, if there is one. What is not written in full waits for the next."""
        if self._link is not None:
            self._link.close()
            self._link = None
        self._watching = False
        self.peer.closed()

    def down(self) -> list[Work]:
        """The peer has died: see :meth:`Peer.down`."""
        self.disconnect()
        return self.peer.down()

    def fail(self, error: OmniError) -> list[Work]:
        """The peer was given up: see :meth:`Peer.fail`."""
        self.disconnect()
        waiting = self.peer.fail(error)
        self._let_send()
        return waiting

    def forget(self, request_id: str) -> None:
        """A request is over: see :meth:`Peer.forget`."""
        self.peer.forget(request_id)
        self._let_send()

    async def room(self) -> None:
        """Return when the peer is no longer behind."""
        while self.peer.is_behind:
            waiting = self._loop.create_future()
            self._waiting.append(waiting)
            try:
                await waiting
            finally:
                if waiting in self._waiting:
                    self._waiting.remove(waiting)

    def _let_send(self) -> None:
        if self._waiting and not self.peer.is_behind:
            waiting, self._waiting = self._waiting, []
            for future in waiting:
                if not future.done():
                    future.set_result(None)
