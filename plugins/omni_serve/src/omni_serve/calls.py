"""One request on its way through the pipeline: admission, the pieces of its reply, what is measured, and the abort if nobody reads.

Streaming or not, a request is answered by the same code; an answer that is not streamed is the collected stream.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any, cast

import numpy as np
from attrs import define, evolve, field

from omni_core.api import (
    TEXT,
    AudioChunk,
    AudioResult,
    OmniRequest,
    ReasoningChunk,
    RequestAbortedError,
    TextChunk,
    TextResult,
    TokenLogprob,
    Transcript,
    TranscriptChunk,
    Word,
)
from omni_core.runtime_api import StreamEvent
from omni_serve.auth import Key
from omni_serve.body_budget import Held
from omni_serve.encoders import Samples
from omni_serve.errors import ApiError, api_error, invalid, placed
from omni_serve.live_input import LiveInput
from omni_serve.media import share_of
from omni_serve.server import Server
from omni_serve.usage import of_tokens
from omni_serve.voice_store import Voice


@define
class Sound:
    """A piece of speech: mono float32 samples, and the words that end in it or before it, with their times in the whole speech."""

    samples: Samples
    rate: int
    words: list[Word] = field(factory=list)

    @property
    def seconds(self) -> float:
        """Its length."""
        return len(self.samples) / self.rate


class Thought(str):
    """A piece of what the model thinks before it answers."""

    __slots__ = ()


class Guess(str):
    """The words that may follow in a transcript, and may still change: each replaces the one before."""

    __slots__ = ()


class Heard(str):
    """A piece of a transcript, with what is told of it: the text is that of the chunk, which may be empty."""

    chunk: TranscriptChunk

    @classmethod
    def of(cls, chunk: TranscriptChunk) -> Heard:
        """Return a chunk as a piece."""
        made = cls(chunk.text)
        made.chunk = chunk
        return made


@define(eq=False)
class Call:
    """One request. After :meth:`pieces` has ended, the attributes say what came beside the pieces.

    Attributes:
        speech: true if it is answered with speech.
        transcribes: true if its text is that of a transcript; otherwise a pipeline that also answers keeps what it has heard to itself.
        body: what it holds of the budget of bodies, until the pipeline has its inputs; the guard has counted it as a request of its key in
            progress.
        arrived: ``time.perf_counter`` of its arrival.
        usage: tokens by name, as the pipeline counts them.
        transcript: the whole of it, with its times.
        input: the input that is still coming; the request is without it.
        guesses: true if :meth:`pieces` has :class:`Guess` pieces, too.
        tells: true if its pieces of text are :class:`Heard` ones: all that is told of segments, words and tokens comes with them.
        heard_seconds: of the recording that is to be written down, by its header.
        logprobs: of the tokens of its text, where they are asked for; those that :meth:`fresh_logprobs` has not returned.
        fields: the client's fields by those of the pipeline, for errors.
        thinks: true if :meth:`pieces` has :class:`Thought` pieces, too; ``thoughts`` has all of them in any case.
    """

    server: Server
    key: Key
    request: OmniRequest
    speech: bool
    transcribes: bool = field(default=False, kw_only=True)
    thinks: bool = field(default=False, kw_only=True)
    guesses: bool = field(default=False, kw_only=True)
    tells: bool = field(default=False, kw_only=True)
    heard_seconds: float = field(default=0.0, kw_only=True)
    input: LiveInput | None = field(default=None, kw_only=True)
    body: Held | None = field(default=None, kw_only=True)
    arrived: float = field(factory=time.perf_counter)
    identity: str = field(factory=lambda: secrets.token_hex(16))
    usage: dict[str, int] = field(factory=dict)
    finish_reason: str = "stop"
    notices: list[str] = field(factory=list)
    transcript: Transcript | None = None
    thoughts: str = ""
    logprobs: list[TokenLogprob] = field(factory=list)
    fields: dict[str, str] = field(factory=dict, kw_only=True)
    audio_seconds: float = 0.0
    _first_sound: float | None = None
    _last_sound: float = 0.0
    _wrote: bool = False
    _told_words: int = 0
    _guess: str = ""
    _told: Counter[str] = field(factory=Counter)
    _texts: int = 0

    async def pieces(self) -> AsyncGenerator[str | Sound]:
        """Yield pieces of text and of speech as they are made.

        Raises:
            ApiError: the request was refused, or failed; see :func:`omni_serve.errors.api_error`.
        """
        server = self.server
        server.units.check(speech=self.speech)
        if self.body is None:
            server.admission.count(self.key)
        share = await share_of(self.request.inputs, server.settings.limits)
        media = await server.media.take(self.key, share)
        try:
            place = server.admission.admit(self.key, held=self.body is not None)
        except ApiError:
            media.leave()
            raise
        timeout = self.request.timeout or server.settings.request_seconds or None
        try:
            async with place:
                request = await with_recordings(evolve(self.request, timeout=timeout, stream=True))
                events = as_generator(
                    server.pipe.stream(request, self.identity)
                    if self.input is None
                    else self._live(request, self.input)
                )
                self.request = request = request.without_inputs()  # they are large, and the answer may take long
                async with aclosing(events):
                    async for event in events:
                        if self.body is not None:
                            self.body.give_back()
                        media.leave()  # the first result comes after the media have been read
                        piece = self._piece(event.data)
                        if self.tells and not isinstance(piece, Sound):
                            piece = self._heard(piece, event.data)
                        if piece is not None:
                            yield piece
                        if (
                            self.guesses
                            and isinstance(event.data, TranscriptChunk)
                            and self._guess != event.data.tentative
                        ):
                            self._guess = event.data.tentative
                            yield Guess(self._guess)
        except (GeneratorExit, asyncio.CancelledError):
            server.metrics.cancelled.inc()
            raise
        except ApiError:
            raise
        except RequestAbortedError as error:
            if server.admission.draining:  # by us: nobody waits for its end any more
                raise server.admission.shutting_down() from error
            raise api_error(error) from error
        except Exception as error:
            with placed(self.fields):
                raise api_error(error) from error
        finally:
            media.leave()
            self._account()

    def fresh_logprobs(self) -> list[TokenLogprob]:
        """Return the log probabilities that have come since the last call."""
        found, self.logprobs = self.logprobs, []
        return found

    async def _live(self, request: OmniRequest, pieces: LiveInput) -> AsyncGenerator[StreamEvent]:
        kind = "audio" if self.transcribes else "text"
        events = pieces.events(self.server.pipe.open_request, request, self.identity)
        with self.server.metrics.live.labels(kind).track_inprogress():
            async with aclosing(events):
                async for event in events:
                    yield event

    async def whole(self) -> tuple[str, list[Samples], int]:
        """Return the text, the samples of the speech and their rate."""
        texts: list[str] = []
        sounds: list[Samples] = []
        rate = 0
        async with aclosing(self.pieces()) as pieces:
            async for piece in pieces:
                if isinstance(piece, str):
                    texts += [] if isinstance(piece, Thought | Guess) else [piece]
                else:
                    sounds.append(piece.samples)
                    rate = piece.rate
        return "".join(texts), sounds, rate

    def _piece(self, data: Any) -> str | Sound | None:
        """Return what a result adds: a stage that has streamed adds nothing with its whole result."""
        if (
            isinstance(data, TranscriptChunk | Transcript)
            and not self.transcribes
            and TEXT in self.server.interface.roles
        ):
            return None
        if isinstance(data, TextChunk):
            self.logprobs += data.logprobs
            return self._text(data.text)
        if isinstance(data, TranscriptChunk):
            return self._text(data.text)
        if isinstance(data, ReasoningChunk):
            self.thoughts += data.text
            return Thought(data.text) if self.thinks and data.text else None
        if isinstance(data, AudioChunk):
            return self._sound(data)
        if isinstance(data, TextResult | Transcript):
            self.usage |= data.usage
            self.finish_reason = data.finish_reason
            self.notices += data.notices
            self.transcript = data if isinstance(data, Transcript) else self.transcript
            self.thoughts = self.thoughts or getattr(data, "reasoning", "")
            if self._wrote:
                return None
            self.logprobs += getattr(data, "logprobs", ())
            return self._text(data.text)
        if isinstance(data, AudioResult):
            self.usage |= data.usage
            self.notices += data.notices
            if self._first_sound is None:
                return self._sound(data)
            words = data.words[self._told_words :]
            return Sound(np.zeros(0, np.float32), data.sample_rate, words) if words else None
        if isinstance(data, str):
            return self._text(data)
        return None

    def _heard(self, text: str | None, data: Any) -> Heard | None:
        """Return a piece of text with what a result tells of it: of a whole transcript, what no chunk has told."""
        found: dict[str, Any] = {}
        for name in ("segments", "words", "logprobs"):
            new = getattr(data, name, [])[self._told[name] if isinstance(data, Transcript) else 0 :]
            self._told[name] += len(new)
            found[name] = new
        return Heard.of(TranscriptChunk(text or "", **found)) if text or any(found.values()) else None

    def _text(self, text: str) -> str | None:
        if not text:
            return None
        self._texts += 1
        if not self._wrote:
            self._wrote = True
            if self.input is not None:  # it may be heard long before its end
                return text
            self.server.metrics.ttft.observe(time.perf_counter() - self.arrived)
        return text

    def _sound(self, data: AudioChunk | AudioResult) -> Sound | None:
        samples = np.asarray(data.samples, np.float32).reshape(-1)
        self._told_words += len(data.words)
        if not len(samples):
            return Sound(samples, data.sample_rate, data.words) if data.words else None
        now, metrics = time.perf_counter(), self.server.metrics
        if self._first_sound is None:
            self._first_sound = now
            metrics.ttfa.observe(now - self.arrived)
        else:
            metrics.gap.observe(now - self._last_sound)
            if now - self._first_sound > self.audio_seconds:  # what was sent has been played
                metrics.underruns.inc()
                self._first_sound = now - self.audio_seconds
        self._last_sound = now
        self.audio_seconds += len(samples) / data.sample_rate
        return Sound(samples, data.sample_rate, data.words)

    @property
    def heard(self) -> float:
        """The seconds of the recording that is written down; 0: not known."""
        told = self.transcript.duration if self.transcript is not None else None
        return told or self.heard_seconds

    def _account(self) -> None:
        metrics = self.server.metrics
        if self.audio_seconds:
            metrics.audio_seconds.inc(self.audio_seconds)
            if self.input is None:
                metrics.rtf.observe((self._last_sound - self.arrived) / self.audio_seconds)
        # An answer that was broken off has not been counted by the pipeline: a piece of its text is at least a token.
        tokens = of_tokens(self.usage)["total_tokens"] or self._texts
        self.server.admission.charge(self.key, tokens, self.audio_seconds + self.heard)
        for kind in ("prompt_tokens", "completion_tokens"):
            if kind in self.usage:
                metrics.tokens.labels(kind.removesuffix("_tokens")).inc(self.usage[kind])


async def with_recordings(request: OmniRequest) -> OmniRequest:
    """Return the request with its uploaded voices read: in a thread, because the disk may be slow.

    Raises:
        ApiError: 400, a voice has been deleted in the meantime.
    """
    references = request.inputs.get("references") if isinstance(request.inputs, dict) else None
    if not references:
        return request
    try:
        read = [await asyncio.to_thread(each.reference) if isinstance(each, Voice) else each for each in references]
    except FileNotFoundError:
        raise invalid("voice: it has been deleted", "voice", "voice_not_found") from None
    return evolve(request, inputs={**request.inputs, "references": read})


def as_generator(events: AsyncIterator[Any]) -> AsyncGenerator[Any]:
    """Return the iterator as what it is: leaving it must close it at once, not when it is garbage-collected."""
    return cast(AsyncGenerator[Any], events)
