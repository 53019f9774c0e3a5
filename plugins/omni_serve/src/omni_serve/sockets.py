"""Share the parts of all WebSockets: sending with a time limit, and the end of a session, whatever it ends by."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

from starlette.websockets import WebSocket, WebSocketDisconnect, WebSocketState

from omni_serve.errors import ApiError, api_error
from omni_serve.server import server_of
from omni_serve.streams import SEND_SECONDS

END_SECONDS = 5.0
"""The time in which a client must take the last event."""


async def sent(sending: Awaitable[None]) -> None:
    """Wait until a message is sent.

    Raises:
        ApiError: 408, the client does not read. It would keep its place in the pipeline for ever.
    """
    try:
        async with asyncio.timeout(SEND_SECONDS):
            await sending
    except TimeoutError:
        raise ApiError(408, f"The client has read nothing for {SEND_SECONDS:g} s.", code="client_too_slow") from None


@asynccontextmanager
async def ended(socket: WebSocket, event_of: Callable[[ApiError], dict[str, Any]]) -> AsyncIterator[None]:
    """Tell the client why its session ends, if it ends by an error or with the server, and the client still listens.

    Args:
        event_of: makes the ``error`` event.
    """
    admission, task = server_of(socket).admission, asyncio.current_task()
    assert task is not None
    admission.sessions.add(task)
    try:
        yield
    except WebSocketDisconnect:
        pass
    except asyncio.CancelledError:
        if not admission.draining:
            raise
        task.uncancel()
        await _tell(socket, admission.shutting_down(), event_of)
    except Exception as error:
        await _tell(socket, error, event_of)
    finally:
        admission.sessions.discard(task)


async def _tell(socket: WebSocket, error: BaseException, event_of: Callable[[ApiError], dict[str, Any]]) -> None:
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    if isinstance(error, WebSocketDisconnect) or socket.application_state is not WebSocketState.CONNECTED:
        return
    made = api_error(error)
    try:
        async with asyncio.timeout(END_SECONDS):
            await socket.send_json(event_of(made))
            await socket.close(1008 if made.status < 500 else 1012 if made.code == "draining" else 1011)
    except (WebSocketDisconnect, RuntimeError, TimeoutError):
        pass  # it is gone
