"""Measures what recording costs: the time of spoken answers, and the rate of small requests, with capsules and without.

    python benchmarks/capsules.py [--quick] [--json FILE]

Two pipelines run side by side, one with ``capsules`` and inputs, and answer in turn. No request fails or is slow, so none leaves a file:
the figures are those of recording alone.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import click
from report import compare, json_option, publish, quick_option

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest, StagePayload

TOGETHER = 8
"""Requests at once."""


def echo(payload: StagePayload) -> Any:
    return payload.data if payload.data is not None else payload.request.inputs


def small(capsules: dict[str, Any]) -> PipelineConfig:
    """Return a pipeline of two processes that compute nothing."""
    reference, env = f"{Path(__file__).stem}:echo", {"PYTHONPATH": str(Path(__file__).parent)}
    stages = [
        StageConfig(name="first", factory=reference, process="first", next="last", env=env),
        StageConfig(name="last", factory=reference, process="last", terminal=True, env=env),
    ]
    return PipelineConfig(model_path="none", stages=stages, capsules=capsules, name="small")


async def speech(pipe: AsyncPipe) -> None:
    await pipe.chat("Count to five.", seed=1)


async def messages(pipe: AsyncPipe) -> None:
    for _ in range(50):
        await pipe.submit(OmniRequest({"text": "x" * 200}))


async def measured(
    make: Callable[[dict[str, Any]], AsyncPipe], ask: Callable[[AsyncPipe], Awaitable[None]], rounds: int
) -> tuple[list[float], list[float]]:
    """Return the seconds of each round, recording and not, in turns."""
    with tempfile.TemporaryDirectory() as folder:
        async with make({"folder": folder, "inputs": True, "slow": 3600.0}) as recording, make({}) as plain:
            seconds: dict[int, list[float]] = {0: [], 1: []}
            for number in range(2 * rounds + 2):
                which = number % 2
                begin = time.perf_counter()
                await asyncio.gather(*(ask((recording, plain)[which]) for _ in range(TOGETHER)))
                if number >= 2:  # the first ones warm up
                    seconds[which].append(time.perf_counter() - begin)
    return seconds[0], seconds[1]


@click.command()
@quick_option
@json_option
def main(quick: bool, json_path: Path | None) -> None:
    """Recording: what it costs."""
    rounds = 5 if quick else 15

    def demo(capsules: dict[str, Any]) -> AsyncPipe:
        return open_async("demo", options={"processes": "one"}, set={f"capsules.{k}": v for k, v in capsules.items()})

    rows = []
    for name, make, ask in (
        (f"{TOGETHER} spoken answers", demo, speech),
        (f"{TOGETHER * 50} messages of 200 characters", lambda capsules: open_async(small(capsules)), messages),
    ):
        ours, other = asyncio.run(measured(make, ask, rounds))
        rows.append(compare(name, "s", ours, other, "without capsules", higher_is_better=False))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
