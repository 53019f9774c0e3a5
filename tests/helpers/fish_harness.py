"""Pipelines and requests of the end-to-end tests."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

import pytest
from attrs import evolve
from fish_cases import MAX_NEW_TOKENS

from omni_core.client import AsyncPipe
from omni_core.config.schema import EndpointsConfig, PipelineConfig
from omni_core.errors import InvalidRequestError, OmniError, RequestFailedError
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioChunk, AudioResult
from omni_fish_s2.pipeline import fish_s2


def pipeline(checkpoint: Path, **options: Any) -> PipelineConfig:
    endpoints = EndpointsConfig(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    return evolve(fish_s2(str(checkpoint), **options), endpoints=endpoints)


def request_of(case: dict[str, Any], references: list[dict[str, Any]] | None = None, **fields: Any) -> OmniRequest:
    """A greedy request that wants its codes."""
    semantic = {"temperature": 0.0, "max_new_tokens": case.get("max_new_tokens", MAX_NEW_TOKENS)}
    inputs: dict[str, Any] = {"messages": [{"role": "user", "content": case["text"]}]}
    if references:
        inputs["references"] = references
    given: dict[str, Any] = {"params": {"semantic": semantic, "return_codes": True}, **fields}
    return OmniRequest(inputs, **given)


def sampled(case: dict[str, Any], seed: int, **semantic: Any) -> OmniRequest:
    request = request_of(case)
    request.params["semantic"] = {"max_new_tokens": case.get("max_new_tokens", MAX_NEW_TOKENS), **semantic}
    request.params["seed"] = seed
    return request


async def collect(client: AsyncPipe, request: OmniRequest) -> tuple[list[AudioChunk], AudioResult]:
    """The pieces of sound in order, and the result."""
    pieces, final = [], None
    async for event in client.stream(request):
        if event.final:
            final = event.data
        else:
            pieces.append(event.data)
    assert final is not None
    return pieces, final


async def fails(client: AsyncPipe, request: OmniRequest) -> str:
    """Return the message of the error with which the request must end."""
    with pytest.raises(OmniError) as caught:
        await client.submit(request)
    if isinstance(caught.value, RequestFailedError):
        assert isinstance(caught.value, InvalidRequestError), caught.value
    return str(caught.value)
