"""Checks one checkpoint: how it is run and why, and one request beside transformers' own ``generate()``."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from attrs import evolve

from omni_core.api import (
    AudioResult,
    IncomingMessage,
    OmniRequest,
    OutgoingMessage,
    Scheduler,
    SimpleScheduler,
    StageConfig,
    StagePayload,
    load,
)
from omni_transformers.architectures import KINDS
from omni_transformers.checkpoints import fetch, read
from omni_transformers.loading import load_model
from omni_transformers.pipeline import transformers as pipeline
from omni_transformers.sampling import greedy
from omni_transformers.words.adapters import NEEDS
from omni_transformers.words.declaration import GROUP
from omni_transformers.words.engine_fit import backend_of
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
        What was found, by line; and ``False`` if ids differ from those of ``generate()``.

    Raises:
        ConfigError: it cannot be run.
    """
    folder = fetch(model)
    source = read(folder)
    architecture = source.architecture
    lines = [f"{architecture.name} ({architecture.model_type}): {KINDS[architecture.kind]}"]
    writes = architecture.kind == "words" and architecture.name not in RECOGNISERS
    if writes:
        backend, reasons = backend_of(load_model(folder, dtype))
        lines.append(f"backend: {backend}" + (f", because {'; '.join(reasons)}" if reasons else ""))
    needed = NEEDS.get(architecture.name)
    content = [_noise(needed or "audio"), *(_QUESTION if needed else [])]
    if architecture.kind == "speak" or (writes and needed is None):
        content = _QUESTION
    params = {GROUP: {"max_new_tokens": _TOKENS, "temperature": 0.0}} if writes else {}
    request = OmniRequest({"messages": [{"role": "user", "content": content}]}, params)
    begin = time.monotonic()
    result = _answer(folder, dtype, request)
    seconds = time.monotonic() - begin
    said = (
        f"{len(result.samples) / result.sample_rate:.1f} s of sound"
        if isinstance(result, AudioResult)
        else repr(result.text)
    )
    lines.append(f"one request: {said} in {seconds:.1f} s, loading included")
    if not writes or needed is not None:
        return lines, True
    expected = _generated(folder, dtype, request)
    is_equal = result.token_ids == expected
    lines.append(f"ids: {'those of generate()' if is_equal else f'{result.token_ids}, of generate() {expected}'}")
    return lines, is_equal


def _noise(kind: str) -> dict[str, Any]:
    random = np.random.default_rng(0)
    if kind == "audio":
        return {"type": "audio", "samples": random.normal(0, 0.1, 32_000).astype(np.float32), "sample_rate": 16_000}
    pixels = random.integers(0, 255, (64, 64, 3), dtype=np.uint8)
    return {"type": kind, "image": pixels} if kind == "image" else {"type": kind, "frames": np.stack([pixels] * 4)}


def _answer(folder: str, dtype: str, request: OmniRequest) -> Any:
    """Return the result of the last stage."""
    payload = StagePayload("check", request)
    for scheduler in [_made(stage, folder) for stage in pipeline(folder, dtype=dtype).stages]:
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
