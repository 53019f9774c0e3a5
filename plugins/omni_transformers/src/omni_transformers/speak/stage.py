"""The stage that speaks: requests take turns, piece by piece, each with random numbers of its own."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from collections.abc import Generator
from contextlib import closing
from typing import Any

import numpy as np
import torch
from attrs import field, frozen

from omni_core.api import (
    SEED,
    VOICE,
    AudioChunk,
    AudioResult,
    InvalidRequestError,
    OmniRequest,
    Scheduler,
    StagePayload,
    load,
    text_of,
)
from omni_media.api import Limits, MediaSource, Samples, sound
from omni_torch.api import StepScheduler
from omni_transformers.calls.choice import calls_of
from omni_transformers.calls.lines import turn_in_process
from omni_transformers.interleaved import Interleaved
from omni_transformers.speak.speaker import Asked, Loading, Speaker, Spoken, Together, sentences
from omni_transformers.speak.speaks import GROUP
from omni_transformers.speak.turns import Noise

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
) -> Scheduler:
    """Return the stage of a model that speaks.

    Args:
        speaker: reference of a :class:`Speaker` or a :class:`Together`.
        backend: ``auto``, ``engine``, ``steps`` or ``generate``.
        max_running: requests that speak at one time; further ones wait.
        max_batch_size: sentences that a :class:`Together` speaks at once; by default 8 on a GPU. A CPU gains nothing by more than 1.
        kv_cache_mb: of the engine's cache.

    Raises:
        ConfigError: the checkpoint cannot be loaded, or does not fit the backend.
    """
    made: Spoken = load(speaker)(Loading(model_path, device, dtype, vocoder, voices))
    if isinstance(made, Together):
        most = max_batch_size or (1 if device == "cpu" else 8)
        return SideBySide(made, device, most, max(most, max_running))
    assert isinstance(made, Speaker)

    def speak(payload: StagePayload) -> Generator[Any, None, AudioResult]:
        asked = asked_of(payload.request, made)
        noise = Noise(asked.given.get(SEED), device)
        pieces: list[Samples] = []
        with closing(iter(made.speak(asked))) as sounds:  # type: ignore[type-var]  # speakers are generators
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
                yield AudioChunk(pieces[-1], made.rate)
        return _whole(pieces, made.rate, asked)

    running = 1 if backend == "generate" else max_running
    calls = None
    if made.loop is not None:
        calls = calls_of(made.loop, backend, running, kv_cache_mb)
    return Interleaved(speak, running, calls)


@frozen
class _Text:
    """A request of :class:`SideBySide`: the sentences that are left, and the sound of those before."""

    asked: Asked
    noise: Noise
    sentences: list[str]
    pieces: list[Samples] = field(factory=list)


class SideBySide(StepScheduler[_Text]):
    """Speaks a sentence of each request in every step.

    Args:
        model: the loaded model.
        device: it computes there.
    """

    def __init__(self, model: Together, device: str, max_batch_size: int, max_running: int) -> None:
        super().__init__(max_batch_size, max_running)
        self._model, self._device = model, device

    def begin(self, payload: StagePayload) -> _Text:
        asked = asked_of(payload.request, self._model)
        with turn_in_process():
            noise = Noise(asked.given.get(SEED), self._device)
        return _Text(asked, noise, sentences(asked.text))

    def key(self, state: _Text) -> str:
        return "sentence"

    def step(self, states: list[_Text]) -> list[_Text]:
        noises = [state.noise.copy() for state in states]
        with turn_in_process(), torch.inference_mode():
            sounds = self._model.say_all([(state.sentences[0], state.asked) for state in states], noises)
        return [
            _Text(state.asked, noise, state.sentences[1:], [*state.pieces, _samples(sound)])
            for state, noise, sound in zip(states, noises, sounds, strict=True)
        ]

    def is_done(self, state: _Text) -> bool:
        return not state.sentences

    def progress(self, state: _Text) -> AudioChunk | None:
        return AudioChunk(state.pieces[-1], self._model.rate) if len(state.pieces[-1]) else None

    def finish(self, state: _Text) -> AudioResult:
        return _whole(state.pieces, self._model.rate, state.asked)


def _samples(piece: torch.Tensor) -> Samples:
    found: Samples = piece.detach().reshape(-1).float().clamp(-1.0, 1.0).numpy(force=True)
    return found


def _whole(pieces: list[Samples], rate: int, asked: Asked) -> AudioResult:
    samples = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
    return AudioResult(samples, rate, notices=asked.notices)


def asked_of(request: OmniRequest, model: Spoken) -> Asked:
    """Read a request to a model.

    Raises:
        InvalidRequestError: there is nothing to speak, or a recording is not readable.
    """
    messages = request.inputs.get("messages") if isinstance(request.inputs, dict) else None
    if not isinstance(messages, list) or not messages or not isinstance(messages[-1], dict):
        raise InvalidRequestError("inputs.messages: must be a non-empty list of {'role': 'user', 'content': ...}")
    where = f"messages[{len(messages) - 1}].content"
    content = messages[-1].get("content")
    for number, part in enumerate(content if isinstance(content, list) else []):
        if not isinstance(part, dict) or part.get("type") != "text" or not isinstance(part.get("text"), str):
            raise InvalidRequestError(f"{where}[{number}]: this model speaks text and takes nothing else")
    text = text_of(messages[-1]).strip()
    if not text:
        raise InvalidRequestError(f"{where}: there is nothing to speak")
    reference = None
    references = request.inputs.get("references") or []
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
    return Asked(text, request.metadata.get(VOICE), given, reference)
