"""The traffic of clients whose packages are not installed here, replayed: LiveKit, Pipecat, Open WebUI. The first two run in ``clients``.

``recorded/*.json`` lists the events that LiveKit and Pipecat sent to a server of this pipeline, and those that they wait for before
they go on; the requests of Open WebUI are those that its source makes. ``$item`` and ``$call`` stand for ids that the server has
made. Any ``error`` event that a step does not name fails the test.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import pytest_asyncio
import websockets
from omni_serve_clients import running_server
from serve_stages import RATE, tone

from omni_core import AsyncPipe
from omni_serve import Settings, create_app
from omni_serve.encoders import pcm16, whole

pytestmark = pytest.mark.asyncio(loop_scope="session")

RECORDED = Path(__file__).parent / "recorded"
HTTP: dict[str, dict[str, Any]] = json.loads((RECORDED / "http.json").read_text())
KEY = "a key of recorded clients"


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def address(pipe: AsyncPipe) -> AsyncIterator[str]:
    aliases = ("tts-1", "whisper-1", "gpt-4o-mini-tts")
    settings = Settings(keys={"me": KEY}, aliases=aliases, voice_aliases={"*": "default"})
    async with running_server(create_app(pipe, settings)) as address:
        yield address


class Replay:
    """One recorded WebSocket client."""

    def __init__(self, socket: websockets.ClientConnection, recorded: dict[str, Any]) -> None:
        self._socket = socket
        self._append = recorded.get("append", "input_audio_buffer.append")
        self._names = {"$LONG": "word " * 200}

    async def play(self, step: dict[str, Any]) -> None:
        if "send" in step:
            await self._send(step["send"])
        elif "speak" in step:
            await self._speak(step["speak"], step["chunk_ms"])
        elif "refused" in step:
            event = await self._event()
            while event["type"] != "error":
                event = await self._event()
            assert event["error"]["param"] == step["refused"]
            assert event["error"]["code"] == step.get("code", event["error"]["code"])
        else:
            await self._wait(step)

    async def _wait(self, step: dict[str, Any]) -> None:
        left = list(step["wait"])
        while left:
            event = await self._event()
            assert event["type"] != "error", event
            if event["type"] == left[0] or (step.get("any_order") and event["type"] in left):
                left.remove(event["type"])
            if event["type"] == "response.created" and "metadata" in step:
                assert event["response"]["metadata"] == step["metadata"]
            if event["type"] == "response.done":
                assert event["response"]["status"] == step.get("status", "completed")

    async def _event(self) -> dict[str, Any]:
        async with asyncio.timeout(60):
            event: dict[str, Any] = json.loads(await self._socket.recv())
        if event["type"] == "response.output_item.added":
            self._names["$item"] = event["item"]["id"]
            self._names["$call"] = event["item"].get("call_id", "")
        return event

    async def _send(self, event: Any) -> None:
        def filled(value: Any) -> Any:
            if isinstance(value, dict):
                return {name: filled(each) for name, each in value.items()}
            return self._names.get(value, value) if isinstance(value, str) else value

        if event["type"] == "conversation.item.create" and "content" in event["item"]:
            event["item"]["content"] = [filled(each) for each in event["item"]["content"]]
        await self._socket.send(json.dumps(filled(event)))

    async def _speak(self, seconds: float, chunk_ms: int) -> None:
        moments = np.arange(int((seconds + 1.5) * RATE)) / RATE - 0.5
        voiced = (moments > 0) & (moments < seconds) & (moments % 0.2 < 0.15)
        data, size = pcm16((0.3 * np.sin(1400 * moments) * voiced).astype(np.float32)), RATE * chunk_ms // 1000 * 2
        for start in range(0, len(data), size):
            audio = base64.b64encode(data[start : start + size]).decode()
            await self._socket.send(json.dumps({"type": self._append, "audio": audio}))


@pytest.mark.parametrize("name", ["livekit", "livekit_live", "pipecat"])
async def test_a_recorded_conversation(address: str, name: str) -> None:
    recorded = json.loads((RECORDED / f"{name}.json").read_text())
    url = f"ws://{address}{recorded.get('path', '/v1/realtime')}?{recorded['query']}"
    headers = {**recorded["headers"], "authorization": f"Bearer {KEY}"}
    async with websockets.connect(url, additional_headers=headers, user_agent_header=None, max_size=None) as socket:
        replay = Replay(socket, recorded)
        for step in recorded["steps"]:
            await replay.play(step)


@pytest.mark.parametrize("name", HTTP)
async def test_a_recorded_request(address: str, name: str) -> None:
    asked = HTTP[name]
    headers = {**asked.get("headers", {}), "authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(base_url=f"http://{address}", headers=headers) as http:
        if "json" in asked:
            answer = await http.post(asked["path"], json=asked["json"])
        elif "form" in asked:
            recording = whole("wav", [tone("x")], RATE)
            answer = await http.post(asked["path"], data=asked["form"], files={"file": (asked["file"], recording)})
        else:
            answer = await http.get(asked["path"])
    assert answer.status_code == 200, answer.text
    assert answer.headers["content-type"].startswith(asked["type"])
    assert answer.content
    if "ends" in asked:
        assert asked["ends"] in answer.text.strip().splitlines()[-1]
    for field in asked.get("has", ()):
        assert answer.json()[field]


async def test_open_webui_finds_voices_and_models_by_id_and_name(address: str) -> None:
    headers = {"authorization": f"Bearer {KEY}"}
    async with httpx2.AsyncClient(base_url=f"http://{address}/v1", headers=headers) as http:
        voices = (await http.get("/audio/voices")).json()["voices"]
        models = (await http.get("/audio/models")).json()["models"]
    assert {"id": "low", "name": "low"} in voices
    assert [each["id"] for each in models] == ["tones", "tts-1", "whisper-1", "gpt-4o-mini-tts"]
