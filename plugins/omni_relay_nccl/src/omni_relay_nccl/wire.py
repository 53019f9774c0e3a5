"""Messages between the two sides of a pair over a Unix socket: JSON arrays, one per line."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

_LONGEST = 2**16


class Wire(asyncio.Protocol):
    """One end of the socket. Messages sent before the connection is established are queued.

    Args:
        on_message: called with each message; an exception from it closes the connection.
        on_end: called once when the connection has ended, with the reason if a message was invalid.
    """

    def __init__(self, on_message: Callable[[list[Any]], object], on_end: Callable[[str], object]) -> None:
        self._on_message, self._on_end = on_message, on_end
        self._transport: asyncio.WriteTransport | None = None
        self._early = bytearray()
        self._rest = b""
        self._reason = ""
        self._closed = False

    def send(self, message: list[Any]) -> None:
        line = json.dumps(message).encode() + b"\n"
        if self._transport is None:
            self._early += line
        else:
            self._transport.write(line)

    def close(self) -> None:
        self._closed = True
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.WriteTransport)
        self._transport = transport
        if self._closed:
            transport.close()
        elif self._early:
            transport.write(bytes(self._early))
            self._early.clear()

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        try:
            if len(self._rest) > _LONGEST:
                raise ValueError("a message without end")
            for line in lines:
                self._on_message(json.loads(line))
        except Exception as error:  # an invalid message or version of the peer: only this pair ends
            self._reason = f"{type(error).__name__}: {error}"
            self.close()

    def connection_lost(self, error: Exception | None) -> None:
        self._on_end(self._reason)
