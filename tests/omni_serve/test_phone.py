"""The bridge of docs/telephony.md: a call of Twilio's Media Streams to a session, both ways in mu-law."""

from __future__ import annotations

import asyncio
import base64
import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from omni_serve_clients import running_server
from websockets.asyncio.client import connect
from websockets.asyncio.server import serve

from omni_serve.app import Application

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = Path(__file__).parents[2] / "docs/telephony.md"
RATE, STREAM = 8_000, "MZ1"


def bridge(address: str) -> Any:
    """Return the handler of a call."""
    [code] = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    names: dict[str, Any] = {"__name__": "phone"}
    exec(code.replace("127.0.0.1:8000", address).replace('"assistant"', '"tones"'), names)
    return names["call"]


def spoken(seconds: float) -> bytes:
    """Return loud and soft codes of mu-law in the rhythm of syllables."""
    time = np.arange(round(seconds * RATE))
    return np.where((time % 1600 < 1200) & (time % 20 < 10), 0x10, 0xFF).astype(np.uint8).tobytes()


async def test_a_call_is_greeted_answered_and_interrupted(app: Application) -> None:
    async with running_server(app) as address, serve(bridge(address), "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        async with connect(f"ws://127.0.0.1:{port}") as phone, asyncio.timeout(60):

            async def say(data: bytes) -> None:
                for start in range(0, len(data), 160):  # 20 ms, as a line sends them
                    payload = base64.b64encode(data[start : start + 160]).decode()
                    await phone.send(json.dumps({"event": "media", "streamSid": STREAM, "media": {"payload": payload}}))

            async def heard(kind: str) -> tuple[float, list[str]]:
                """Return the seconds of sound until an event of a kind, which is the last."""
                kinds, size = [""], 0
                while kinds[-1] != kind:
                    event = json.loads(await phone.recv())
                    assert event["streamSid"] == STREAM
                    kinds.append(event["event"])
                    size += len(base64.b64decode(event["media"]["payload"])) if kinds[-1] == "media" else 0
                return size / RATE, kinds

            await phone.send(json.dumps({"event": "connected", "protocol": "Call", "version": "1.0.0"}))
            await phone.send(json.dumps({"event": "start", "streamSid": STREAM, "start": {"streamSid": STREAM}}))
            assert (await heard("media"))[0] > 0, "the greeting"
            await say(b"\xff" * RATE)
            await say(spoken(0.6))
            await heard("clear")
            await say(b"\xff" * RATE)
            assert (await heard("media"))[0] > 0, "the answer"
            await phone.send(json.dumps({"event": "stop", "streamSid": STREAM}))
            async for _ in phone:
                pass  # what was on its way; then the bridge hangs up
