"""The stage that speaks: requests take turns, piece by piece, each with random numbers of its own."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import closing
from typing import Any

import numpy as np
import torch

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
from omni_media.api import Limits, MediaSource, sound
from omni_transformers.interleaved import Interleaved
from omni_transformers.speak.speaker import Asked, Loading, Speaker
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
    max_running: int = 8,
) -> Scheduler:
    """Return the stage of a model that speaks.

    Args:
        speaker: reference of a :class:`Speaker`.
        max_running: requests that speak in turns; further ones wait.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """
    made: Speaker = load(speaker)(Loading(model_path, device, dtype, vocoder, voices))

    def speak(payload: StagePayload) -> Generator[Any, None, AudioResult]:
        asked = asked_of(payload.request, made.rate)
        if asked.reference is not None and not made.reference:
            raise InvalidRequestError("references: this model cannot speak with the voice of a recording")
        noise = Noise(asked.given.get(SEED), device)
        pieces: list[np.ndarray[Any, Any]] = []
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
                samples = piece.detach().reshape(-1).float().clamp(-1.0, 1.0).numpy(force=True)
                pieces.append(samples)
                yield AudioChunk(samples, made.rate)
        whole = np.concatenate(pieces) if pieces else np.zeros(0, np.float32)
        return AudioResult(whole, made.rate, notices=asked.notices)

    return Interleaved(speak, max_running)


def asked_of(request: OmniRequest, rate: int) -> Asked:
    """Read a request.

    Args:
        rate: that of the recording of a voice.

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
    for each in references:
        reference = sound(MediaSource("recording", each, "references[0]"), rate, RECORDING), each.get("text") or None
    given = dict(request.params.get(GROUP, {}))
    return Asked(text, request.metadata.get(VOICE), given, reference)
