"""Checks of conversations over ``/v1/realtime``: the session, the order of events, turns, interruption, cancellation, errors."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

from omni_serve.audit.subject import Fault, NotOffered, Subject, decoded
from omni_serve.remote import PCM_RATE
from omni_serve.remote_realtime import RealtimeClient, RefusedError, connect, utterance

Event = dict[str, Any]

_MANUAL = {"type": "realtime", "audio": {"input": {"turn_detection": None}}}
_LONG = "Please tell me a very long story about the sea, the ships, the people on them and what they found. " * 8
_QUIET = 0.3
"""Seconds in which nothing may come."""


async def session(subject: Subject) -> str:
    """Look at the greeting, and at the answer to a change."""
    async with _connected(subject) as (client, created):
        shown = created.get("session") or {}
        _need(created, "event_id", str)
        for name, kind in (("id", str), ("model", str), ("output_modalities", list), ("audio", dict)):
            _need(shown, name, kind, "session.")
        if (shown.get("type"), shown.get("object")) != ("realtime", "realtime.session"):
            raise Fault(f"the session has type {shown.get('type')!r} and object {shown.get('object')!r}")
        formats = []
        for each in ("input", "output"):
            form = (shown["audio"].get(each) or {}).get("format")
            if not isinstance(form, dict) or "type" not in form:
                raise Fault(f"session.audio.{each}.format is {form!r:.60}, not an object with a type")
            formats.append(form["type"])
        await client.send("session.update", session={"type": "realtime", "instructions": "Be brief."})
        updated = (await client.until("session.updated"))[-1]
        if updated["session"].get("instructions") != "Be brief." or updated["session"].get("id") != shown["id"]:
            raise Fault("session.updated does not show the session with its change")
    return f"{shown['model']}, {formats[0]} in, {formats[1]} out"


async def order(subject: Subject) -> str:
    """Ask in words, and look at the events of the answer one after the other."""
    async with _connected(subject) as (client, created):
        await _ask(client, subject.prompt)
        await client.send("response.create")
        found = await client.until("response.done")
    kind = "output_audio" if created["session"]["output_modalities"] == ["audio"] else "output_text"
    expected = ["conversation.item.added", "response.created", "response.output_item.added", "response.content_part.added",
        f"response.{kind}.delta", f"response.{kind}.done", "response.content_part.done", "response.output_item.done",
        "response.done"]  # fmt: skip
    _in_order(found, expected)
    identity = _one(found, "response.created")["response"]["id"]
    item = _one(found, "response.output_item.added")["item"]["id"]
    parts = [event for event in found if event["type"].startswith(("response.output_audio", "response.output_text"))]
    for event in parts:
        if (event.get("response_id"), event.get("item_id")) != (identity, item):
            raise Fault(f"{event['type']} belongs to {event.get('response_id')}, {event.get('item_id')}")
    done = found[-1]["response"]
    if (done["id"], done["status"]) != (identity, "completed"):
        raise Fault(f"response.done is of {done['id']} and says {done['status']}, asked was {identity}")
    words = "output_audio_transcript" if kind == "output_audio" else "output_text"
    text = "".join(event["delta"] for event in parts if event["type"] == f"response.{words}.delta")
    whole = _one(found, f"response.{words}.done")["transcript" if kind == "output_audio" else "text"]
    if text != whole:
        raise Fault(f"the pieces of the text are {text[:60]!r}, the whole is {whole[:60]!r}")
    if kind == "output_text":
        return f"{len(found)} events, {len(text)} characters"
    return f"{len(found)} events, {_seconds(parts):.2f} s of speech, {len(text)} characters"


async def manual(subject: Subject) -> str:
    """Commit a turn by hand: nothing is heard and answered before the client says so."""
    async with _connected(subject, speaks=True, hears=True) as (client, _):
        await client.send("session.update", session=_MANUAL)
        await client.until("session.updated")
        await client.append(_turn())
        if early := await _within(client, _QUIET):
            raise Fault(f"{early['type']} comes before the turn is committed")
        await client.send("input_audio_buffer.commit")
        committed = (await client.until("input_audio_buffer.committed"))[-1]
        added = (await client.until("conversation.item.added"))[-1]
        if added["item"]["id"] != committed["item_id"] or added["item"].get("role") != "user":
            raise Fault("the item that is added is not the user's turn that was committed")
        await client.until("conversation.item.done")
        if early := await _within(client, _QUIET):
            raise Fault(f"{early['type']} comes without response.create")
        await client.send("response.create")
        found = await client.until("response.done")
    return f"{_spoken(found):.2f} s of speech, after response.create only"


async def turn(subject: Subject) -> str:
    """Speak and fall silent: the server finds both, and answers."""
    async with _connected(subject, speaks=True, hears=True) as (client, _):
        await client.append(_turn())
        found = await client.until("response.done")
    _in_order(
        found,
        ["input_audio_buffer.speech_started", "input_audio_buffer.speech_stopped", "input_audio_buffer.committed",
         "response.created", "response.output_audio.delta", "response.done"],
    )  # fmt: skip
    begun, ended = (_one(found, f"input_audio_buffer.speech_{each}") for each in ("started", "stopped"))
    committed = _one(found, "input_audio_buffer.committed")
    if not begun["item_id"] == ended["item_id"] == committed["item_id"]:
        raise Fault("speech_started, speech_stopped and committed do not name the same item")
    if not 0 <= begun["audio_start_ms"] < ended["audio_end_ms"]:
        raise Fault(f"the turn goes from {begun['audio_start_ms']} to {ended['audio_end_ms']} ms")
    return f"heard from {begun['audio_start_ms']} to {ended['audio_end_ms']} ms, {_spoken(found):.2f} s of speech"


async def interruption(subject: Subject) -> str:
    """Speak while the server speaks, and say how much of it was heard."""
    async with _connected(subject, speaks=True, hears=True) as (client, _):
        await _ask(client, _LONG)
        await client.send("response.create")
        begun = await client.until("response.output_audio.delta", "response.done")
        _need_sound(begun)
        identity, item = (_one(begun, "response.created")["response"]["id"], begun[-1].get("item_id"))
        await client.append(utterance(random.Random(1)))
        found = [*begun, *await client.until("input_audio_buffer.speech_started")]
        if not any(event["type"] == "response.done" for event in found):
            found += await client.until("response.done")
        done = _one(found, "response.done")["response"]
        if done["status"] not in ("cancelled", "completed"):
            raise Fault(f"the interrupted response says {done['status']}")
        reason = (done.get("status_details") or {}).get("reason")
        if done["status"] == "cancelled" and reason != "turn_detected":
            raise Fault(f"the response was cancelled with the reason {reason!r}, not 'turn_detected'")
        event = await _within(client, _QUIET)
        if event is not None and event["type"].endswith(".delta") and event.get("response_id") == identity:
            raise Fault("pieces of the interrupted response come after its end")
        await client.send("conversation.item.truncate", item_id=item, content_index=0, audio_end_ms=10)
        told = (await client.until("conversation.item.truncated"))[-1]
        if (told.get("item_id"), told.get("content_index"), told.get("audio_end_ms")) != (item, 0, 10):
            raise Fault(f"conversation.item.truncated says {told}")
    when = "while it was made" if done["status"] == "cancelled" else "after it was made"
    return f"interrupted {when}, truncated to 10 ms"


async def cancel(subject: Subject) -> str:
    """Cancel a response, cancel nothing, and go on."""
    async with _connected(subject) as (client, _):
        await _ask(client, _LONG)
        await client.send("response.create")
        identity = (await client.until("response.created"))[-1]["response"]["id"]
        await client.send("response.cancel", response_id=identity)
        found = await client.until("response.done", allow_errors=True)
        status = found[-1]["response"]["status"]
        if status == "cancelled" and any(event["type"] == "error" for event in found):
            raise Fault("the response was cancelled, and there is an error too")
        if status not in ("cancelled", "completed"):
            raise Fault(f"the cancelled response says {status}")
        await client.send("response.cancel", event_id="nothing-to-cancel")
        error = (await client.until("error", allow_errors=True))[-1]
        while (error.get("error") or {}).get("event_id") != "nothing-to-cancel" and status == "completed":
            error = (await client.until("error", allow_errors=True))[-1]
        await _ask(client, subject.prompt)
        await client.send("response.create")
        _completed(await client.until("response.done"))
    return f"{status}; a further response is completed"


async def errors(subject: Subject) -> str:
    """Send wrong events: each is answered by an error that names it, and the session goes on."""
    wrong: list[tuple[str, Any]] = [
        ("an unknown event", {"type": "input_audio_buffer.apend", "event_id": "e1"}),
        ("an unknown item", {"type": "conversation.item.delete", "item_id": "item_of_nobody", "event_id": "e2"}),
        ("sound that is not base64", {"type": "input_audio_buffer.append", "audio": "?", "event_id": "e3"}),
        ("an unknown role", {"type": "conversation.item.create", "event_id": "e4",
            "item": {"type": "message", "role": "nobody", "content": [{"type": "input_text", "text": "x"}]}}),
    ]  # fmt: skip
    async with _connected(subject) as (client, _):
        for what, event in wrong:
            await client.send(**{"kind": event.pop("type"), **event})
            _check_error(what, (await client.until("error", allow_errors=True))[-1], event["event_id"])
        await client.send_text("{")
        _check_error("a message that is not JSON", (await client.until("error", allow_errors=True))[-1], None)
        await client.send("session.update", session={"type": "realtime", "instructions": "Be brief."})
        await client.until("session.updated")
    return f"{len(wrong) + 1} errors, and the session goes on"


def _check_error(what: str, event: Event, identity: str | None) -> None:
    error = event.get("error")
    if not isinstance(error, dict) or not all(isinstance(error.get(name), str) for name in ("type", "message")):
        raise Fault(f"{what}: the error has no type and message")
    if error["type"] == "server_error":
        raise Fault(f"{what}: is called an error of the server")
    if error.get("event_id") != identity:
        raise Fault(f"{what}: the error names the event {error.get('event_id')!r}, sent was {identity!r}")


@asynccontextmanager
async def _connected(
    subject: Subject, *, speaks: bool = False, hears: bool = False
) -> AsyncIterator[tuple[RealtimeClient, Event]]:
    """Open a session and take its greeting.

    Raises:
        NotOffered: there are no sessions, or none with speech.
    """
    try:
        async with connect(subject.remote, subject.model) as client:
            created = await client.receive()
            if created["type"] == "error":
                raise NotOffered(f"/v1/realtime is refused: {(created.get('error') or {}).get('message')}")
            if created["type"] != "session.created":
                raise Fault(f"the first event is {created['type']}, not session.created")
            shown = created.get("session") or {}
            if speaks and shown.get("output_modalities") != ["audio"]:
                raise NotOffered("sessions answer in text only")
            if hears and "input" not in (shown.get("audio") or {}):
                raise NotOffered("sessions take no sound")
            yield client, created
    except RefusedError as error:
        raise NotOffered(f"/v1/realtime is refused with {error}") from None


async def _ask(client: RealtimeClient, text: str) -> None:
    content = [{"type": "input_text", "text": text}]
    await client.send("conversation.item.create", item={"type": "message", "role": "user", "content": content})


def _turn() -> bytes:
    """Return a voice, with silence before and after it."""
    return bytes(PCM_RATE) + utterance(random.Random(1)) + bytes(PCM_RATE * 2)


async def _within(client: RealtimeClient, seconds: float) -> Event | None:
    """Return the event that comes in this time."""
    try:
        async with asyncio.timeout(seconds):
            return await client.receive()
    except TimeoutError:
        return None


def _need(event: Event, name: str, kind: type, where: str = "") -> None:
    if not isinstance(event.get(name), kind):
        raise Fault(f"{where}{name} is {event.get(name)!r:.60}")


def _need_sound(found: Sequence[Event]) -> None:
    if found[-1]["type"] == "response.done":
        raise Fault(f"a response ends {found[-1]['response'].get('status')}, without sound")


def _one(found: Sequence[Event], kind: str) -> Event:
    """Return the only event of a type."""
    matching = [event for event in found if event["type"] == kind]
    if len(matching) != 1:
        raise Fault(f"{kind} comes {len(matching)} times, not once")
    return matching[0]


def _in_order(found: Sequence[Event], expected: Sequence[str]) -> None:
    """Check that the first event of each type comes in this order."""
    kinds, last = [event["type"] for event in found], -1
    for number, kind in enumerate(expected):
        if kind not in kinds:
            beta = kind.replace("output_audio", "audio").replace("output_text", "text")
            hint = f"; {beta}, its name in the beta API, does" if beta != kind and beta in kinds else ""
            raise Fault(f"{kind} does not come{hint}")
        if kinds.index(kind) < last:
            raise Fault(f"{kind} comes before {expected[number - 1]}")
        last = kinds.index(kind)


def _seconds(found: Sequence[Event]) -> float:
    """Return the seconds of the speech in events."""
    pieces = [decoded(event.get("delta")) for event in found if event["type"] == "response.output_audio.delta"]
    for piece in pieces:
        if len(piece) % 2:
            raise Fault(f"a piece of sound has {len(piece)} bytes, an odd number")
    return sum(map(len, pieces)) / 2 / PCM_RATE


def _spoken(found: Sequence[Event]) -> float:
    """Return the seconds of a completed answer."""
    _completed(found)
    if not (seconds := _seconds(found)):
        raise Fault("the response has no response.output_audio.delta")
    return seconds


def _completed(found: Sequence[Event]) -> None:
    status = found[-1]["response"].get("status")
    if status != "completed":
        raise Fault(f"the response ends {status}: {found[-1]['response'].get('status_details')}")
