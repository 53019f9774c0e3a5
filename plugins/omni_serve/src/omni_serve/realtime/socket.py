"""``WS /v1/realtime``: carries out what the session decides. One task reads, one writes, one for each reply in progress."""

from __future__ import annotations

import asyncio
import json
import time
from contextlib import aclosing
from functools import partial
from typing import Any

from fastapi import APIRouter
from pydantic import ValidationError
from starlette.websockets import WebSocket

from omni_core.api import shown
from omni_serve.auth import presented, subprotocol
from omni_serve.calls import Call, Guess
from omni_serve.errors import ApiError, api_error, invalid
from omni_serve.ignored import check_fields
from omni_serve.json_input import check_text, read_event
from omni_serve.live_input import LiveInput, sound_input
from omni_serve.realtime.actions import Abort, Action, Feed, Finish, Listen, Send, Show, Start, Transcribe
from omni_serve.realtime.audio import INPUT_RATE, from_base64
from omni_serve.realtime.config import updated
from omni_serve.realtime.events import error_event, id_of, new_id
from omni_serve.realtime.frames import is_dropped
from omni_serve.realtime.pipeline import Turns, offer_of
from omni_serve.realtime.session import Session
from omni_serve.realtime.vad import DETECTORS
from omni_serve.server import Server, key_of, server_of
from omni_serve.sockets import ended, sent

router = APIRouter()

FULL, BROKEN = 64, 4096
"""Events that wait for a slow client: from ``FULL`` on replies wait, at ``BROKEN`` the session ends."""

APPENDS = ("input_audio_buffer.append", "session.input_audio.append")

MEDIA = ("audio", "image", "item", "response")
"""Fields of events that may hold recordings and images."""

SOUND_STEP = 2**16
"""Characters of base64 that are taken at once, about a second of sound: a long piece takes the server as long as many short ones."""


@router.websocket("/v1/realtime")
async def realtime(socket: WebSocket) -> None:
    """Converse by voice and text."""
    server, key = server_of(socket), key_of(socket)
    await socket.accept(subprotocol(socket.scope.get("subprotocols") or []))
    async with ended(socket, error_event):
        if "realtime=v1" in socket.headers.get("openai-beta", ""):
            raise invalid(
                "This server speaks the GA Realtime API: leave the header 'OpenAI-Beta: realtime=v1' away, and read "
                "response.output_audio.delta where the beta API has response.audio.delta.",
                code="beta_api_shape_disabled",
            )
        with server.enter_session(key, "/v1/realtime"):
            await Connection(server, socket, _session(server, socket)).run()
        await socket.close()


def _session(server: Server, socket: WebSocket) -> Session:
    """Return the session that a client asks for, with the configuration of its short-lived key."""
    offer, limits = offer_of(server, key_of(socket)), server.settings.realtime
    patch = server.realtime.config_of(presented(socket.scope["headers"]))
    query = socket.query_params
    check_fields(query, ("model", "intent"))
    intent = query.get("intent")
    if intent == "transcription":
        patch = {**patch, "type": "transcription"}
    elif intent not in (None, "conversation"):
        raise invalid(
            f"intent: must be 'conversation' or 'transcription', is {shown(intent)}", "intent", "invalid_value"
        )
    config = updated(offer.first(), patch, offer)
    model = query.get("model") or config.model or server.model
    server.check_model(model)
    config = config.model_copy(update={"model": model})
    expires = int(time.time() + limits.session_seconds)
    return Session(
        offer, config, limits, DETECTORS[limits.detector], expires, key_of(socket).name, server.realtime.memory
    )


class Connection:
    """One connected client."""

    def __init__(self, server: Server, socket: WebSocket, session: Session) -> None:
        self._server, self._socket, self._session = server, socket, session
        self._turns = Turns(server, key_of(socket), session.identity)
        self._outbox: asyncio.Queue[dict[str, Any] | Show] = asyncio.Queue()
        self._room = asyncio.Event()
        self._room.set()
        self._unwanted: set[str] = set()
        self._running: dict[str, asyncio.Task[None]] = {}
        self._heard: dict[str, LiveInput] = {}
        self._now = asyncio.get_running_loop().time

    async def run(self) -> None:
        """Serve the client until it goes.

        Raises:
            ApiError: nothing has come for too long, the session is too old, or the client does not read.
        """
        limits = self._server.settings.realtime
        try:
            async with asyncio.timeout(limits.session_seconds), asyncio.TaskGroup() as self._group:
                self._group.create_task(self._write())
                self._greet()
                await self._read(limits.idle_seconds)
        except TimeoutError:
            raise ApiError(
                408, f"Your session hit the maximum duration of {limits.session_seconds:g} s.", code="session_expired"
            ) from None
        finally:
            self._session.close()

    def _greet(self) -> None:
        self._perform(self._session.begin())

    def _take(self, event: dict[str, Any]) -> list[Action]:
        """Return what is to be done about an event of the client."""
        return self._session.receive(event, self._now())

    def _emit(self, event: dict[str, Any]) -> None:
        """Send an event of the session."""
        self._outbox.put_nowait(event)

    async def _read(self, idle_seconds: float) -> None:
        while True:
            try:
                async with asyncio.timeout(idle_seconds):
                    message = await self._socket.receive_text()
            except TimeoutError:
                raise ApiError(408, f"nothing has come for {idle_seconds:g} s", code="idle_timeout") from None
            except KeyError:  # a binary message
                self._perform(self._session.refuse(invalid("events must be JSON text", code="invalid_json")))
                continue
            event: dict[str, Any] = {}
            try:
                event = await read_event(message, self._server.settings.limits, MEDIA)
                await self._handle(event)
            except (ApiError, ValidationError) as error:
                self._perform(self._session.refuse(api_error(error), id_of(event)))
            await asyncio.sleep(0)  # a client that sends many events must not keep the others waiting

    async def _handle(self, event: dict[str, Any]) -> None:
        """Do what an event asks for.

        Raises:
            ApiError: the event cannot be read; the session has not seen it.
        """
        sound = event.get("audio")
        if event.get("type") not in APPENDS or not isinstance(sound, str):
            sound = ""
            session = self._session
            if is_dropped(event, session.frames, session.config, session.offer, self._now()):
                event["image"] = b""  # nobody looks at it
            else:
                await self._turns.read_media(event, session.config.audio.input.format.wire)
        check_text({**event, "audio": ""} if sound else event, self._server.settings.limits.text_characters)
        if len(sound) <= SOUND_STEP:
            self._perform(self._take(event))
            return
        await asyncio.to_thread(from_base64, sound, "audio")  # all of it is taken, or nothing
        for start in range(0, len(sound), SOUND_STEP):
            actions = self._take({**event, "audio": sound[start : start + SOUND_STEP]})
            self._perform(actions)
            if any(isinstance(each, Send) and each.event["type"] == "error" for each in actions):
                break
            await asyncio.sleep(0)

    async def _write(self) -> None:
        while True:
            event = await self._outbox.get()
            if self._outbox.qsize() < FULL:
                self._room.set()
            if self._is_unwanted(event):
                self._outbox.task_done()
                continue
            if isinstance(event, Show):
                text = await asyncio.to_thread(_shown, event)
            else:
                text = json.dumps(event, separators=(",", ":"))
            await sent(self._socket.send_text(text))
            self._outbox.task_done()

    def _is_unwanted(self, event: dict[str, Any] | Show) -> bool:
        """Return whether it is sound of an aborted reply, which waits because the client reads slowly."""
        unwanted = self._unwanted
        if self._outbox.empty():
            self._unwanted = set()
        if isinstance(event, Show) or event["type"] != "response.output_audio.delta":
            return False
        return event["response_id"] in unwanted

    def _perform(self, actions: list[Action]) -> None:
        for action in actions:
            if isinstance(action, Send):
                self._emit(action.event)
            elif isinstance(action, Show):
                self._outbox.put_nowait(action)
            elif isinstance(action, Start):
                self._run(action.reply, self._reply(action))
            elif isinstance(action, Transcribe):
                self._run(action.item, self._transcribe(action))
            elif isinstance(action, Listen):
                self._listen(action)
            elif isinstance(action, Feed) and action.item in self._heard:
                self._heard[action.item].put(action.samples)
            elif isinstance(action, Finish) and action.item in self._heard:
                self._heard[action.item].finish()
            elif isinstance(action, Abort) and action.reply in self._running:
                self._running[action.reply].cancel()
                self._unwanted.add(action.reply)
                self._server.metrics.overruns.inc(action.overrun)
        waiting = self._outbox.qsize()
        if waiting >= BROKEN:
            raise ApiError(408, "The client does not read what it is sent.", code="client_too_slow")
        if waiting >= FULL:
            self._room.clear()

    def _run(self, identity: str, work: Any) -> None:
        self._running[identity] = task = self._group.create_task(work)
        task.add_done_callback(lambda _: self._running.pop(identity, None))

    async def _reply(self, start: Start) -> None:
        session, identity = self._session, start.reply
        try:
            call: Call = self._turns.reply(start)
            async with aclosing(call.pieces()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, str):
                        self._perform(session.text(identity, piece))
                    else:
                        self._perform(session.sound(identity, piece.samples, piece.rate, self._now(), piece.words))
                    await self._room.wait()
        except ApiError as error:
            self._perform(session.failed(identity, self._now(), error))
        else:
            self._perform(session.finished(identity, self._now(), call.usage, call.finish_reason))
        self._tell_limits()

    def _tell_limits(self) -> None:
        """Tell the client what is left of its key's limits per minute, if it has any."""
        if limits := self._server.admission.rate_limits(key_of(self._socket)):
            self._emit({"type": "rate_limits.updated", "event_id": new_id("event"), "rate_limits": limits})

    def _listen(self, asked: Listen) -> None:
        """Begin to write down sound that is still coming. A stage that takes none of it for the length of a turn is stuck."""
        seconds = self._server.settings.realtime.turn_seconds
        sound = sound_input(INPUT_RATE, partial(self._session.taken, asked.item), chunk_timeout=seconds)
        self._heard[asked.item] = sound
        self._run(asked.item, self._transcribe(asked, sound))

    async def _transcribe(self, asked: Transcribe | Listen, sound: LiveInput | None = None) -> None:
        session, item, text = self._session, asked.item, ""
        try:
            call = self._turns.transcription(asked, sound)
            async with aclosing(call.pieces()) as pieces:
                async for piece in pieces:
                    if isinstance(piece, Guess):
                        self._perform(session.said(item, "", piece))
                    elif isinstance(piece, str):
                        text += piece
                        self._perform(session.said(item, piece))
                    await self._room.wait()
        except ApiError as error:
            if sound is not None:
                error.message += f" ({sound.taken / INPUT_RATE:.1f} s of this turn had been taken)"
            self._perform(session.transcribed(item, error, {}))
        else:
            self._perform(session.transcribed(item, text.strip(), call.usage))
        finally:
            self._heard.pop(item, None)


def _shown(action: Show) -> str:
    return json.dumps(action.event(new_id("event")), separators=(",", ":"))
