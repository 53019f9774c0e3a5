"""uvicorn's WebSocket with bounds on memory and on the work that is done at once.

A message may be as large as the Realtime API allows. All large ones that are held at once share one budget, and a client that breaks a
bound gets an ``error`` event before its connection is closed.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from functools import cached_property
from typing import Any

from websockets.exceptions import PayloadTooBig
from websockets.frames import Frame, Opcode

from omni_serve.connections import BoundedSocket
from omni_serve.errors import ApiError
from omni_serve.realtime.events import error_event
from omni_serve.room import Room

MESSAGE_BYTES = 20 * 2**20 + 2**16
"""The largest message: 15 MiB of sound in base64, the most that OpenAI's API takes in one event, and the JSON around it."""

FREE_BYTES = 2**16
"""Up to this size messages do not count in the budget."""

HELD_BYTES = 2 * MESSAGE_BYTES
"""The budget of messages that come in or are being read, of all connections of a server. One key has half of it at most."""

MESSAGE_SECONDS = 60.0
"""The time that a client has to send a large message."""

STEP_BYTES = 2**12
"""Read from a connection before the others get their turn: a few bytes may be a whole frame, and cost as much as a large one."""

LINGER_SECONDS, QUIET_SECONDS = 5.0, 0.5
"""The time in which a client that is refused can read why, while what it still sends is dropped: at most, and after its last byte."""


class BoundedWebSocket(BoundedSocket):
    """uvicorn's WebSocket with bounds on the messages that are held, and on the work that a piece of them makes at once.

    Args:
        room: the budget.
    """

    def __init__(self, *args: Any, room: Room, **options: Any) -> None:
        super().__init__(*args, **options)
        self._room = room
        self._partial = self._current = 0
        self._waiting: deque[int] = deque()
        self._late: asyncio.TimerHandle | None = None
        self._backlog = memoryview(b"")
        self._refused = self._app_paused = False
        self._until = 0.0

    def data_received(self, data: bytes) -> None:
        """Read in steps. Nothing more is read from the connection before the last of them."""
        if self._refused:
            self._linger()
            return
        if len(data) <= STEP_BYTES and not self._backlog:
            self._step(data)
            return
        begun = bool(self._backlog)
        self._backlog = memoryview(bytes(self._backlog) + data)
        self.transport.pause_reading()
        if not begun:
            self._next()

    async def send(self, message: Any) -> None:
        """Send, and take a refusal with an answer for the end of the handshake: uvicorn would log an error of the application."""
        await super().send(message)
        if message["type"] == "websocket.http.response.body" and not message.get("more_body"):
            self.handshake_complete = True

    def _next(self) -> None:
        piece, self._backlog = self._backlog[:STEP_BYTES], self._backlog[STEP_BYTES:]
        if not self.transport.is_closing():
            self._step(bytes(piece))
        if self._refused or self.transport.is_closing():
            self._backlog = memoryview(b"")
            return
        # The application must not resume what is paused here.
        self._app_paused, self.read_paused = self._app_paused or self.read_paused, False
        if self._backlog:
            self.loop.call_soon(self._next)
            return
        self.read_paused = self._app_paused and not self.queue.empty()
        self._app_paused = False
        if not self.read_paused:
            self.transport.resume_reading()

    def _step(self, data: bytes) -> None:
        super().data_received(data)
        if self._refused:
            return
        held = len(self.conn.reader.buffer) + (self.conn.current_size or 0)
        if held <= FREE_BYTES:
            self._settle(0)
        elif held > self._partial:
            if not self._room.has(self._key, held - self._partial):
                text = (
                    "The server holds as many large events as it may; send this one again later, or in smaller pieces."
                )
                self._refuse(ApiError(429, text, code="overloaded"), 1013)
                return
            self._room.add(self._key, held - self._partial)
            self._partial = held
            if self._late is None:
                self._late = self.loop.call_later(MESSAGE_SECONDS, self._too_late)

    @cached_property
    def _key(self) -> str:
        """The name that bytes are counted under; it stays, whatever is found out later."""
        key: Any = self.scope.get("omni.key") if self.handshake_initiated else None
        return str(key.name) if key is not None else "anyone"

    def _settle(self, delivered: int) -> None:
        """Count no partial message any more; ``delivered``: the bytes of it that the application holds from now on."""
        if self._partial > delivered:
            self._room.add(self._key, delivered - self._partial)
        self._partial = 0
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def handle_cont(self, event: Frame) -> None:
        """Join the fragments of a message as they come: kept apart, small ones would take many times their size."""
        held = self.frames[0]
        whole = held if isinstance(held, bytearray) else bytearray(held)
        whole += event.data
        self.frames = [whole]  # type: ignore[list-item]  # it is decoded, or handed on, as bytes are
        if event.fin:
            self.send_receive_event_to_app()

    def send_receive_event_to_app(self) -> None:
        """Hand a message on; it stays in the budget until the application asks for the next one."""
        if self.close_sent:
            self._settle(0)
        else:
            self._waiting.append(self._partial)
            self._settle(self._partial)
        super().send_receive_event_to_app()

    async def receive(self) -> Any:
        """Return the next message; the one before is done with."""
        if self._current:
            self._room.add(self._key, -self._current)
            self._current = 0
        message = await super().receive()
        if message["type"] == "websocket.receive" and self._waiting:
            self._current = self._waiting.popleft()
        return message

    def connection_lost(self, exc: Exception | None) -> None:
        """Give back what is held."""
        self._settle(0)
        self._room.add(self._key, -sum(self._waiting) - self._current)
        self._waiting.clear()
        self._current = 0
        super().connection_lost(exc)

    def handle_parser_exception(self) -> None:
        """End the connection; a client whose message is too large is told so."""
        if isinstance(self.conn.parser_exc, PayloadTooBig) and self.handshake_complete:
            limit = f"{MESSAGE_BYTES / 2**20:.0f} MiB (15 MiB of sound)"
            self._refuse(ApiError(413, f"An event may have {limit}; send it in several.", code="event_too_large"), 1009)
        else:
            super().handle_parser_exception()

    def _too_late(self) -> None:
        text = f"An event took longer than {MESSAGE_SECONDS:g} s to come."
        self._refuse(ApiError(408, text, code="event_timeout"), 1008)

    def _refuse(self, error: ApiError, code: int) -> None:
        """Send an ``error`` event and close. The connection stays a little: reset at once, it would take the event with it."""
        self._settle(0)
        self._refused = True
        if self.close_sent or self.transport.is_closing():
            return
        self.conn.fail(code, error.message[:100])  # nothing if the parser has failed already
        self.close_sent = True
        text = json.dumps(error_event(error)).encode()
        self.transport.write(Frame(Opcode.TEXT, text).serialize(mask=False) + b"".join(self.conn.data_to_send()))
        self.queue.put_nowait({"type": "websocket.disconnect", "code": code, "reason": error.message})
        self._until = self.loop.time() + LINGER_SECONDS
        self._linger()
        self.transport.resume_reading()

    def _linger(self) -> None:
        if self.close_timer is not None:
            self.close_timer.cancel()
        self.close_timer = self.loop.call_at(min(self.loop.time() + QUIET_SECONDS, self._until), self.transport.close)
