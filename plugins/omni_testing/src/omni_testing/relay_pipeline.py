"""A relay under a whole pipeline: one request by this relay alone, compared with the same request by shared memory."""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import evolve

from omni_core.api import SEED, OmniError, OmniRequest, PipelineConfig, RelayConfig, open_async
from omni_testing.comparing import difference

REFERENCE = "shm"
"""The relay whose results count as right."""

SECONDS = 300.0
"""Time limit of a request."""


def check_relay(relay: str, config: PipelineConfig, say: Callable[[str], None]) -> bool:
    """Run a pipeline with every tensor and array between its processes sent by one relay; return whether its results are right.

    Args:
        relay: a registered name or a dotted reference.
        config: the pipeline; stages of at least two processes must exchange tensors or arrays.
        say: called with each line for the user.

    Raises:
        OmniError: the pipeline fails with shared memory too.
    """
    request = _request(config)
    about = f"relay {relay} under pipeline {config.name or config.model_path}"
    expected = asyncio.run(_answer(_with_relay(config, REFERENCE, inline_bytes=None), request))
    begin = time.monotonic()
    try:
        found, sizes = asyncio.run(_traced(_with_relay(config, relay, inline_bytes=0), request))
    except OmniError as error:
        say(f"no  {about}: {error}")
        return False
    problem = difference(expected, found, "the result")
    if not sizes:
        say(f"no  {about}: nothing went by it: no two of its processes exchange tensors or arrays")
    elif problem is not None:
        say(f"no  {about}: {len(sizes)} messages, {sum(sizes):,} bytes; {problem} by {REFERENCE} and by {relay}")
    else:
        seconds = time.monotonic() - begin
        say(
            f"ok  {about}: {len(sizes)} messages, {sum(sizes):,} bytes; the result is that of {REFERENCE} ({seconds:.1f} s)"
        )
    return bool(sizes) and problem is None


def _with_relay(config: PipelineConfig, relay: str, inline_bytes: int | None) -> PipelineConfig:
    """Return the config with one relay on every edge. A relay's own settings are kept where it is already the stage's."""
    stages = []
    for stage in config.stages:
        own = stage.relay or RelayConfig()
        settings = own.settings if (own.backend or config.relay_backend) == relay else {}
        relayed = evolve(own, backend=relay, inline_bytes=inline_bytes, settings=settings)
        stages.append(evolve(stage, relay=relayed))
    return evolve(config, relay_backend=relay, stages=stages)


def _request(config: PipelineConfig) -> OmniRequest:
    """Return a request in text, with a seed where the pipeline takes one."""
    groups = config.interface.groups if config.interface is not None else []
    seeded = any(each.name == SEED for group in groups for each in group.parameters)
    content = [{"type": "text", "text": "Say hello."}]
    messages = {"messages": [{"role": "user", "content": content}]}
    return OmniRequest(messages, {SEED: 0} if seeded else {}, timeout=SECONDS)


async def _answer(config: PipelineConfig, request: OmniRequest) -> dict[str, Any]:
    """Return the results of a request by stage."""
    async with open_async(config) as client:
        return await client.submit(request)


async def _traced(config: PipelineConfig, request: OmniRequest) -> tuple[dict[str, Any], list[int]]:
    """Return the results of a request by stage, and the size in bytes of each message that went by the config's relay.

    Raises:
        OmniError: also if a process did not say what it sent.
    """
    with tempfile.TemporaryDirectory(prefix="omni-check-") as folder:
        trace = Path(folder) / "trace.json"
        async with open_async(config) as client:
            await client.start_profile()
            result = await client.submit(request)
            summary = await client.stop_profile(trace)
        if summary.missing:
            raise OmniError(f"these processes did not say what they sent: {', '.join(summary.missing)}")
        events = json.loads(trace.read_text(encoding="utf-8"))["traceEvents"]
    return result, [
        event["args"]["bytes"] for event in events if event.get("args", {}).get("by") == config.relay_backend
    ]
