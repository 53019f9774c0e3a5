"""A small ``/v1/realtime`` that is right, or makes one deliberate mistake."""

from __future__ import annotations

import asyncio
import base64
import binascii
import itertools
import json
from typing import Any

import numpy as np
from starlette.websockets import WebSocket, WebSocketDisconnect

PIECE = base64.b64encode(bytes(4800)).decode()
FRAME = 480
LOUD = 1000
KNOWN = ("session.update", "input_audio_buffer.append", "input_audio_buffer.commit", "conversation.item.create",
    "conversation.item.delete", "conversation.item.truncate", "response.create", "response.cancel")  # fmt: skip


class WrongEvent(Exception):
    """The fault of an event."""


class SmallRealtime:
    """One session."""

    def __init__(self, socket: WebSocket, mistake: str) -> None:
        self.socket, self.mistake = socket, mistake
        self.ids = (f"id_{number}" for number in itertools.count())
        self.session: dict[str, Any] = {
            "type": "realtime", "object": "realtime.session", "id": "sess_1", "model": "small", "output_modalities": ["audio"],
            "instructions": "", "audio": {
                "input": {"format": {"type": "audio/pcm", "rate": 24000}, "turn_detection": {"type": "server_vad"}},
                "output": {"format": {"type": "audio/pcm", "rate": 24000}}},
        }  # fmt: skip
        self.items: dict[str, dict[str, Any]] = {}
        self.frames = self.silent = 0
        self.turn = ""
        self.long = False
        self.reply: asyncio.Task[None] | None = None
        self.identity = ""
        self.cancelled = 0

    async def send(self, kind: str, **fields: Any) -> None:
        if self.mistake == "beta names":
            kind = kind.replace("output_audio", "audio")
        await self.socket.send_json({"type": kind, "event_id": next(self.ids), **fields})

    async def run(self) -> None:
        shown = dict(self.session)
        if self.mistake == "no object":
            del shown["object"]
        await self.send("session.created", session=shown)
        try:
            while True:
                await self.take(await self.socket.receive_text())
        except (WebSocketDisconnect, RuntimeError):
            pass
        finally:
            if self.reply is not None:
                self.reply.cancel()

    async def take(self, text: str) -> None:
        event: dict[str, Any] = {}
        try:
            event = json.loads(text)
            await self.act(event)
        except (WrongEvent, ValueError) as error:
            identity = None if self.mistake == "anonymous errors" else event.get("event_id")
            kind = "server_error" if self.mistake == "its own fault" else "invalid_request_error"
            await self.send("error", error={"type": kind, "code": "x", "message": str(error), "event_id": identity})
            if self.mistake == "hangs up":
                await self.socket.close()

    async def act(self, event: dict[str, Any]) -> None:
        kind = event["type"]
        if kind not in KNOWN:
            raise WrongEvent(f"no event {kind}")
        if kind == "session.update":
            if not isinstance(event["session"].get("audio", {}).get("input", {}), dict):
                raise WrongEvent("no such input")
            self.session["instructions"] = event["session"].get("instructions", self.session["instructions"])
            if "audio" in event["session"]:
                self.session["audio"]["input"] |= event["session"]["audio"].get("input", {})
            await self.send("session.updated", session=self.session)
        elif kind == "input_audio_buffer.append":
            try:
                data = base64.b64decode(event["audio"], validate=True)
            except binascii.Error:
                raise WrongEvent("not base64") from None
            if self.session["audio"]["input"]["turn_detection"] is not None:
                await self.hear(np.frombuffer(data, "<i2"))
        elif kind == "input_audio_buffer.commit":
            await self.commit(next(self.ids))
            if self.mistake == "answers by itself":
                self.respond()
        elif kind == "conversation.item.create":
            if event["item"]["role"] not in ("user", "system", "assistant"):
                raise WrongEvent("no such role")
            self.long = len(event["item"]["content"][0]["text"]) > 200
            await self.add({"id": next(self.ids), **event["item"]})
        elif kind == "conversation.item.delete":
            if event["item_id"] not in self.items:
                raise WrongEvent("no such item")
        elif kind == "conversation.item.truncate":
            end = 0 if self.mistake == "truncates to nothing" else event["audio_end_ms"]
            fields = {"item_id": event["item_id"], "content_index": event["content_index"], "audio_end_ms": end}
            await self.send("conversation.item.truncated", **fields)
        elif kind == "response.create":
            self.respond()
        elif self.reply is None or self.reply.done():
            raise WrongEvent("nothing to cancel")
        else:
            await self.stop("client_cancelled")

    async def hear(self, samples: Any) -> None:
        for start in range(0, len(samples) - FRAME + 1, FRAME):
            self.frames += 1
            loud = bool(np.abs(samples[start : start + FRAME]).max() > LOUD)
            self.silent = 0 if loud else self.silent + 1
            if loud and not self.turn:
                self.turn = next(self.ids)
                await self.send("input_audio_buffer.speech_started", audio_start_ms=self.frames * 20, item_id=self.turn)
                await self.stop("client_cancelled" if self.mistake == "another reason" else "turn_detected")
            elif self.turn and self.silent >= 25:
                item, self.turn = self.turn, ""
                named = "item_of_another" if self.mistake == "another item" else item
                await self.send("input_audio_buffer.speech_stopped", audio_end_ms=self.frames * 20, item_id=named)
                await self.commit(item)
                self.respond()

    async def commit(self, item: str) -> None:
        await self.send("input_audio_buffer.committed", item_id=item, previous_item_id=None)
        await self.add({"id": item, "type": "message", "role": "user", "content": [{"type": "input_audio"}]})

    async def add(self, item: dict[str, Any]) -> None:
        self.items[item["id"]] = item
        await self.send("conversation.item.added", item=item, previous_item_id=None)
        await self.send("conversation.item.done", item=item, previous_item_id=None)

    def respond(self) -> None:
        self.identity = next(self.ids)
        self.reply = asyncio.ensure_future(self.speak(self.identity, 100 if self.long else 5))

    async def stop(self, reason: str) -> None:
        if self.reply is None or self.reply.done():
            return
        if self.mistake != "talks on" or reason != "turn_detected":
            self.reply.cancel()
        self.cancelled += 1
        details = {"type": "cancelled", "reason": reason}
        await self.send(
            "response.done", response={"id": self.identity, "status": "cancelled", "status_details": details}
        )

    async def speak(self, identity: str, pieces: int) -> None:
        item = {"id": next(self.ids), "type": "message", "role": "assistant", "content": []}
        where = {"response_id": identity, "item_id": item["id"], "output_index": 0, "content_index": 0}
        await self.send("response.created", response={"id": identity, "status": "in_progress"})
        await self.send("response.output_item.added", response_id=identity, output_index=0, item=item)
        if self.mistake != "no part":
            await self.send("response.content_part.added", **where, part={"type": "audio", "transcript": ""})
        for number in range(pieces):
            if number != 2 or self.mistake != "loses words":
                await self.send("response.output_audio_transcript.delta", **where, delta=f"{number} ")
            await self.send("response.output_audio.delta", **where, delta=PIECE)
            await asyncio.sleep(0.02)
        await self.send("response.output_audio.done", **where)
        whole = "".join(f"{number} " for number in range(pieces))
        await self.send("response.output_audio_transcript.done", **where, transcript=whole)
        await self.send("response.content_part.done", **where, part={"type": "audio", "transcript": whole})
        await self.send("response.output_item.done", response_id=identity, output_index=0, item=item)
        broken = self.mistake == "breaks" or (self.mistake == "breaks by cancelling" and self.cancelled)
        await self.send("response.done", response={"id": identity, "status": "failed" if broken else "completed"})
