"""Runs a pipeline: launches its processes from resolved specs, waits until they are ready, watches them, ends them.

Serving uses this runner for one process and for many alike (seed 000). Processes are fresh interpreters, never forks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attrs import define, field

from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError, OmniError, StartupError
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.protocol.messages import (
    CompleteMessage,
    ProcessFailedMessage,
    ReadyMessage,
    ShutdownMessage,
    StageStatistics,
    StatisticsRequest,
    StreamMessage,
)
from omni_core.runtime.child import pack_spec
from omni_core.runtime.coordinator import Coordinator
from omni_core.runtime.prepare import PreparedPipeline, prepare
from omni_core.runtime.spec import ProcessSpec
from omni_core.transport.control import ControlPlane

logger = logging.getLogger(__name__)

Progress = Callable[[str, str], None]
"""Told a stage's name and its state: ``starting``, ``ready``, ``failed``."""

KEPT_LOG_LINES = 40

LONGEST_SOCKET_PATH = 107
"""Bytes that the address of a Unix-domain socket may have."""


def run_directory(base_path: str | None) -> Path:
    """A private (0700) folder for one run's sockets, in ``base_path`` or where temporary files go.

    Raises:
        ConfigError: ``base_path`` cannot be used.
    """
    base = base_path or tempfile.gettempdir()
    too_long = len(os.fsencode(base)) + len("/omni-12345678/coordinator.sock") > LONGEST_SOCKET_PATH
    if too_long and base_path is not None:
        raise ConfigError(
            f"endpoints.base_path: {base} is too long for socket addresses ({LONGEST_SOCKET_PATH} bytes); choose a shorter one"
        )
    try:
        return Path(tempfile.mkdtemp(prefix="omni-", dir="/tmp" if too_long else base))
    except OSError as error:
        raise ConfigError(f"endpoints.base_path: no folder can be made in {base}: {error.strerror}") from error


@define(eq=False)
class _Child:
    """One stage process and what is known of it."""

    spec: ProcessSpec
    process: asyncio.subprocess.Process
    ready: asyncio.Future[None]
    log: deque[str] = field(factory=lambda: deque(maxlen=KEPT_LOG_LINES))
    tasks: list[asyncio.Task[None]] = field(factory=list)

    @property
    def stage_names(self) -> list[str]:
        return [stage.name for stage in self.spec.stages]


class MultiProcessPipelineRunner:
    """Owns the processes of one running pipeline and its coordinator. An async context manager.

    Args:
        config: the pipeline.
        registry: the installed plugins; discovered if not given.
        on_progress: told about every stage as it starts.
        startup_timeout: seconds until every stage must be ready.
        stop_timeout: seconds that a process gets to end by itself before it is killed.
        max_in_flight: requests held at once.
    """

    def __init__(
        self,
        config: PipelineConfig,
        registry: PluginRegistry | None = None,
        on_progress: Progress | None = None,
        startup_timeout: float = 600.0,
        stop_timeout: float = 8.0,
        max_in_flight: int = 256,
    ) -> None:
        self._config = config
        self._registry = registry
        self._on_progress = on_progress or (lambda stage, state: None)
        self._startup_timeout = startup_timeout
        self._stop_timeout = stop_timeout
        self._max_in_flight = max_in_flight
        self._children: dict[str, _Child] = {}
        self._statistics: dict[str, asyncio.Future[dict[str, dict[str, float]]]] = {}
        self._directory: Path | None = None
        self._control: ControlPlane | None = None
        self._coordinator: Coordinator | None = None
        self._stopping = False

    async def __aenter__(self) -> MultiProcessPipelineRunner:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    @property
    def coordinator(self) -> Coordinator:
        if self._coordinator is None:
            raise OmniError("the pipeline was not started")
        return self._coordinator

    # --- start -------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Launch every process and return when all stages are ready. Leaves nothing behind if it fails.

        Raises:
            ConfigError, PluginError: before anything was started. StartupError: a stage did not become ready.
        """
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        directory = self._directory = run_directory(self._config.endpoints.base_path)
        prepared = prepare(self._config, self._registry or load_plugins(), directory)
        self._control = ControlPlane(
            prepared.coordinator_endpoint, self._on_message, prepared.broadcast_endpoint, publishes=True
        )
        self._coordinator = self._make_coordinator(prepared, self._control)
        try:
            async with asyncio.timeout(self._startup_timeout):
                for spec in prepared.processes:
                    await self._launch(spec)
                await self._all_ready()
                await self._control.wait_for_subscribers(len(self._children))
        except TimeoutError:
            late = [child for child in self._children.values() if not child.ready.done()]
            names = ", ".join(name for child in late for name in child.stage_names)
            log = "\n".join(line for child in late for line in child.log)
            raise StartupError(f"not ready within {self._startup_timeout:g} s: {names}\n{log}".rstrip()) from None

    def _make_coordinator(self, prepared: PreparedPipeline, control: ControlPlane) -> Coordinator:
        endpoints = prepared.processes[0].stage_endpoints
        return Coordinator(
            entry_stage=prepared.entry_stage,
            terminal_stages=prepared.terminal_stages,
            terminal_stages_fn=prepared.terminal_stages_fn,
            send_to_stage=lambda stage, message: control.send(endpoints[stage], message),
            broadcast=control.publish,
            max_in_flight=self._max_in_flight,
        )

    async def _launch(self, spec: ProcessSpec) -> None:
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-m",
            "omni_core.runtime.child",
            stdin=asyncio.subprocess.PIPE,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            # A process group of its own: a terminal's Ctrl-C reaches the parent, which ends its children in order.
            process_group=0,
            env={**os.environ, **{name: value for name, value in spec.env.items() if name not in os.environ}},
        )
        assert process.stdin is not None
        child = _Child(spec, process, asyncio.get_running_loop().create_future())
        self._children[spec.name] = child
        for name in child.stage_names:
            self._on_progress(name, "starting")
        child.tasks = [asyncio.create_task(self._read_log(child)), asyncio.create_task(self._watch(child))]
        process.stdin.write(pack_spec(spec))

    async def _all_ready(self) -> None:
        waiting = [child.ready for child in self._children.values()]
        done, _ = await asyncio.wait(waiting, return_when=asyncio.FIRST_EXCEPTION)
        for each in done:
            each.result()

    # --- run ---------------------------------------------------------------------------------------------------------
    def _on_message(self, message: Any) -> None:
        if isinstance(message, CompleteMessage | StreamMessage):
            self.coordinator.handle(message)
        elif isinstance(message, ReadyMessage):
            self._on_ready(message)
        elif isinstance(message, ProcessFailedMessage):
            self._on_failed_start(message)
        elif isinstance(message, StageStatistics):
            waiting = self._statistics.pop(message.process, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message.counters)
        else:
            logger.error("the coordinator cannot handle a %s", type(message).__name__)

    def _on_ready(self, message: ReadyMessage) -> None:
        for name in message.stages:
            self._on_progress(name, "ready")
        future = self._children[message.process].ready
        if not future.done():
            future.set_result(None)

    def _on_failed_start(self, message: ProcessFailedMessage) -> None:
        info = message.error
        self._on_progress(info.stage or message.process, "failed")
        future = self._children[message.process].ready
        if not future.done():
            text = f"stage {info.stage!r} could not be started: {info.error_type}: {info.message}"
            future.set_exception(StartupError(f"{text}\n{info.traceback}".rstrip()))

    async def _read_log(self, child: _Child) -> None:
        assert child.process.stderr is not None
        while line := await child.process.stderr.readline():
            text = line.decode(errors="replace").rstrip()
            child.log.append(text)
            logger.info("%s: %s", child.spec.name, text)

    async def _watch(self, child: _Child) -> None:
        code = await child.process.wait()
        if self._stopping:
            return
        await asyncio.wait([child.tasks[0]], timeout=0.2)  # its last words
        stage = child.stage_names[0] if len(child.stage_names) == 1 else child.spec.name
        reason = (
            f"its process (pid {child.process.pid}) was killed by signal {-code}"
            if code < 0
            else f"its process ended with code {code}"
        )
        log = "".join(f"\n  {line}" for line in list(child.log)[-8:])
        if not child.ready.done():
            child.ready.set_exception(StartupError(f"stage {stage!r} could not be started: {reason}{log}"))
        elif self._coordinator is not None:
            logger.error("stage %s: %s%s", stage, reason, log)
            self._coordinator.pipeline_failed(stage, reason)

    async def statistics(self, timeout: float = 10.0) -> dict[str, dict[str, dict[str, float]]]:
        """Counters by process, then by stage (or ``relay``). A process that does not answer in time is left out."""
        assert self._control is not None
        waiting = {}
        for name, child in self._children.items():
            future = self._statistics.setdefault(name, asyncio.get_running_loop().create_future())
            waiting[name] = future
            self._control.send(child.spec.endpoint, StatisticsRequest(name))
        await asyncio.wait(waiting.values(), timeout=timeout)
        return {name: future.result() for name, future in waiting.items() if future.done()}

    @property
    def process_ids(self) -> dict[str, int]:
        """The pid of every process by its name."""
        return {name: child.process.pid for name, child in self._children.items()}

    # --- stop --------------------------------------------------------------------------------------------------------
    async def stop(self) -> None:
        """Abort what runs, end every process, and remove every socket. Idempotent."""
        self._stopping = True
        try:
            if self._coordinator is not None:
                self._coordinator.close()
            await self._end_children()
        finally:
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None

    async def _end_children(self) -> None:
        for child in self._children.values():
            if child.process.returncode is None and self._control is not None:
                self._control.send(child.spec.endpoint, ShutdownMessage("the pipeline stops"))
            if child.process.stdin is not None:
                child.process.stdin.close()  # the second way to say it, heard even while a stage is being built
        await asyncio.gather(*(self._end(child) for child in self._children.values()))
        self._children.clear()

    async def _end(self, child: _Child) -> None:
        ready = child.ready.done() and not child.ready.cancelled() and child.ready.exception() is None
        try:
            # A process that is still building stages reads no message; it has nothing to lose either.
            await asyncio.wait_for(child.process.wait(), self._stop_timeout if ready else 0.05)
        except TimeoutError:
            child.process.kill()
            await child.process.wait()
        await asyncio.gather(*child.tasks, return_exceptions=True)
        child.ready.cancel()
