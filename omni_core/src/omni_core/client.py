"""The Python client: open a pipeline, submit requests, stream results, abort.

::

    async with open_pipeline(config) as client:
        result = await client.submit(OmniRequest(inputs={"messages": [...]}))
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from attrs import evolve

from omni_core.config.schema import PipelineConfig
from omni_core.coordinator import StreamEvent
from omni_core.launch.runner import MultiProcessPipelineRunner, Progress
from omni_core.observe.profiler import ProfileSummary
from omni_core.plugins import PluginRegistry
from omni_core.protocol.messages import OmniRequest


class Client:
    """A running pipeline."""

    def __init__(self, runner: MultiProcessPipelineRunner) -> None:
        self._runner = runner

    async def submit(self, request: OmniRequest, request_id: str | None = None) -> dict[str, Any]:
        """Return the results of the request's terminal stages by stage name. Cancelling the call aborts the request.

        Raises:
            InvalidRequestError: the request itself is at fault; found in a stage, its ``stage`` names it.
            OverloadedError: the pipeline is full; ``retry_after`` is a hint in seconds.
            RequestTimeoutError: not finished within ``request.timeout``; the message names the stages that had it.
            RequestFailedError: it failed in ``stage`` with ``error_type``. The base of the one above.
            RequestAbortedError: it was aborted.
        """
        return await self._runner.coordinator.submit(request, request_id)

    def stream(self, request: OmniRequest, request_id: str | None = None) -> AsyncIterator[StreamEvent]:
        """Yield partial results and final ones as they come. Leaving the iteration aborts the request. Raises as ``submit``."""
        return self._runner.coordinator.stream(evolve(request, stream=True), request_id)

    async def abort(self, request_id: str) -> None:
        """Drop the request in every stage. Idempotent."""
        self._runner.coordinator.abort(request_id)

    def health(self) -> dict[str, dict[str, Any]]:
        """Return, by unit (a process, or the ranks of a stage): stages, state, restarts, reason of the last death, pids."""
        return self._runner.observation.health()

    async def statistics(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return counters by process, then by stage (or ``relay``)."""
        return await self._runner.observation.statistics()

    async def start_profile(self, torch: Sequence[str] = ()) -> None:
        """Record, in every process, what happens to requests. ``torch``: stages whose torch operations are recorded too."""
        await self._runner.observation.start_profile(torch)

    async def stop_profile(self, path: str | Path) -> ProfileSummary:
        """Stop recording; write one Chrome trace of all processes to ``path``, which Perfetto opens."""
        return await self._runner.observation.stop_profile(path)

    @property
    def process_ids(self) -> dict[str, int]:
        """The pid of every process of the pipeline by process name."""
        return self._runner.process_ids


@asynccontextmanager
async def open_pipeline(
    config: PipelineConfig,
    *,
    registry: PluginRegistry | None = None,
    on_progress: Progress | None = None,
    startup_timeout: float = 600.0,
    max_in_flight: int = 256,
) -> AsyncIterator[Client]:
    """Start ``config``'s processes, yield a client, and end them all on the way out.

    Raises:
        ConfigError, PluginError: before anything is started. StartupError: a stage did not become ready.
    """
    runner = MultiProcessPipelineRunner(
        config, registry, on_progress, startup_timeout=startup_timeout, max_in_flight=max_in_flight
    )
    async with runner:
        yield Client(runner)


def run(config: PipelineConfig, request: OmniRequest) -> dict[str, Any]:
    """Start a pipeline, answer one request, and end it: the blocking form, for scripts."""

    async def once() -> dict[str, Any]:
        async with open_pipeline(config) as client:
            return await client.submit(request)

    return asyncio.run(once())
