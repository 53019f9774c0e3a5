"""A client of any server's ``/v1/realtime``, for `omni bench serve` and `omni audit`: events, a voice, and a microphone's pace."""

from __future__ import annotations

import asyncio
import base64
import json
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import av
import numpy as np
import websockets

from omni_core.errors import ConfigError
from omni_serve.encoders import pcm16
from omni_serve.remote import PCM_RATE, BadStreamError, Remote

FRAME = 0.04
"""Seconds of sound in one event."""

_FRAME_BYTES = int(FRAME * PCM_RATE) * 2
_CONNECT_SECONDS = 20.0


class RefusedError(Exception):
    """The server does not open the WebSocket. ``status``: of HTTP; 0: nobody answers."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(f"{status}: {message}" if status else message)
        self.status, self.message = status, message


class RealtimeClient:
    """One session. Made by :func:`connect`."""

    def __init__(self, socket: websockets.ClientConnection) -> None:
        self._socket = socket

    async def send(self, kind: str, **fields: Any) -> None:
        """Send an event. Raises BadStreamError: the connection has ended."""
        await self.send_text(json.dumps({"type": kind, **fields}))

    async def send_text(self, text: str) -> None:
        """Send a message as it is. Raises BadStreamError: the connection has ended."""
        try:
            await self._socket.send(text)
        except websockets.ConnectionClosed as error:
            raise _cut(error) from None

    async def receive(self) -> dict[str, Any]:
        """Return the next event.

        Raises:
            BadStreamError: the connection ends, or what comes is no event.
        """
        try:
            event = json.loads(await self._socket.recv())
        except websockets.ConnectionClosed as error:
            raise _cut(error) from None
        except ValueError:
            raise BadStreamError("bad event", "an event is not JSON") from None
        if not isinstance(event, dict) or not isinstance(event.get("type"), str):
            raise BadStreamError("bad event", f"an event has no type: {str(event)[:80]!r}")
        return event

    async def until(self, *kinds: str, allow_errors: bool = False) -> list[dict[str, Any]]:
        """Return the events up to the first of these types.

        Raises:
            BadStreamError: an ``error`` event comes before.
        """
        found = [await self.receive()]
        while found[-1]["type"] not in kinds:
            if found[-1]["type"] == "error" and not allow_errors:
                error = found[-1].get("error") or {}
                code = error.get("code") or error.get("type") or "error"
                raise BadStreamError(f"in session: {code}", f"an error event: {str(error.get('message'))[:200]}")
            found.append(await self.receive())
        return found

    async def append(self, sound: bytes) -> None:
        """Send sound at once."""
        await self.send("input_audio_buffer.append", audio=base64.b64encode(sound).decode())


def _cut(error: websockets.ConnectionClosed) -> BadStreamError:
    return BadStreamError("connection cut", f"the server has closed the connection: {error}")


class Microphone:
    """Sends sound at the pace at which it is recorded, and silence where there is none. ``lag``: how late it was at worst, in seconds."""

    def __init__(self, client: RealtimeClient) -> None:
        self._client = client
        self._due = asyncio.get_running_loop().time()
        self.lag = 0.0

    async def speak(self, sound: bytes) -> None:
        """Send sound; return when its last frame is sent."""
        for start in range(0, len(sound), _FRAME_BYTES):
            await self._frame(sound[start : start + _FRAME_BYTES].ljust(_FRAME_BYTES, b"\0"))

    async def be_silent(self) -> None:
        """Send silence until this is cancelled."""
        while True:
            await self._frame(bytes(_FRAME_BYTES))

    async def _frame(self, sound: bytes) -> None:
        now = asyncio.get_running_loop().time
        self._due += FRAME
        if (wait := self._due - now()) > 0:
            await asyncio.sleep(wait)
        self.lag = max(self.lag, now() - self._due)
        await self._client.append(sound)


@asynccontextmanager
async def connect(remote: Remote, model: str) -> AsyncIterator[RealtimeClient]:
    """Open a session.

    Raises:
        RefusedError: the server does not offer it, or not with this key.
    """
    url = f"{remote.url.replace('http', 'ws', 1)}/v1/realtime?model={model}"
    headers = {"authorization": f"Bearer {remote.key}"} if remote.key else {}
    try:
        socket = await websockets.connect(
            url, additional_headers=headers, max_size=None, open_timeout=_CONNECT_SECONDS, close_timeout=1
        )
    except websockets.InvalidStatus as error:
        body = (error.response.body or b"").decode(errors="replace")
        raise RefusedError(error.response.status_code, " ".join(body.split())[:160] or "no WebSocket") from None
    except (OSError, TimeoutError, websockets.WebSocketException) as error:
        raise RefusedError(0, str(error) or type(error).__name__) from None
    try:
        yield RealtimeClient(socket)
    finally:
        await socket.close()


def utterance(chance: random.Random, seconds: float = 1.2) -> bytes:
    """Return 16-bit PCM at 24 kHz that is as loud, as rich and as uneven as a voice, of random pitch."""
    moments = np.arange(int(seconds * PCM_RATE)) / PCM_RATE
    phase = 2 * np.pi * (chance.uniform(110, 220) * moments + 3 * np.sin(2 * np.pi * 4 * moments))
    sound = sum(np.sin(number * phase) / number for number in range(1, 20))
    loudness = 0.25 * (0.6 + 0.4 * np.sin(2 * np.pi * 5 * moments))
    return pcm16((loudness * sound).astype(np.float32))


def recording(path: Path) -> bytes:
    """Return a file of sound as 16-bit PCM at 24 kHz.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        with av.open(str(path)) as file:
            resampler = av.AudioResampler("s16", "mono", PCM_RATE)
            frames = [each for frame in file.decode(audio=0) for each in resampler.resample(frame)]
            frames += resampler.resample(None)
            return b"".join(each.to_ndarray().tobytes() for each in frames)
    except (av.FFmpegError, IndexError, ValueError) as error:
        raise ConfigError(f"{path}: not a recording that can be read: {error}") from error
