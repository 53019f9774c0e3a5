"""A conversation by voice as a listener has it: a spoken question, the answer, a second question, and an interruption of its answer."""

from __future__ import annotations

import asyncio
import base64
import binascii
from collections.abc import Mapping
from typing import Any

from omni_serve.bench.timeline import Timeline
from omni_serve.remote import PCM_RATE, BadStreamError, Remote
from omni_serve.remote_realtime import Microphone, RealtimeClient, RefusedError, connect

_BEFORE = bytes(int(0.4 * PCM_RATE) * 2)
_KINDS = ("response.output_audio.delta", "response.output_audio_transcript.delta", "response.done")
_HEARD = 0.3
"""Seconds of the second answer that the user listens to before speaking again."""


async def converse(remote: Remote, body: Mapping[str, Any], timeline: Timeline, seconds: float) -> None:
    """Hold one conversation; its times go to ``timeline``, whose beginning becomes the end of the first question.

    Args:
        body: ``model``, ``session`` (of ``session.update``; ``None``: as the server has it), ``sound``: of the questions, as PCM.
        seconds: the longest wait for an answer.

    Raises:
        BadStreamError: the session fails.
    """
    try:
        async with connect(remote, body["model"]) as client:
            async with asyncio.timeout(seconds):
                await client.until("session.created")
                if body["session"] is not None:
                    await client.send("session.update", session=body["session"])
                    await client.until("session.updated")
            await _turns(client, body["sound"], timeline, seconds)
    except RefusedError as error:
        kind = f"{error.status}" if error.status else "connection failed"
        raise BadStreamError(kind, str(error)) from None
    except TimeoutError:
        raise BadStreamError("timeout", f"no answer within {seconds:g} s") from None


async def _turns(client: RealtimeClient, sound: bytes, timeline: Timeline, seconds: float) -> None:
    now, microphone = asyncio.get_running_loop().time, Microphone(client)
    await microphone.speak(_BEFORE + sound)
    timeline.begun = now()
    async with _Silence(microphone), asyncio.timeout(seconds):
        await _answer(client, timeline)
        timeline.ended = now()
        if not timeline.sounds:
            raise BadStreamError("no sound", "the answer has no sound")
        # The next question comes when this answer has been heard.
        until = timeline.played_until or timeline.ended
        await asyncio.sleep(max(0.0, until - now()))
    await microphone.speak(_BEFORE + sound)
    async with _Silence(microphone), asyncio.timeout(seconds):
        await client.until("response.output_audio.delta", "response.done")
        await asyncio.sleep(_HEARD)
    begun = now()
    speaking = asyncio.ensure_future(microphone.speak(sound))
    try:
        async with asyncio.timeout(seconds):
            await client.until("input_audio_buffer.speech_started")
        timeline.barge_in = now() - begun
    finally:
        speaking.cancel()


class _Silence:
    """The microphone goes on while others speak."""

    def __init__(self, microphone: Microphone) -> None:
        self._microphone = microphone

    async def __aenter__(self) -> None:
        self._task = asyncio.ensure_future(self._microphone.be_silent())

    async def __aexit__(self, *_: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)


async def _answer(client: RealtimeClient, timeline: Timeline) -> None:
    now = asyncio.get_running_loop().time
    while True:
        event = (await client.until(*_KINDS))[-1]
        kind = event["type"]
        if kind == "response.output_audio_transcript.delta":
            timeline.texts.append(now())
        elif kind == "response.output_audio.delta":
            try:
                size = len(base64.b64decode(event.get("delta") or "", validate=True))
            except binascii.Error:
                raise BadStreamError("bad base64", "a piece of sound is not base64") from None
            timeline.sounds.append((now(), size / 2 / PCM_RATE))
        else:
            response = event.get("response") or {}
            if response.get("status") != "completed":
                details = (response.get("status_details") or {}).get("error") or {}
                code = details.get("code") or response.get("status")
                raise BadStreamError(f"in session: {code}", f"a response is {response.get('status')}")
            timeline.tokens = (response.get("usage") or {}).get("output_tokens")
            return
