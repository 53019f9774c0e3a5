"""Tiny checkpoints and messages that several suites of our models ask with."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from functools import cache
from typing import Any

import torch

from omni_core.api import IncomingMessage, OmniRequest
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
