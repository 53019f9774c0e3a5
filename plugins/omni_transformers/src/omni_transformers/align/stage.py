"""The stage behind a voice that tells when its words are heard. The sound passes at once, the words of each part follow it."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import Any, Protocol

import numpy as np
from attrs import define, evolve, field

from omni_core.api import (
    WORD_TIMES,
    AudioChunk,
    AudioResult,
    OmniRequest,
    StagePayload,
    StreamingScheduler,
    Word,
)
from omni_media.api import Samples


class Aligns(Protocol):
    """A network that finds words in a sound; see :class:`omni_transformers.align.network.Network`."""

    def words(self, text: str, samples: Samples, rate: int) -> list[Word] | None:
        """Return the words of a text with their times in its sound; ``None``: it cannot be aligned."""
        ...


@define(eq=False)
class _Speech:
    """A request.

    Attributes:
        asks: its words are to be told.
        passing: sound that has come and is not passed on.
        heard: the sound of the part that is being spoken.
        text: that of the whole sound, of a voice that tells no parts.
        rate: of the sound, in Hz.
        samples: those of the parts that are spoken.
        parts: those that are not aligned: text, sound, and the sample with which it begins.
    """

    asks: bool
    result: AudioResult | None = None
    passing: list[AudioChunk] = field(factory=list)
    heard: list[Samples] = field(factory=list)
    text: str = ""
    rate: int = 0
    samples: int = 0
    parts: deque[tuple[str, Samples, int]] = field(factory=deque)
    words: list[Word] = field(factory=list)
    notices: list[str] = field(factory=list)

    def end_part(self, text: str) -> None:
        """Take in that the sound of a text has come."""
        sound = np.concatenate([np.zeros(0, np.float32), *self.heard])
        self.parts.append((text, sound, self.samples))
        self.heard.clear()
        self.samples += len(sound)


class Aligner(StreamingScheduler[_Speech]):
    """Passes the sound of a voice on, and tells the words of requests that ask for them.

    Its input is :class:`AudioChunk`, then an :class:`AudioResult`. The voice streams ``{"said": text}`` behind the sound of each part of
    the text, in the order in which they are spoken. Of one that does not know its parts, another stage streams ``{"text": piece}``, and
    the whole is aligned at the end. In each turn one part is aligned.

    Args:
        sources: the stages that stream, if there are several.
    """

    def __init__(self, network: Aligns, sources: Sequence[str] = ()) -> None:
        super().__init__(tuple(sources))
        self._network = network

    def new_state(self, request_id: str, request: OmniRequest | None) -> _Speech:
        return _Speech(request is not None and request.params.get(WORD_TIMES.name) == "word")

    def on_payload(self, state: _Speech, payload: StagePayload) -> None:
        state.result = payload.data

    def on_chunk(self, state: _Speech, chunk: Any, metadata: dict[str, Any] | None) -> None:
        if isinstance(chunk, AudioChunk):
            state.passing.append(chunk)
            if state.asks:
                state.heard.append(np.asarray(chunk.samples, np.float32))
                state.rate = chunk.sample_rate
        elif state.asks and "said" in chunk:
            state.end_part(chunk["said"])
        elif state.asks:
            state.text += chunk["text"]

    def step(self, states: dict[str, _Speech]) -> dict[str, BaseException]:
        failures: dict[str, BaseException] = {}
        for name, state in states.items():
            for chunk in state.passing:
                self.emit(name, chunk)
            state.passing.clear()
            if state.text and self.is_whole(name):
                state.end_part(state.text)
                state.text = ""
        due = [name for name, state in states.items() if state.parts and not self.is_aborted(name)]
        if due:
            try:
                self._align(due[0], states[due[0]])
            except BaseException as error:
                failures[due[0]] = error
        turns = [*due[1:], *due[:1]]
        self.unfinished = {name: None for name in turns if name not in failures and states[name].parts}
        self.wait = 0.0 if self.unfinished else None
        return failures

    def finish(self, request_id: str, state: _Speech) -> AudioResult:
        result = state.result
        assert result is not None
        return evolve(result, words=state.words, notices=[*result.notices, *state.notices])

    def _align(self, request_id: str, state: _Speech) -> None:
        text, sound, begin = state.parts.popleft()
        found = self._network.words(text, sound, state.rate)
        if found is None:
            state.notices.append(f"the words of {text[:40]!r} have no times: they cannot be aligned with their sound")
        elif found:
            start = begin / state.rate
            words = [evolve(each, start=start + each.start, end=start + each.end) for each in found]
            state.words += words
            self.emit(request_id, AudioChunk(np.zeros(0, np.float32), state.rate, words=words))


def create_aligner(aligner: str, device: str = "cpu", dtype: str = "auto", sources: Sequence[str] = ()) -> Aligner:
    """Return the stage.

    Args:
        aligner: folder or hub id of a CTC recogniser.
        sources: see :class:`Aligner`.

    Raises:
        ConfigError: it cannot be loaded.
    """
    from omni_transformers.align.network import Network
    from omni_transformers.checkpoints import fetch

    return Aligner(Network(fetch(aligner), device, dtype), sources)
