"""Tiny checkpoints and messages that several suites of our models ask with."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from typing import Any, ClassVar

import numpy as np
import torch

from omni_core.api import IncomingMessage, OmniRequest
from omni_testing.runner_suite import RunnerSuite
from omni_testing.tiny import writer


@cache
def _folder(name: str) -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="omni-tiny-")
    writer(name)(folder.name)
    return folder


def tiny_checkpoint(name: str) -> str:
    """Return the folder of a checkpoint of one of :data:`omni_testing.tiny.MODELS`, made once and removed when the process ends."""
    return _folder(name).name


def drawn(seed: int, *shape: int) -> torch.Tensor:
    """Return normal numbers that are the same for a seed."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def streamed(request_id: str, chunks: Sequence[Any], request: OmniRequest) -> list[IncomingMessage]:
    """Return a thinker's whole stream to a talker."""
    sent = [IncomingMessage(request_id, "stream_chunk", each, "thinker", None, request) for each in chunks]
    return [*sent, IncomingMessage(request_id, "stream_done", None, "thinker", None, request)]


class Refusing(RunnerSuite):
    """Requests of a runner that refuses negative temperatures."""

    def bad(self, request_id: str) -> list[IncomingMessage]:
        return self.messages(request_id, 0, {"temperature": -1.0})


class TextRequests:
    """Greedy requests of a pipeline that answers by text and, with ``speech``, the stage of its samples, in speech."""

    params: ClassVar[dict[str, Any]] = {"max_tokens": 8, "temperature": 0.0}
    speech: ClassVar[str | None] = None

    def requests(self) -> list[OmniRequest]:
        texts = ("Hello.", "Tell me a story.", "What is a fox?")
        return [OmniRequest({"messages": [{"role": "user", "content": text}]}, self.params) for text in texts]

    def same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        if list(one["decode"].token_ids) != list(other["decode"].token_ids):
            return False
        return self.speech is None or np.allclose(one[self.speech].samples, other[self.speech].samples, atol=1e-4)
