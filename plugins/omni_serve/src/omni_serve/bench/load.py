"""Sends requests in an open loop (arrivals at random) or a closed one (so many at once), and keeps their times."""

from __future__ import annotations

import asyncio
import base64
import binascii
import random
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import httpx2
from attrs import define, field, frozen

from omni_serve.bench.duplex import converse
from omni_serve.bench.scenarios import REALTIME, Workload
from omni_serve.bench.timeline import Timeline
from omni_serve.remote import DONE, PCM_RATE, BadStreamError, Remote, events


@frozen
class Load:
    """The load of a run: ``rate`` per second in an open loop, or ``concurrency`` at once in a closed one."""

    rate: float | None = None
    concurrency: int | None = None

    def __str__(self) -> str:
        return f"rate {self.rate:g}/s" if self.rate is not None else f"concurrency {self.concurrency}"

    @property
    def value(self) -> float:
        """The number for an axis."""
        return self.rate if self.rate is not None else float(self.concurrency or 0)


@define
class Run:
    """The measurements under one load, also if it was interrupted. ``begun`` and ``ended`` are of the event loop's clock."""

    load: Load
    begun: float = 0.0
    ended: float = 0.0
    client_lag: float = 0.0
    sent: int = 0
    interrupted: bool = False
    timelines: list[Timeline] = field(factory=list)

    @property
    def seconds(self) -> float:
        """The duration of the run."""
        return self.ended - self.begun

    @property
    def unfinished(self) -> int:
        """Requests that the end of the run cut off; they are in no figure."""
        return self.sent - len(self.timelines)


@define
class Generator:
    """Sends a workload.

    Attributes:
        requests: how many. seconds: an end before that. seed: of the drawn requests and arrivals.
        sample_rate: of the server's PCM. on_done: called after each request.
    """

    remote: Remote
    workload: Workload
    requests: int
    seconds: float | None = None
    seed: int = 0
    sample_rate: int = PCM_RATE
    on_done: Callable[[Run], None] = lambda run: None

    async def run(self, load: Load) -> Run:
        """Send the requests and return their times. A cancellation ends the run, which keeps what has ended before."""
        loop = asyncio.get_running_loop()
        run = Run(load, loop.time())
        try:
            async with asyncio.timeout(self.seconds):
                await (
                    self._open(run, load.rate) if load.rate is not None else self._closed(run, load.concurrency or 1)
                )
        except TimeoutError:
            pass  # what is unfinished is left out: its end is unknown
        except asyncio.CancelledError:
            run.interrupted = True
        run.ended = loop.time()
        return run

    async def _open(self, run: Run, rate: float) -> None:
        """Draw the arrivals of a Poisson process. Times count from the drawn moment, so that a slow client hides nothing."""
        loop, chance = asyncio.get_running_loop(), random.Random(self.seed)
        due = run.begun
        async with asyncio.TaskGroup() as tasks:
            for _ in range(self.requests):
                due += chance.expovariate(rate)
                request = self.workload.draw(chance)
                if (wait := due - loop.time()) > 0:
                    await asyncio.sleep(wait)
                run.client_lag = max(run.client_lag, loop.time() - due)
                tasks.create_task(self._one(run, *request, due))

    async def _closed(self, run: Run, concurrency: int) -> None:
        """Keep ``concurrency`` requests running."""
        loop, chance, left = asyncio.get_running_loop(), random.Random(self.seed), self.requests

        async def work() -> None:
            nonlocal left
            while left > 0:
                left -= 1
                request = self.workload.draw(chance)
                await self._one(run, *request, loop.time())

        async with asyncio.TaskGroup() as tasks:
            for _ in range(min(concurrency, self.requests)):
                tasks.create_task(work())

    async def _one(self, run: Run, scenario: str, path: str, body: dict[str, Any], due: float) -> None:
        run.sent += 1
        timeline = await exchange(self.remote, scenario, path, body, due, self.sample_rate)
        run.timelines.append(timeline)
        self.on_done(run)


async def exchange(
    remote: Remote, scenario: str, path: str, body: dict[str, Any], due: float, sample_rate: int = PCM_RATE
) -> Timeline:
    """Send one request and return its times; a failure is in its ``error``."""
    loop, timeline = asyncio.get_running_loop(), Timeline(scenario, due)
    wants_sound = path in ("/v1/audio/speech", REALTIME) or "audio" in body.get("modalities", ())
    try:
        if path == REALTIME:
            await converse(remote, body, timeline, remote.timeout)
        else:
            await _request(remote, path, body, timeline, sample_rate)
        if timeline.error is None and wants_sound and not timeline.sound:
            timeline.error = "no sound"
    except BadStreamError as error:
        timeline.error = error.kind
    except httpx2.TimeoutException:
        timeline.error = "timeout"
    except httpx2.ConnectError:
        timeline.error = "connection failed"
    except httpx2.TransportError:
        timeline.error = "connection cut"
    timeline.ended = timeline.ended or loop.time()
    return timeline


async def _request(remote: Remote, path: str, body: dict[str, Any], timeline: Timeline, sample_rate: int) -> None:
    now = asyncio.get_running_loop().time
    async with remote.post(path, body) as answer:
        if answer.status_code != 200:
            await answer.aread()
            timeline.error = _status(answer)
        elif path == "/v1/audio/speech":
            async for data in answer.aiter_bytes():
                timeline.sounds.append((now(), len(data) / 2 / sample_rate))
        else:
            await _chat(answer, timeline, sample_rate)


async def _chat(answer: httpx2.Response, timeline: Timeline, sample_rate: int) -> None:
    """Keep the times of a chat's events."""
    now, done = asyncio.get_running_loop().time, False
    async for chunk in _chunks(answer):
        if chunk == DONE:
            done = True
            break
        if isinstance(usage := chunk.get("usage"), dict):
            timeline.tokens = usage.get("completion_tokens")
        for choice in chunk.get("choices") or ():
            delta = choice.get("delta") or {}
            audio = delta.get("audio") or {}
            if delta.get("content") or audio.get("transcript"):
                timeline.texts.append(now())
            if audio.get("data"):
                try:
                    size = len(base64.b64decode(audio["data"], validate=True))
                except binascii.Error:
                    raise BadStreamError("bad base64", "a piece of sound is not base64") from None
                timeline.sounds.append((now(), size / 2 / sample_rate))
    if not done:
        raise BadStreamError("no [DONE]", "the stream ended without [DONE]")


async def _chunks(answer: httpx2.Response) -> AsyncIterator[Any]:
    async for _, data in events(answer):
        if data != DONE and not isinstance(data, dict):
            raise BadStreamError("bad event", "an event's data is not an object")
        yield data


def _status(answer: httpx2.Response) -> str:
    """Return the class of an error: its status and its code."""
    code = None
    with suppress(ValueError, KeyError, TypeError):
        error = answer.json()["error"]
        code = error.get("code") or error.get("type") if isinstance(error, dict) else None
    return f"{answer.status_code} {code}" if code else str(answer.status_code)
