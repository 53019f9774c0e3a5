"""A user who speaks over the answer, in simulated time: chunks of sound are counted from the moment in which speech is detected."""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from realtime_events import RATE, append, events, kinds, make, silence, started, user_text, voice

from omni_serve.auth import ANYONE
from omni_serve.realtime.actions import Abort, Start
from omni_serve.realtime.session import Session
from omni_serve.realtime.socket import FULL, Connection

STEP = 0.02
"""Seconds of a packet of the user's sound."""

CHUNK = 0.2
"""Seconds of sound in a chunk of the answer, which is an event."""

SOUND = "response.output_audio.delta"


class World:
    """A session, a pipeline that makes a chunk every ``pace`` seconds and stops ``late`` seconds after an abort, and one clock."""

    def __init__(self, pace: float, late: float) -> None:
        self.session, self.pace, self.late = make(), pace, late
        self.now = 0.0
        self.sent: list[tuple[float, str]] = []
        self.begun = self.stops = float("inf")
        self.reply = ""
        self._made = 0

    def take(self, actions: list[Any]) -> None:
        self.sent += [(self.now, kind) for kind in kinds(actions)]
        for action in actions:
            if isinstance(action, Start):
                self.reply, self.begun, self.stops, self._made = action.reply, self.now, float("inf"), 0
            elif isinstance(action, Abort):
                assert action.reply == self.reply
                self.stops = self.now + self.late

    def pass_to(self, end: float, talks: bool = False) -> None:
        """Let time pass; the user talks, or is silent."""
        while self.now < end:
            self.now = round(self.now + STEP, 3)
            sound = voice(0.15)[: int(STEP * RATE)] if talks else silence(STEP)
            self.take(self.session.receive(append(sound), self.now))
            while (due := self.begun + self._made * self.pace) <= min(self.now, self.stops):
                self._made += 1
                self.take(self.session.sound(self.reply, voice(CHUNK), RATE, due))

    def times(self, kind: str) -> list[float]:
        return [time for time, each in self.sent if each == kind]


@pytest.mark.parametrize("at", [1.0, 1.02, 1.1, 1.18, 2.34])
@pytest.mark.parametrize(("pace", "late"), [(0.05, 0.0), (0.05, 0.3), (0.2, 1.0), (0.5, 0.5)])
def test_no_sound_follows_the_detection_of_speech(pace: float, late: float, at: float) -> None:
    world = World(pace, late)
    world.take(world.session.receive(user_text("hello"), 0))
    world.take(world.session.receive({"type": "response.create"}, 0))
    world.pass_to(at)
    assert len(world.times(SOUND)) == int(at / pace) + 1
    world.pass_to(at + 0.4, talks=True)
    (detected,) = world.times("input_audio_buffer.speech_started")
    assert round(detected - at, 3) <= 0.06 + 2 * STEP, "three frames of the detector, and what the resampler holds back"
    assert [kind for time, kind in world.sent if kind == SOUND and time > detected] == []
    assert world.times("response.done") == [detected]
    world.pass_to(at + 1.5)
    answered = world.times("response.created")[-1]
    assert detected < answered < world.times(SOUND)[-1], "the next turn is answered"
    assert not [time for time in world.times(SOUND) if detected < time < answered]


class SlowClient:
    """The socket of a client that reads an event when it is told to."""

    def __init__(self) -> None:
        self.scope = {"omni.key": ANYONE}
        self.room = asyncio.Semaphore(0)
        self.read: list[dict[str, Any]] = []

    async def send_text(self, text: str) -> None:
        await self.room.acquire()
        self.read.append(json.loads(text))


async def test_sound_that_waits_for_a_slow_client_is_not_sent_any_more() -> None:
    client, session = SlowClient(), make()
    metrics = SimpleNamespace(overruns=SimpleNamespace(inc=lambda count: None))
    connection = Connection(SimpleNamespace(metrics=metrics), client, session)  # type: ignore[arg-type]
    writing = asyncio.create_task(connection._write())
    reply = asyncio.create_task(asyncio.Event().wait())
    start = begun(session)
    connection._running[start.reply] = reply
    for number in range(FULL // 2):
        connection._perform(session.sound(start.reply, voice(CHUNK), RATE, number * CHUNK))
    for _ in range(8):
        client.room.release()
        await asyncio.sleep(0)
    before = len([each for each in client.read if each["type"] == SOUND])
    assert before
    spoken = session.receive(append(voice(0.3)), 10.0)
    assert "input_audio_buffer.speech_started" in kinds(spoken)
    connection._perform(spoken)
    for _ in range(2 * FULL):
        client.room.release()
        await asyncio.sleep(0)
    assert len([each for each in client.read if each["type"] == SOUND]) - before <= 1, "one was being sent"
    assert client.read[-1]["response"]["status"] == "cancelled"
    assert reply.cancelling()
    # Of the next answer nothing is missing.
    session.receive(append(silence(1.0)), 11.0)
    following = begun(session) if session.reply is None else session.reply.id
    spoken = session.sound(str(following), voice(CHUNK), RATE, 12.0)
    connection._perform(spoken)
    for _ in range(FULL):
        client.room.release()
        await asyncio.sleep(0)
    assert client.read[-1]["type"] == SOUND
    assert len(events(spoken)) > 1
    for task in (writing, reply):
        task.cancel()


def begun(session: Session) -> Start:
    """Return the beginning of an answer to a text."""
    session.receive(user_text("hello"), 0)
    return started(session.receive({"type": "response.create"}, 0))
