"""Sends requests for speech in an open loop (arrivals at random) or a closed one (so many at once), and keeps their times."""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

import httpx2
from attrs import define, field, frozen

from omni_serve.bench.timeline import Timeline
from omni_serve.remote import DONE, PCM_RATE, BadStreamError, Remote, events

SPEECH, CHAT = "speech", "chat"
"""The scenarios: a text to speak, to ``/v1/audio/speech``; a question with a spoken answer, to ``/v1/chat/completions``."""

TEXTS = {
    SPEECH: (
        "The train to the coast leaves from platform four in ten minutes.",
        "Good morning. Your table by the window is ready whenever you like.",
        "It rained all night, and by the morning the river had come up to the road.",
        "She opened the letter, read it twice, and put it back without a word.",
    ),
    CHAT: (
        "Why is the sky blue in the day and red in the evening?",
        "How do I keep bread fresh for some days?",
        "Explain in two sentences what a queue is.",
        "Tell me a short story about a lighthouse.",
    ),
}
"""Texts that are sent where the user brings none."""


@frozen(kw_only=True)
class Workload:
    """The requests of a benchmark.

    Attributes:
        model: its name.
        scenario: :data:`SPEECH` or :data:`CHAT`.
        texts: one is drawn for each request.
        voice: of the speech; ``None``: the server's default.
        sample_rate: of the server's PCM, in Hz.
    """

    model: str
    scenario: str
    texts: Sequence[str]
    voice: str | None = None
    sample_rate: int = PCM_RATE

    def request(self, text: str) -> tuple[str, dict[str, Any]]:
        """Return the path and the body of one request."""
        voice = {"voice": self.voice} if self.voice is not None else {}
        if self.scenario == SPEECH:
            body = {"model": self.model, "input": text, "response_format": "pcm", "stream_format": "audio", **voice}
            return "/v1/audio/speech", body
        chat = {"model": self.model, "messages": [{"role": "user", "content": text}], "stream": True}
        spoken = {"modalities": ["text", "audio"], "audio": {"format": "pcm16", **voice}}
        return "/v1/chat/completions", {**chat, **spoken, "stream_options": {"include_usage": True}}


@frozen
class Load:
    """The load of a run: ``rate`` per second in an open loop, or ``concurrency`` at once in a closed one."""

    rate: float | None = None
    concurrency: int | None = None

    def __str__(self) -> str:
        return f"rate {self.rate:g}/s" if self.rate is not None else f"concurrency {self.concurrency}"


@define
class Run:
    """The measurements under one load, also if it was interrupted. ``begun`` and ``ended`` are of the event loop's clock."""

    load: Load
    begun: float = 0.0
    ended: float = 0.0
    client_lag: float = 0.0
    interrupted: bool = False
    timelines: list[Timeline] = field(factory=list)


@define
class Generator:
    """Sends a workload: so many ``requests``. ``on_done`` is called after each of them."""

    remote: Remote
    workload: Workload
    requests: int
    on_done: Callable[[Run], None] = lambda run: None

    async def run(self, load: Load) -> Run:
        """Send the requests and return their times. A cancellation ends the run, which keeps what has ended before."""
        loop = asyncio.get_running_loop()
        run = Run(load, loop.time())
        try:
            await (self._open(run, load.rate) if load.rate is not None else self._closed(run, load.concurrency or 1))
        except asyncio.CancelledError:
            run.interrupted = True
        run.ended = loop.time()
        return run

    async def _open(self, run: Run, rate: float) -> None:
        """Draw the arrivals of a Poisson process. Times count from the drawn moment, so that a slow client hides nothing."""
        loop, chance = asyncio.get_running_loop(), random.Random(0)
        due = run.begun
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.requests):
                due += chance.expovariate(rate)
                text = chance.choice(self.workload.texts)
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                run.client_lag = max(run.client_lag, loop.time() - due)
                tasks.create_task(self._one(run, text, due))

    async def _closed(self, run: Run, concurrency: int) -> None:
        """Keep ``concurrency`` requests running."""
        loop, chance, left = asyncio.get_running_loop(), random.Random(0), self.requests

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                await self._one(run, chance.choice(self.workload.texts), loop.time())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(concurrency, self.requests)):
                tasks.create_task(work())

    async def _one(self, run: Run, text: str, due: float) -> None:
        run.timelines.append(await exchange(self.remote, self.workload, text, due))
        self.on_done(run)


async def exchange(remote: Remote, workload: Workload, text: str, due: float) -> Timeline:
    """Send one request and return its times; a failure is in its ``error``."""
    loop, timeline = asyncio.get_running_loop(), Timeline(workload.scenario, due)
    path, body = workload.request(text)
    try:
        async with remote.post(path, body) as answer:
            if answer.status_code != 200:
                await answer.aread()
                timeline.error = _status(answer)
            elif workload.scenario == SPEECH:
                async for data in answer.aiter_bytes():
                    timeline.sounds.append((loop.time(), len(data) / 2 / workload.sample_rate))
            else:
                await _chat(answer, timeline, workload.sample_rate)
        if timeline.error is None and not timeline.sound:
            timeline.error = "no sound"
    except BadStreamError as error:
        timeline.error = error.kind
    except httpx2.TimeoutException:
        timeline.error = "timeout"
    except httpx2.ConnectError:
        timeline.error = "connection failed"
    except httpx2.TransportError:
        timeline.error = "connection cut"
    timeline.ended = loop.time()
    return timeline


async def _chat(answer: httpx2.Response, timeline: Timeline, sample_rate: int) -> None:
    """Keep the times of a chat's pieces of sound."""
    now, done = asyncio.get_running_loop().time, False
    async for chunk in events(answer):
        if chunk == DONE:
            done = True
            break
        if not isinstance(chunk, dict):
            raise BadStreamError("bad event", "an event's data is not an object")
        if isinstance(usage := chunk.get("usage"), dict):
            timeline.tokens = usage.get("completion_tokens")
        for choice in chunk.get("choices") or ():
            if data := ((choice.get("delta") or {}).get("audio") or {}).get("data"):
                try:
                    size = len(base64.b64decode(data, validate=True))
                except binascii.Error:
                    raise BadStreamError("bad base64", "a piece of sound is not base64") from None
                timeline.sounds.append((now(), size / 2 / sample_rate))
    if not done:
        raise BadStreamError("no [DONE]", "the stream ended without [DONE]")


def _status(answer: httpx2.Response) -> str:
    """Return the class of an error: its status and its code."""
    code = None
    with suppress(ValueError, KeyError, TypeError):
        error = answer.json()["error"]
        code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return f"{answer.status_code} {code}" if code else str(answer.status_code)
