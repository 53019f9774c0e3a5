"""The stage that speaks: requests take turns, piece by piece, each with random numbers of its own."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from collections.abc import Generator, Iterator
from contextlib import closing
from typing import Any

import numpy as np
import torch
from attrs import evolve, field, frozen

from omni_core.api import (
    SEED,
    VOICE,
    AudioChunk,
    AudioResult,
    InvalidRequestError,
    OmniRequest,
    Scheduler,
    StagePayload,
    Word,
    load,
)
from omni_media.api import Limits, MediaSource, Samples, sound
from omni_transformers.calls.batch import Calls
from omni_transformers.calls.choice import calls_of
from omni_transformers.calls.lines import Line, turn_in_process
from omni_transformers.interleaved import Interleaved
from omni_transformers.speak.speaker import Asked, BySentence, Loading, Said, Speaker, Spoken, Together, sentences
from omni_transformers.speak.speaks import GROUP, MOST_CHARACTERS
from omni_transformers.speak.turns import Noise
from omni_transformers.speak.written import TextScheduler, Written

RECORDING = Limits(max_audio_seconds=60.0)
"""Of a voice."""


def create_speaker(
    model_path: str,
    speaker: str,
    device: str = "cpu",
    dtype: str = "auto",
    vocoder: str | None = None,
    voices: str | None = None,
    backend: str = "auto",
    max_running: int = 8,
    max_batch_size: int | None = None,
    kv_cache_mb: int | None = None,
    max_characters: int = MOST_CHARACTERS,
    tells_parts: bool = False,
) -> Scheduler:
    """Return the stage of a model that speaks.

    Args:
        speaker: reference of a :class:`Speaker` or a :class:`Together`.
        backend: ``auto``, ``engine``, ``steps`` or ``generate``.
        max_running: requests that speak at one time; further ones wait.
        max_batch_size: sentences that a :class:`Together` speaks at once; by default 8 on a GPU. A CPU gains nothing by more than 1.
        kv_cache_mb: of the engine's cache.
        max_characters: of a text that is still being written.
        tells_parts: streams ``{"said": text}`` behind the sound of each part of a text, for a stage that aligns them.

    Raises:
        ConfigError: the checkpoint cannot be loaded, or does not fit the backend.
    """
    made: Spoken = load(speaker)(Loading(model_path, device, dtype, vocoder, voices))
    if isinstance(made, Together):
        most = max_batch_size or (1 if device == "cpu" else 8)
        return SideBySide(made, device, most, max(most, max_running), max_characters)
    assert isinstance(made, Speaker)
    running = 1 if backend == "generate" else max_running
    calls = None
    if made.loop is not None:
        calls = calls_of(made.loop, backend, running, kv_cache_mb)
    return InTurns(made, device, running, calls, max_characters, tells_parts)


class InTurns(TextScheduler[Line], Interleaved):
    """Speaks piece by piece, in turns.

    Args:
        model: the loaded model.
        device: it computes there.
        calls: see :class:`Interleaved`.
        max_characters: of a text that is still being written.
        tells_parts: see :func:`create_speaker`.
    """

    def __init__(
        self,
        model: Speaker,
        device: str,
        max_running: int,
        calls: Calls | None,
        max_characters: int,
        tells_parts: bool = False,
    ) -> None:
        super().__init__(self._speak, max_running, calls, cuts=model.cuts, most_characters=max_characters)
        self._model, self._device, self._tells_parts = model, device, tells_parts

    def _speak(self, payload: StagePayload) -> Generator[Any, None, AudioResult]:
        text = self.texts[payload.request_id]
        asked = asked_of(payload.request, self._model, text)
        begin = noise = Noise(asked.given.get(SEED), self._device)
        pieces: list[Samples] = []
        for part in self._parts(text, asked):
            if part is None:
                yield None
                continue
            said, spoken = part
            if not isinstance(self._model, BySentence):  # each is a speech of its own, in the same voice
                noise = begin.copy()
            with closing(iter(spoken)) as sounds:  # type: ignore[type-var]  # speakers are generators
                while True:
                    with noise(), torch.inference_mode():
                        try:
                            piece = next(sounds)
                        except StopIteration:
                            break
                    if piece is None or not piece.numel():
                        yield None
                        continue
                    pieces.append(_samples(piece))
                    yield AudioChunk(pieces[-1], self._model.rate)
            if self._tells_parts:
                yield {"said": said}
        if text.error is not None:
            raise text.error
        return _whole(pieces, self._model.rate, asked)

    def _parts(self, text: Written, asked: Asked) -> Iterator[tuple[str, Iterator[torch.Tensor | None]] | None]:
        """Yield each part of a text and its sound; ``None`` where more must be written first."""
        if text.whole is not None:
            text.is_speaking = True
            if self._tells_parts and isinstance(self._model, BySentence):
                yield from ((sentence, self._model.say(sentence, asked)) for sentence in sentences(asked.text))
            else:
                yield asked.text, self._model.speak(asked)
            return
        while not text.is_spoken:
            text.is_speaking = False
            if text.next is None:
                yield None
            else:
                part = text.take()
                yield part, self._model.say(part, asked)


@frozen
class _Text:
    """A request of :class:`SideBySide`: the text that is left, and the sound of what was before."""

    asked: Asked
    noise: Noise
    text: Written
    pieces: list[Samples] = field(factory=list)
    words: list[Word] = field(factory=list)
    told: int = 0  # words that were told before the last piece


class SideBySide(TextScheduler[_Text]):
    """Speaks a sentence of each request in every step.

    Args:
        model: the loaded model.
        device: it computes there.
        max_characters: of a text that is still being written.
    """

    def __init__(
        self, model: Together, device: str, max_batch_size: int, max_running: int, max_characters: int
    ) -> None:
        super().__init__(max_batch_size, max_running, cuts=model.cuts, most_characters=max_characters)
        self._model, self._device = model, device

    def begin(self, payload: StagePayload) -> _Text:
        text = self.texts[payload.request_id]
        asked = asked_of(payload.request, self._model, text)
        with turn_in_process():
            noise = Noise(asked.given.get(SEED), self._device)
        return _Text(asked, noise, text)

    def key(self, state: _Text) -> str:
        return "sentence"

    def step(self, states: list[_Text]) -> list[_Text]:
        noises = [state.noise.copy() for state in states]
        with turn_in_process(), torch.inference_mode():
            said = self._model.say_all([(state.text.next or "", state.asked) for state in states], noises)
        for state in states:
            state.text.take()
            state.text.is_speaking = False
        return [self._added(*each) for each in zip(states, noises, said, strict=True)]

    def _added(self, state: _Text, noise: Noise, said: Said) -> _Text:
        start = sum(map(len, state.pieces)) / self._model.rate
        words = [evolve(each, start=start + each.start, end=start + each.end) for each in said.words]
        pieces = [*state.pieces, _samples(said.sound)]
        return _Text(state.asked, noise, state.text, pieces, [*state.words, *words], len(state.words))

    def is_done(self, state: _Text) -> bool:
        return state.text.is_spoken

    def progress(self, state: _Text) -> AudioChunk | None:
        if not len(state.pieces[-1]):
            return None
        return AudioChunk(state.pieces[-1], self._model.rate, words=state.words[state.told :])

    def finish(self, state: _Text) -> AudioResult:
        if state.text.error is not None:
            raise state.text.error
        return evolve(_whole(state.pieces, self._model.rate, state.asked), words=state.words)


def _samples(piece: torch.Tensor) -> Samples:
    found: Samples = piece.detach().reshape(-1).float().clamp(-1.0, 1.0).numpy(force=True)
    return found


def _whole(pieces: list[Samples], rate: int, asked: Asked) -> AudioResult:
    samples = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    return AudioResult(samples, rate, notices=[*dict.fromkeys(asked.notices)])


def asked_of(request: OmniRequest, model: Spoken, text: Written) -> Asked:
    """Read a request to a model.

    Raises:
        InvalidRequestError: a recording is not readable.
    """
    reference = None
    references = (request.inputs or {}).get("references") or []
    if (
        not isinstance(references, list)
        or len(references) > 1
        or not all(isinstance(each, dict) for each in references)
    ):
        raise InvalidRequestError("references: one recording of a voice, [{'path': ..., 'text': ...}]")
    if references and not model.reference:
        raise InvalidRequestError("references: this model cannot speak with the voice of a recording")
    for each in references:
        reference = (
            sound(MediaSource("recording", each, "references[0]"), model.rate, RECORDING),
            each.get("text") or None,
        )
    given = dict(request.params.get(GROUP, {}))
    return Asked(text.whole or "", request.metadata.get(VOICE), given, reference)
