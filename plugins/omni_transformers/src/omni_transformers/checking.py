"""Checks one checkpoint: how it is run and why, and one request beside transformers' own call."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from attrs import evolve

from omni_core.api import (
    SEED,
    AudioResult,
    IncomingMessage,
    OmniRequest,
    OutgoingMessage,
    Scheduler,
    SimpleScheduler,
    StageConfig,
    StagePayload,
    StreamingScheduler,
    load,
)
from omni_transformers.architectures import KINDS
from omni_transformers.backends import backend_of_checkpoint
from omni_transformers.checkpoints import Source, fetch, read
from omni_transformers.own_calls import own_sound, own_text
from omni_transformers.pipeline import transformers as pipeline
from omni_transformers.recognise.declaration import GROUP as LISTEN
from omni_transformers.recognise.languages import languages_of
from omni_transformers.sampling import greedy
from omni_transformers.speak.speaks import GROUP as SPEECH_GROUP
from omni_transformers.words.adapters import NEEDS
from omni_transformers.words.declaration import GROUP
from omni_transformers.words.recognisers import RECOGNISERS
from omni_transformers.words.steps import load_writer

_TOKENS = 16
_QUESTION = [{"type": "text", "text": "What is a stage?"}]


def report(model: str, dtype: str) -> tuple[list[str], bool]:
    """Load a checkpoint and run one short request through its stages.

    Args:
        model: a folder, a hub id or a GGUF file.
        dtype: of the weights.

    Returns:
        What was found, by line; and ``False`` if ids, text or sound differ from those of transformers' own call.

    Raises:
        ConfigError: it cannot be run.
    """
    folder = fetch(model)
    source = read(folder)
    architecture = source.architecture
    lines = [f"{architecture.name} ({architecture.model_type}): {KINDS[architecture.kind]}"]
    writes = architecture.kind == "words" and architecture.name not in RECOGNISERS
    stages = pipeline(folder, dtype=dtype).stages
    backend, reasons = backend_of_checkpoint(source, stages, dtype)
    lines.append(f"backend: {backend}" + (f", because {'; '.join(reasons)}" if reasons else ""))
    needed = NEEDS.get(architecture.name)
    content = [_noise(needed or "audio"), *(_QUESTION if needed else [])]
    if architecture.kind == "speak" or (writes and needed is None):
        content = _QUESTION
    request = OmniRequest({"messages": [{"role": "user", "content": content}]}, _params(source, writes))
    begin = time.monotonic()
    result = _answer(folder, stages, request)
    seconds = time.monotonic() - begin
    said = (
        f"{len(result.samples) / result.sample_rate:.1f} s of sound"
        if isinstance(result, AudioResult)
        else repr(result.text)
    )
    lines.append(f"one request: {said} in {seconds:.1f} s, loading included")
    said, is_equal = _compared(source, folder, dtype, request, result, writes=writes and needed is None)
    return [*lines, said], is_equal


def _params(source: Source, writes: bool) -> dict[str, Any]:
    """Return parameters by which a request is answered as by transformers' own call."""
    if writes:
        return {GROUP: {"max_new_tokens": _TOKENS, "temperature": 0.0}}
    if source.architecture.kind == "speak":
        return {SPEECH_GROUP: {SEED: 0}}
    if source.architecture.kind == "recognise" and (languages := languages_of(source)).codes and not languages.default:
        return {LISTEN: {"language": next(iter(languages.codes))}}
    return {}


def _compared(
    source: Source, folder: str, dtype: str, request: OmniRequest, result: Any, writes: bool
) -> tuple[str, bool]:
    """Compare a result with that of transformers' own call; return what to say, and ``False`` if they differ."""
    payload = StagePayload("check", request)
    if writes:
        expected = _generated(folder, dtype, request)
        is_equal = result.token_ids == expected
        return (
            f"ids: {'those of generate()' if is_equal else f'{result.token_ids}, of generate() {expected}'}",
            is_equal,
        )
    if source.architecture.kind == "recognise":
        text = own_text(source, dtype, payload)
        is_equal = result.text == text
        return (
            "text: that of transformers' own call" if is_equal else f"text of transformers' own call: {text!r}",
            is_equal,
        )
    if isinstance(result, AudioResult) and (sound := own_sound(source, dtype, payload, 0)) is not None:
        is_near = sound.shape == result.samples.shape and bool(np.abs(sound - result.samples).max(initial=0) < 1e-4)
        return f"sound: {'' if is_near else 'not '}that of transformers' own call", is_near
    return "not compared: transformers' own call for it is more than one", True


def _noise(kind: str) -> dict[str, Any]:
    random = np.random.default_rng(0)
    if kind == "audio":
        return {"type": "audio", "samples": random.normal(0, 0.1, 32_000).astype(np.float32), "sample_rate": 16_000}
    pixels = random.integers(0, 255, (64, 64, 3), dtype=np.uint8)
    return {"type": kind, "image": pixels} if kind == "image" else {"type": kind, "frames": np.stack([pixels] * 4)}


def _answer(folder: str, stages: Sequence[StageConfig], request: OmniRequest) -> Any:
    """Return the result of the last stage."""
    payload = StagePayload("check", request)
    for scheduler in [_made(stage, folder) for stage in stages]:
        payload = evolve(payload, data=_computed(scheduler, payload))
    return payload.data


def _made(stage: StageConfig, folder: str) -> Scheduler:
    assert stage.factory is not None
    make: Callable[..., Any] = load(stage.factory)
    made = make(folder, **stage.factory_args)
    scheduler: Scheduler = SimpleScheduler(made) if not hasattr(made, "inbox") else made
    return scheduler


def _computed(scheduler: Scheduler, payload: StagePayload) -> Any:
    thread = threading.Thread(target=scheduler.start, daemon=True)
    thread.start()
    try:
        scheduler.inbox.put(IncomingMessage(payload.request_id, "new_request", payload))
        if isinstance(scheduler, StreamingScheduler):
            scheduler.inbox.put(IncomingMessage(payload.request_id, "stream_done"))  # it is whole
        while True:
            message: OutgoingMessage | None = scheduler.outbox.get()
            assert message is not None
            if message.type == "error":
                raise message.data
            if message.type == "result":
                return message.data
    finally:
        scheduler.stop()
        thread.join()


def _generated(folder: str, dtype: str, request: OmniRequest) -> list[int]:
    writer = load_writer(folder, "cpu", dtype, {})
    inputs = writer.inputs(request)
    config = greedy(writer.model.generation_config)
    with torch.inference_mode():
        ids = writer.model.generate(**inputs, generation_config=config, max_new_tokens=_TOKENS)
    prompt = 1 if writer.model.config.is_encoder_decoder else inputs["input_ids"].shape[1]
    found: list[int] = ids[0, prompt:].tolist()
    return found
