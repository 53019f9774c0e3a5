"""A scheduler of networks that hear sound as it comes. Live streams and whole recordings take the same steps."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Hashable, Sequence
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from attrs import define, field

from omni_core.api import (
    IncomingMessage,
    InvalidRequestError,
    OmniRequest,
    ParameterGroup,
    StagePayload,
    StreamingScheduler,
    Transcript,
)
from omni_media.api import Samples
from omni_transformers.recognise.declaration import SECONDS
from omni_transformers.recognise.live_sound import LiveSound
from omni_transformers.recognise.live_text import Token, Written
from omni_transformers.recognise.turns import asked_of, recording


class Sound:
    """The end of a sound that a network has not heard yet. What it will not need again is dropped.

    Attributes:
        count: samples that have come.
        ended: no more will come.
        is_recording: all of it has come at once.
        closed: it is heard no further.
    """

    def __init__(self) -> None:
        self.count, self.ended, self.is_recording, self.closed = 0, False, False, False
        self._kept: list[Samples] = []
        self._begin = 0

    def add(self, samples: Samples) -> None:
        """Add samples ``[n]`` at the end."""
        self.count += len(samples)
        if not self.closed:
            self._kept.append(samples)

    def close(self) -> None:
        """Keep nothing of it, and of what will come only how long it is: its text has ended."""
        self.closed, self._kept = True, []

    def cut(self, begin: int, end: int, needed: int) -> Samples:
        """Return the samples from ``begin`` to ``end``, zeros where there are none; drop those before ``needed``."""
        if len(self._kept) != 1:
            self._kept = [np.concatenate(self._kept) if self._kept else np.zeros(0, np.float32)]
        [kept] = self._kept
        found = kept[max(0, begin - self._begin) : max(0, end - self._begin)]
        found = np.pad(found, (max(0, min(0, end) - begin), 0))
        drop = needed - self._begin
        if 2 * drop >= len(kept) > 0:  # not each time: a whole recording is long
            self._kept, self._begin = [kept[drop:].copy()], self._begin + min(drop, len(kept))
        made: Samples = np.pad(found, (0, end - begin - len(found)))
        return made


@define(eq=False)
class Stream:
    """One sound, as a network knows it. A network adds what it needs."""

    sound: Sound
    asked: dict[str, Any]


Heard = TypeVar("Heard", bound=Stream)


class Network(ABC, Generic[Heard]):
    """A network that hears sound as it comes, in pieces. Their bounds are its own: its text is the same for every cut of the sound.

    Attributes:
        rate: of its sound, in Hz.
        group: the parameters of its requests.
        tokenizer: of its text.
    """

    rate: int
    group: ParameterGroup
    tokenizer: Any

    @abstractmethod
    def begin(self, asked: dict[str, Any]) -> Heard:
        """Return a new stream. Raises InvalidRequestError: ``asked`` is wrong."""

    @abstractmethod
    def next(self, stream: Heard) -> Hashable:
        """Return the form of the next piece of a stream, if all of it is there; streams of one form are computed together. ``None``: it
        waits for more sound, or is at its end.
        """

    @abstractmethod
    def hear(self, streams: Sequence[Heard]) -> list[list[Token] | Exception]:
        """Compute the next piece of streams of one form; return the tokens of each, or why one of them fails."""

    def until(self, stream: Heard) -> float:
        """Return the seconds of sound that are heard, where its tokens have times."""
        return 0.0

    def is_spaced(self, asked: dict[str, Any]) -> bool:
        """Return whether the language has spaces between words."""
        return True

    def end(self, stream: Heard) -> None:
        """Give back what a stream holds; it is heard no further."""


@define(eq=False)
class _Request:
    """A request. ``early``: chunks that are not heard yet, because it waits for a place; ``is_held``: its sender waits."""

    request_id: str
    payload: StagePayload | None = None
    early: list[Any] = field(factory=list)
    stream: Any = None
    written: Any = None
    live: LiveSound | None = None
    tokens: int = 0
    is_held: bool = False


class Live(StreamingScheduler[_Request]):
    """Writes down sound as it comes; a whole recording is a sound that has come at once.

    Each turn computes one piece of every sound whose next piece is there, in as few batches as can be. A sender waits while pieces of
    its sound are left. So a live stream holds what its network says, the chunks that fit between it and its client, and its text.
    Nothing is computed while no sound comes.

    Args:
        max_seconds: the longest sound; ``None``: recordings end after :data:`SECONDS`, and a live stream goes on for ever.
        max_running: requests at one time; further ones wait.
    """

    def __init__(self, network: Network[Any], max_seconds: float | None = None, max_running: int = 16) -> None:
        super().__init__()
        self._network, self._seconds, self._most = network, max_seconds, max_running
        self._places: dict[str, _Request] = {}
        self._waiting: dict[str, _Request] = {}
        self._paused: set[str] = set()
        self.steps = self.rows = 0

    def pause(self, request_id: str, paused: bool) -> None:
        """Hear a request no further while it is paused. From any thread."""
        (self._paused.add if paused else self._paused.discard)(request_id)
        self.inbox.put(IncomingMessage("", "stream_done"))

    def statistics(self) -> dict[str, float]:
        """Return counters: of requests that wait for a place and those that have one, and of pieces and batches that were computed."""
        waiting, running = len(self.inbox) + len(self._waiting), len(self._places)
        return {
            "waiting": float(waiting),
            "running": float(running),
            "pieces": float(self.rows),
            "batches": float(self.steps),
        }

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Request:
        state = self._waiting[request_id] = _Request(request_id)
        return state

    def on_payload(self, state: _Request, payload: StagePayload) -> None:
        state.payload = payload

    def on_chunk(self, state: _Request, chunk: Any, metadata: dict[str, Any] | None) -> None:
        state.early.append(chunk)

    def _begin_waiting(self) -> dict[str, BaseException]:
        """Begin requests while there are places; return the errors of those that are wrong."""
        failures: dict[str, BaseException] = {}
        for name, state in list(self._waiting.items()):
            if len(self._places) >= self._most:
                break
            if state.payload is not None:
                self._places[name] = self._waiting.pop(name)
                try:
                    self._begin(state, state.payload)
                except BaseException as error:
                    failures[name] = error
        return failures

    def _begin(self, state: _Request, payload: StagePayload) -> None:
        network, asked = self._network, asked_of(payload, self._network.group)
        state.stream = network.begin(asked)
        state.written = Written(network.tokenizer, asked.get("timestamps", "none"), network.is_spaced(asked))
        if payload.request.is_streamed:
            state.live = LiveSound(network.rate, self._seconds)
        else:
            state.stream.sound.add(recording(payload.request, network.rate, self._seconds or SECONDS))
            state.stream.sound.ended = state.stream.sound.is_recording = True

    def _hear_early(self, name: str, state: _Request) -> None:
        """Give a stream the sound that has come."""
        if state.live is None:
            if state.early:
                raise InvalidRequestError(
                    "messages: a request with a recording takes no further sound; open one without messages"
                )
            return
        for chunk in state.early:
            state.stream.sound.add(state.live.add(chunk))
        state.early.clear()
        if self.is_whole(name) and not state.stream.sound.ended:
            state.stream.sound.add(state.live.finish())
            state.stream.sound.ended = True

    def step(self, states: dict[str, _Request]) -> dict[str, BaseException]:
        failures = self._begin_waiting()
        for name, state in states.items():
            try:
                if state.stream is not None:
                    self._hear_early(name, state)
            except BaseException as error:
                failures[name] = error
        left = {name: state for name, state in states.items() if name in self._places and name not in failures}
        groups: defaultdict[Hashable, list[_Request]] = defaultdict(list)
        for name, state in left.items():
            if name not in self._paused and (form := self._form(state)) is not None:
                groups[form].append(state)
        for group in groups.values():
            failures |= self._hear(group)
        behind = {name for name, state in left.items() if name not in failures and self._form(state) is not None}
        self.wait = 0 if behind - self._paused else None
        self.unfinished = dict.fromkeys([*behind, *self._waiting])
        for name, state in states.items():
            if state.is_held != (name in self.unfinished):
                state.is_held = not state.is_held
                self.hold_input(name, state.is_held)
        return failures

    def finish(self, request_id: str, state: _Request) -> Transcript:
        sound, written = state.stream.sound, state.written
        duration = sound.count / self._network.rate
        if (chunk := written.end(duration)) is not None:
            self.emit(request_id, chunk)
        usage = {"prompt_tokens": 0, "completion_tokens": state.tokens}
        language = state.stream.asked.get("language")
        return Transcript(written.text, language, written.segments, written.words, duration, "stop", usage)

    def forget(self, request_id: str) -> None:
        super().forget(request_id)
        self._waiting.pop(request_id, None)
        self._paused.discard(request_id)
        state = self._places.pop(request_id, None)
        if state is not None and state.stream is not None:
            self._network.end(state.stream)
        if self._waiting:  # for the place
            self.wait = 0

    def _form(self, state: _Request) -> Hashable:
        return None if state.stream is None else self._network.next(state.stream)

    def _hear(self, group: list[_Request]) -> dict[str, BaseException]:
        try:
            with torch.inference_mode():
                made = self._network.hear([each.stream for each in group])
        except BaseException as error:
            return {each.request_id: error for each in group}
        self.steps += 1
        self.rows += len(group)
        failures: dict[str, BaseException] = {}
        for state, tokens in zip(group, made, strict=True):
            if isinstance(tokens, Exception):
                failures[state.request_id] = tokens
                continue
            state.tokens += len(tokens)
            chunk = state.written.add(tokens, self._network.until(state.stream))
            if chunk is not None:
                self.emit(state.request_id, chunk)
        return failures
