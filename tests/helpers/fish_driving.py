"""The stages of Fish S2 driven without a pipeline."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch
from asking import collect
from fish_cases import MAX_NEW_TOKENS, REFERENCE_TEXT, voices
from running import running

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_core.stage.assembly import assemble
from omni_fish_s2.config import read_config
from omni_fish_s2.payloads import SpeechInputs
from omni_fish_s2.prompt import PromptBuilder, Voice
from omni_fish_s2.text import split_text
from omni_torch.engine.scheduler import EngineScheduler

GREEDY = {"temperature": 0.0}


def create_semantic_ar(checkpoint: str, **arguments: Any) -> EngineScheduler:
    """The stage outside a pipeline, on the engine."""
    stage = assemble(
        "omni_fish_s2.semantic:SpeechRunner.from_checkpoint",
        "omni_torch.engine.scheduler:EngineScheduler",
        "omni_fish_s2.frame_feedback:FrameFeedback",
        model_path=checkpoint,
        **arguments,
    )
    assert isinstance(stage, EngineScheduler)
    return stage


def inputs_of(checkpoint: Path, case: dict[str, Any]) -> SpeechInputs:
    """Return the payload of preprocessing for a case."""
    config = read_config(checkpoint)
    codes = voices(case.get("voices", 0), config.codebook_size, config.codebooks)
    spoken = [Voice(REFERENCE_TEXT, torch.from_numpy(each)) for each in codes]
    turns = split_text(case["text"], case.get("segment_bytes", 512))
    return PromptBuilder(str(checkpoint), config).build(turns, spoken)


def request_message(name: str, checkpoint: Path, case: dict[str, Any], sampling: dict[str, Any]) -> IncomingMessage:
    semantic = {**sampling, "max_new_tokens": case.get("max_new_tokens", MAX_NEW_TOKENS)}
    params: dict[str, Any] = {"seed": semantic.pop("seed", None), "semantic": semantic}
    request = OmniRequest(params=params)
    return IncomingMessage(
        name, "new_request", StagePayload(name, request, inputs_of(checkpoint, case)), request=request
    )


def speak(scheduler: EngineScheduler, messages: list[IncomingMessage]) -> dict[str, np.ndarray]:
    """Return every request's frames ``[n, codebooks]``, computed together. Ends the scheduler."""
    for message in messages:
        scheduler.inbox.put(message)
    frames: dict[str, list[np.ndarray]] = {message.request_id: [] for message in messages}
    streamed: list[OutgoingMessage] = []
    with running(scheduler):
        final = collect(scheduler, len(messages), 120.0, streamed)
    for out in final.values():
        if out.type == "error":
            raise out.data
    for out in streamed:
        frames[out.request_id].append(out.data.numpy())
    return {name: np.stack(each) if each else np.empty((0, 0)) for name, each in frames.items()}
