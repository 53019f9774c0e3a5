"""Sends one request's frames to a vocoder's scheduler and collects its messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import AudioChunk, AudioResult
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_testing.scheduler import Harness
from omni_torch.vocoder.scheduler import VocoderScheduler


def frame(request_id: str, codes: torch.Tensor) -> IncomingMessage:
    return IncomingMessage(request_id, "stream_chunk", codes, "talker", None, OmniRequest())


def end(request_id: str, reason: str = "stop", **params: Any) -> list[IncomingMessage]:
    """The end of the frames, and the payload."""
    payload = StagePayload(request_id, OmniRequest(params=params), {"finish_reason": reason})
    return [
        IncomingMessage(request_id, "stream_done", None, "talker"),
        IncomingMessage(request_id, "new_request", payload, "talker"),
    ]


def answer(scheduler: VocoderScheduler, frames: torch.Tensor) -> list[OutgoingMessage]:
    """Return the messages about a request of these frames, ``[n, codebooks]``, up to the last one."""
    for message in [*(frame("r", each) for each in frames), *end("r", return_codes=True)]:
        scheduler.inbox.put(message)
    harness = Harness(scheduler, frame)
    last = harness.ended("r")
    scheduler.stop()
    harness.thread.join(5)
    messages = harness.of("r")
    return messages[: messages.index(last) + 1]


def heard(scheduler: VocoderScheduler, frames: torch.Tensor) -> AudioResult:
    """Return the result, which must equal the streamed sound."""
    *streamed, result = answer(scheduler, frames)
    assert all(isinstance(message.data, AudioChunk) for message in streamed)
    samples = np.concatenate([np.empty(0, np.float32), *(message.data.samples for message in streamed)])
    assert np.array_equal(samples, result.data.samples)
    assert torch.equal(result.data.codes, frames)
    assert {message.data.sample_rate for message in streamed} <= {result.data.sample_rate}
    return result.data
