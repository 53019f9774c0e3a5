"""Runs a pipeline: launches its units from resolved specs, and connects coordinator, supervision and control plane.

Serving uses this runner for one process and for many alike. Processes are forks of a server of this run, which has no threads, or fresh
interpreters; never forks of this process.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omni_core.config.completion import completed
from omni_core.config.schema import PipelineConfig
from omni_core.control.lanes import Tasks
from omni_core.control.plane import ControlPlane
from omni_core.coordinator.admission import admission
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.replicas import ReplicaChoice
from omni_core.errors import OmniError, StageFailedError, StartupError
from omni_core.launch.observation import Observation
from omni_core.launch.prepare import PreparedPipeline, prepare
from omni_core.machines.hosts import Hosts
from omni_core.observe.telemetry import telemetry
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.processes.deaths import Deaths
from omni_core.processes.heartbeat import Heartbeat
from omni_core.processes.run_directory import DirectoryCleaner, run_directory
from omni_core.processes.supervisor import Supervisor
from omni_core.processes.unit import UnitState
from omni_core.protocol import messages
from omni_core.protocol.specs import ProcessSpec

logger = logging.getLogger(__name__)

Progress = Callable[[str, str], None]
"""Called with a stage's name and its state: ``starting``, ``ready``, ``stalled``, ``restarting``, ``failed``."""


class MultiProcessPipelineRunner:
    """Owns the processes of one running pipeline and its coordinator. An async context manager.

    Args:
        config: the pipeline.
        registry: the installed plugins; discovered if not given.
        on_progress: called as the state of a stage changes.
        startup_timeout: seconds until every stage must be ready, beside each stage's own ``startup_timeout``.
        stop_timeout: seconds that a process has to end by itself before it is killed.
    """

    def __init__(
        self,
        config: PipelineConfig,
        registry: PluginRegistry | None = None,
        on_progress: Progress | None = None,
        startup_timeout: float = 600.0,
        stop_timeout: float = 8.0,
    ) -> None:
        self._config = config
        self._registry = registry
        self._on_progress = on_progress or (lambda stage, state: None)
        self._startup_timeout = startup_timeout
        self._stop_timeout = stop_timeout
        self._units: dict[str, Supervisor] = {}
        self._unit_of: dict[str, Supervisor] = {}
        self._tasks = Tasks()
        self._directory: Path | None = None
        self._cleaner: DirectoryCleaner | None = None
        self._hosts: Hosts | None = None
        self._control: ControlPlane | None = None
        self._coordinator: Coordinator | None = None
        self._observation: Observation | None = None
        self._heartbeat: Heartbeat | None = None
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

    @property
    def control(self) -> ControlPlane:
        if self._control is None:
            raise OmniError("the pipeline was not started")
        return self._control

    @property
    def observation(self) -> Observation:
        if self._observation is None:
            raise OmniError("the pipeline was not started")
        return self._observation

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
        self._config = await asyncio.to_thread(completed, self._config)  # may download a checkpoint
        directory = self._directory = run_directory(self._config.endpoints.base_path)
        self._cleaner = DirectoryCleaner(directory)
        self._hosts = Hosts(self._config, directory)
        endpoint, remote = f"ipc://{directory}/coordinator.sock", self._hosts.remote_routes()
        self._control = ControlPlane(endpoint, self._on_message, remote, self._keep_in_flight)
        self._control.listen()
        addresses = await self._hosts.open(self._control)
        prepared = prepare(self._config, self._registry or load_plugins(), addresses, self._hosts.keys)
        if remote is not None:
            remote.routes.update(prepared.routes)
        self._coordinator = self._make_coordinator(prepared)
        self._deaths = Deaths(self._coordinator, self._control)
        self._observation = Observation(self._config, directory, self._units, self._coordinator, self._control)
        try:
            async with asyncio.timeout(self._startup_timeout):
                for spec in prepared.units:
                    launch = self._hosts.launch(spec.host)
                    unit = self._units[spec.name] = Supervisor(spec, self._config.restart, self, launch)
                    self._unit_of |= dict.fromkeys((process.name for process in spec.processes), unit)
                    self.unit_changed(unit)
                    unit.launch()
                    await asyncio.sleep(0)
                starts = [unit.started for unit in self._units.values()]
                done, _ = await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
                for each in done:
                    each.result()
        except TimeoutError:
            late = [unit for unit in self._units.values() if not unit.started.done()]
            names = ", ".join(name for unit in late for name in unit.spec.stage_names)
            log = "".join(process.last_lines for unit in late for process in unit.processes)
            raise StartupError(f"not ready within {self._startup_timeout:g} s: {names}{log}") from None

    def _keep_in_flight(self) -> None:
        self.control.keep(self.coordinator.attempts())

    def _make_coordinator(self, prepared: PreparedPipeline) -> Coordinator:
        config = self._config
        entry = prepared.stage_endpoints[config.resolved_entry_stage]
        heartbeat = self._heartbeat = Heartbeat(self._units, lambda: self.coordinator.in_flight > 0)
        return Coordinator(
            entry_stage=config.resolved_entry_stage,
            terminal_stages=config.terminal_stages,
            terminal_stages_fn=prepared.terminal_stages_fn,
            submit_to_stage=lambda message, request: self.control.send(
                entry[request.placement.get(message.stage, 0)], message, (message.request_id, message.stage)
            ),
            broadcast=self._broadcast,
            place=ReplicaChoice(prepared.replicated, self._available_replicas),
            max_in_flight=config.max_in_flight,
            admit=admission(config, self._registry or load_plugins()),
            retries=config.retries,
            on_busy=heartbeat.begin,
            telemetry=telemetry(config.resolved_name),
        )

    def _available_replicas(self, group: str) -> list[int]:
        """The replicas of a process group that serve, else those that will, else none."""
        units = [unit for unit in self._units.values() if unit.spec.group == group]
        chosen = [unit for unit in units if unit.life.state is UnitState.READY] or [
            unit for unit in units if unit.life.state is not UnitState.FAILED
        ]
        return [unit.spec.replica for unit in chosen]

    # --- messages ----------------------------------------------------------------------------------------------------
    def _on_message(self, message: Any) -> None:
        if isinstance(message, messages.CompleteMessage | messages.StreamMessage):
            self.coordinator.handle(message)
        elif isinstance(message, messages.StageSpan):
            self.coordinator.stage_span(message)
        elif isinstance(message, messages.WaitingReport):
            self.coordinator.answered(message)
        elif isinstance(message, messages.PongMessage):
            in_flight = self.coordinator.attempts() if message.running else {}
            self._unit_of[message.process].answered(message.process, message.running, in_flight)
        elif isinstance(message, messages.PeerDownReport):
            self._deaths.take(message)
        elif isinstance(message, messages.InFlightRequest):
            self.control.tell(message.endpoint, messages.InFlightReport(list(self.coordinator.attempts())))
        elif isinstance(message, messages.ReadyMessage):
            self._unit_of[message.process].process_is_ready(message.process, message.pid)
        elif isinstance(message, messages.ProcessFailedMessage):
            self._unit_of[message.process].start_failed(message.error)
        elif not any(each is not None and each.handle(message) for each in (self._observation, self._hosts)):
            logger.error("the coordinator cannot handle a %s", type(message).__name__)

    def _broadcast(self, message: Any) -> int:
        """Send a message to every process that serves or will; their number."""
        if self._stopping:
            return 0
        told = [unit for unit in self._units.values() if unit.life.state is not UnitState.FAILED]
        for unit in told:
            self.control.tell(unit.spec.endpoint, message)
        request_id = getattr(message, "request_id", None)
        if request_id is not None:
            self.control.forget(request_id)
            if self._heartbeat is not None:
                self._heartbeat.request_is_over()
        return len(told)

    # --- the life of units (see supervisor.Owner) ----------------------------------------------------------------------
    def unit_changed(self, unit: Supervisor) -> None:
        for name in unit.spec.stage_names:
            self._on_progress(name, unit.life.state.value)

    def unit_died(self, unit: Supervisor, reason: str) -> None:
        self._deaths.survivor_died(unit.spec)
        self._tasks.start(self._deaths.settle(unit, self._serving_but(unit), reason))

    def unit_is_ready(self, unit: Supervisor) -> None:
        # Something may wait for it even at its first start: the failure of another unit.
        for process in unit.spec.processes:
            self.control.peer_is_up(process.endpoint)
        # Rank 0 may have begun before the others read their sockets; what it has for them waits until then.
        for follower in unit.spec.processes[1:]:
            self.control.tell(unit.spec.endpoint, messages.PeerUpMessage(follower.endpoint))

    def unit_is_back(self, unit: Supervisor) -> None:
        for other in self._serving_but(unit):
            self.control.tell(other.spec.endpoint, messages.PeerUpMessage(unit.spec.endpoint))
            # It may have come back while this one started too, and then has been announced to all but this one.
            self.control.tell(unit.spec.endpoint, messages.PeerUpMessage(other.spec.endpoint))
        for other in self._units.values():
            if other.life.state is UnitState.FAILED:
                self.control.tell(unit.spec.endpoint, self._failure_of(other))

    def unit_failed(self, unit: Supervisor, reason: str) -> None:
        message = self._failure_of(unit)
        for other in self._units.values():
            if other is not unit and other.life.state is not UnitState.FAILED:
                self.control.tell(other.spec.endpoint, message)
        error = StageFailedError(unit.label, reason)
        for attempt, stage in self.control.peer_has_failed(unit.spec.endpoint, error):
            self.coordinator.fail(attempt, messages.ErrorInfo(stage, type(error).__name__, str(error)))

    def ping(self, process: ProcessSpec) -> None:
        self.control.tell(process.endpoint, messages.PingMessage())

    def _failure_of(self, unit: Supervisor) -> messages.PeerFailedMessage:
        return messages.PeerFailedMessage(unit.spec.endpoint, unit.spec.stage_names, unit.life.reason)

    def _serving_but(self, unit: Supervisor) -> list[Supervisor]:
        return [other for other in self._units.values() if other is not unit and other.life.serves]

    @property
    def process_ids(self) -> dict[str, int]:
        """The pid of every process by its name."""
        return {process.spec.name: process.pid for unit in self._units.values() for process in unit.processes}

    # --- stop --------------------------------------------------------------------------------------------------------
    async def stop(self) -> None:
        """Abort what runs, end every process, and remove every socket. Idempotent."""
        self._stopping = True
        if self._heartbeat is not None:
            self._heartbeat.close()
        try:
            if self._coordinator is not None:
                self._coordinator.close()
            if self._observation is not None:
                self._observation.close()
            for task in self._tasks:
                task.cancel()
            for unit in self._units.values():
                if unit.life.serves:
                    for process in unit.processes:
                        self.control.tell(process.spec.endpoint, messages.ShutdownMessage())
                unit.begin_stop()
            await asyncio.gather(*(unit.finish_stop(self._stop_timeout) for unit in self._units.values()))
            self._units.clear()
        finally:
            if self._hosts is not None:
                await self._hosts.close()
            if self._control is not None:
                self._control.close()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None
            if self._cleaner is not None:
                self._cleaner.dismiss()
                self._cleaner = None
