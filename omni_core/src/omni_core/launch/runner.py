"""Runs a pipeline: launches its units from resolved specs, and connects coordinator, supervision and control plane.

Serving uses this runner for one process and for many alike. Processes are forks of a server of this run, which has no threads, or fresh
interpreters; never forks of this process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from omni_core.config.completion import completed
from omni_core.config.placement import plan
from omni_core.config.schema import PipelineConfig
from omni_core.control.lanes import Tasks
from omni_core.control.plane import ControlPlane
from omni_core.coordinator.admission import admission
from omni_core.coordinator.claims import claims_check
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.replicas import ReplicaChoice
from omni_core.errors import OmniError, StageFailedError, StartupError, contained, is_interrupt, traceback_of
from omni_core.forks import check_process
from omni_core.launch.observation import Observation
from omni_core.launch.prepare import PreparedPipeline, prepare
from omni_core.launch.running import Running, RunningOperations, machine_of, operations_of
from omni_core.machines import Launcher, Placing, make_launcher, needs
from omni_core.machines.placing import coordinator_address
from omni_core.observe.telemetry import telemetry
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.processes.deaths import Deaths
from omni_core.processes.heartbeat import Heartbeat
from omni_core.processes.run_directory import DirectoryCleaner, restore_directory, run_directory
from omni_core.processes.supervisor import Role, Supervisor
from omni_core.processes.unit import UnitState
from omni_core.protocol import messages
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.operations import OperationCancel, OperationDone, OperationRequest
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
        self._tasks = Tasks()
        self._directory: Path | None = None
        self._cleaner: DirectoryCleaner | None = None
        self._launcher: Launcher | None = None
        self._placing: Placing | None = None
        self._control: ControlPlane | None = None
        self._coordinator: Coordinator | None = None
        self._observation: Observation | None = None
        self._running: Running | None = None
        self._operations: RunningOperations | None = None
        self._heartbeat: Heartbeat | None = None
        self._stopping = False
        self._pid = os.getpid()

    async def __aenter__(self) -> MultiProcessPipelineRunner:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    @property
    def coordinator(self) -> Coordinator:
        check_process(self._pid)
        if self._coordinator is None:
            raise OmniError("the pipeline was not started")
        return self._coordinator

    @property
    def control(self) -> ControlPlane:
        check_process(self._pid)
        if self._control is None:
            raise OmniError("the pipeline was not started")
        return self._control

    @property
    def observation(self) -> Observation:
        check_process(self._pid)
        if self._observation is None:
            raise OmniError("the pipeline was not started")
        return self._observation

    @property
    def operations(self) -> RunningOperations:
        """The operations that change this pipeline. Raises PluginError: they are not installed."""
        check_process(self._pid)
        if self._running is None:
            raise OmniError("the pipeline was not started")
        if self._operations is None:
            self._operations = operations_of(self._running)
        return self._operations

    @property
    def config(self) -> PipelineConfig:
        """The config as it is now: operations change it."""
        return self._config if self._running is None else self._running.config

    # --- start -------------------------------------------------------------------------------------------------------
    async def start(self) -> None:
        """Launch every process and return when all stages are ready. Leaves nothing behind if it fails.

        Raises:
            ConfigError, PluginError: before anything was started. StartupError: a stage did not become ready.
        """
        self._pid = os.getpid()
        try:
            await self._start()
        except BaseException:
            await self.stop()
            raise

    async def _start(self) -> None:
        self._config = await asyncio.to_thread(completed, self._config)  # may download a checkpoint
        directory = self._directory = run_directory(self._config.endpoints.base_path)
        self._cleaner = DirectoryCleaner(directory)
        registry = self._registry or load_plugins()
        run = f"omni://{directory.name}"
        launcher = self._launcher = make_launcher(self._config, registry, directory, run)
        prepared = prepare(self._config, registry, run, launcher.network_spec, launcher.anywhere)
        try:
            async with asyncio.timeout(self._startup_timeout):
                await launcher.acquire(needs(plan(self._config)))
                self._placing = self._connect(launcher, run, prepared, registry)
                for spec in prepared.units:
                    unit = self._units[spec.name] = Supervisor(spec, self._config.restart, self, self._placing)
                    self.unit_changed(unit)
                    unit.launch()
                    await asyncio.sleep(0)
                starts = [unit.started for unit in self._units.values()]
                done, _ = await asyncio.wait(starts, return_when=asyncio.FIRST_EXCEPTION)
                for each in done:
                    each.result()
        except TimeoutError:
            late = [unit for unit in self._units.values() if not unit.started.done()]
            names = ", ".join(name for unit in late for name in unit.spec.stage_names) or "the machines of its stages"
            log = "".join(unit.progress() for unit in late)
            raise StartupError(f"not ready within {self._startup_timeout:g} s: {names}{log}") from None

    def _connect(self, launcher: Launcher, run: str, prepared: PreparedPipeline, registry: PluginRegistry) -> Placing:
        """Make what the processes of the run talk to."""
        network = launcher.network()
        addresses = {run: coordinator_address(launcher.here)}
        self._control = ControlPlane(
            run, self._on_message, addresses, network, self._on_cut, self._keep_in_flight, self._on_nonsense
        )
        self._control.listen()
        here = network.address if network is not None else ""
        placing = Placing(launcher, run, prepared.units, here, self._restore)
        choice = ReplicaChoice(prepared.replicated, self._available_replicas)
        self._coordinator = self._make_coordinator(prepared, choice)
        self._deaths = Deaths(self._coordinator, self._control)
        self._observation = Observation(self._config, placing.machine, self._units, self._coordinator, self._control)
        self._running = Running(
            config=self._config,
            prepare=partial(
                prepare, registry=registry, run=run, network=launcher.network_spec, anywhere=launcher.anywhere
            ),
            registry=registry,
            launcher=launcher,
            placing=placing,
            units=self._units,
            entry=prepared.stage_endpoints,
            control=self._control,
            coordinator=self._coordinator,
            observation=self._observation,
            choice=choice,
            owner=self,
            stop_timeout=self._stop_timeout,
        )
        if any(stage.autoscale is not None for stage in self._config.stages):
            self._operations = operations_of(self._running)
        return placing

    def _restore(self) -> None:
        """Let a process that starts find all others: a cleaner of temporary files may have removed their sockets."""
        assert self._directory is not None
        assert self._cleaner is not None
        restore_directory(self._directory)
        self._cleaner.hold()
        self.control.renew()
        for unit in self._units.values():
            for process in unit.spec.processes if unit.life.serves else ():
                self.control.tell(process.endpoint, messages.ListenAgainMessage())

    def _begin_work(self) -> None:
        """The first request has come to an idle pipeline."""
        if self._heartbeat is not None:
            self._heartbeat.begin()
        if self._operations is not None:
            self._operations.begin()

    def _keep_in_flight(self) -> None:
        self.control.keep(self.coordinator.attempts())

    def _make_coordinator(self, prepared: PreparedPipeline, choice: ReplicaChoice) -> Coordinator:
        config = self._config
        entry = prepared.stage_endpoints[config.resolved_entry_stage]
        self._heartbeat = Heartbeat(self._units, lambda: self.coordinator.in_flight > 0)

        def to_entry(message: messages.SubmitMessage | messages.DataReadyMessage, request: OmniRequest) -> None:
            replica = request.placement.get(message.stage, 0)
            self.control.send(entry[replica], message, (message.request_id, message.stage))

        return Coordinator(
            entry_stage=config.resolved_entry_stage,
            machine=partial(
                machine_of(config),
                terminal_stages=config.terminal_stages,
                terminal_stages_fn=prepared.chooses_terminals(config.terminal_stages),
                place=choice.place,
                max_in_flight=config.max_in_flight,
                retries=config.retries,
            ),
            submit_to_stage=to_entry,
            input_streams=config.interface.input_streams if config.interface is not None else (),
            broadcast=self._broadcast,
            left=choice.left,
            admit=admission(config, self._registry or load_plugins()),
            check_result=claims_check(config.interface),
            on_busy=self._begin_work,
            telemetry=telemetry(config.resolved_name),
        )

    def _available_replicas(self, group: str) -> dict[int, int]:
        """The replicas of a process group that serve, else those that will, else those that have failed, by slot."""
        units = [unit for unit in self._units.values() if unit.spec.group == group and unit.role is Role.SERVING]
        chosen = [unit for unit in units if unit.life.state is UnitState.READY] or [
            unit for unit in units if unit.life.state is not UnitState.FAILED
        ]
        return {unit.spec.slot: unit.spec.replica for unit in chosen or units}

    def _unit_of(self, process: str) -> Supervisor | None:
        """The unit of a process; ``None`` if it has ended for good."""
        units = self._units.values()
        return next((unit for unit in units if any(each.name == process for each in unit.spec.processes)), None)

    # --- messages ----------------------------------------------------------------------------------------------------
    def _on_message(self, message: Any) -> None:
        if isinstance(message, messages.CompleteMessage | messages.StreamMessage):
            self.coordinator.handle(message)
        elif isinstance(message, messages.InputTaken):
            self.coordinator.input_taken(message)
        elif isinstance(message, messages.StageSpan):
            self.coordinator.stage_span(message)
        elif isinstance(message, messages.WaitingReport):
            self.coordinator.answered(message)
        elif isinstance(message, messages.PongMessage):
            if unit := self._unit_of(message.process):
                in_flight = self.coordinator.attempts() if message.running else {}
                unit.answered(message.process, message.running, in_flight)
        elif isinstance(message, messages.PeerCutReport):
            # A process that was lost, and wakes up, has lost all its connections.
            if self.process_ids.get(message.process) == message.pid:
                self._on_cut(message.endpoint, message.reason)
        elif isinstance(message, messages.NonsenseReport):
            self._on_nonsense(message.pid, message.reason, message.process)
        elif isinstance(message, messages.PeerDownReport):
            self._deaths.take(message)
        elif isinstance(message, messages.InFlightRequest):
            self.control.tell(message.endpoint, messages.InFlightReport(list(self.coordinator.attempts())))
        elif isinstance(message, messages.ReadyMessage):
            if unit := self._unit_of(message.process):
                unit.process_is_ready(message.process, message.pid)
        elif isinstance(message, messages.ProcessFailedMessage):
            if unit := self._unit_of(message.process):
                unit.start_failed(message.error)
        elif isinstance(message, OperationRequest | OperationCancel):
            self._operate(message)
        elif self._observation is None or not self._observation.handle(message):
            logger.error("the coordinator cannot handle a %s", type(message).__name__)

    def _operate(self, message: OperationRequest | OperationCancel) -> None:
        """Hand on the message of a command, or say that nothing here can handle it."""
        try:
            self.operations.handle(message)
        except OmniError as error:
            self._tasks.start(self.observation.tell_client(message.endpoint, OperationDone(problem=str(error))))

    def _on_cut(self, endpoint: str, reason: str) -> None:
        """A connection to a process on another machine has ended."""
        for unit in self._units.values():
            if any(process.endpoint == endpoint for process in unit.spec.processes):
                unit.cut(reason)

    def _on_nonsense(self, pid: int, reason: str, to: str = "") -> None:
        """A process has sent what is no message: to us, or to a process ``to`` on its machine."""
        logger.error("process %d has sent %s; its connection to %s is closed", pid, reason, to or "the runner")
        processes = [(unit, process) for unit in self._units.values() for process in unit.processes]
        where = next((process.where for _, process in processes if process.spec.name == to), "")
        for unit, process in processes:
            if (process.pid, process.where) == (pid, where):
                unit.sent_nonsense(process, reason)

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
        for name in unit.spec.stage_names if unit.role is Role.SERVING else ():
            contained(partial(self._on_progress, name, unit.life.state.value), None, "on_progress")

    def unit_died(self, unit: Supervisor, reason: str) -> None:
        self._deaths.survivor_died(unit.spec)
        self._tasks.start(self._deaths.settle(unit, self._serving_but(unit), reason))

    def unit_is_ready(self, unit: Supervisor) -> None:
        # Something may wait for it even at its first start: the failure of another unit.
        for process in unit.spec.processes:
            self.control.peer_is_up(process.endpoint, self._address(process.endpoint))
        # Rank 0 may have begun before the others read their sockets; what it has for them waits until then.
        for follower in unit.spec.processes[1:]:
            self._introduce(follower.endpoint, unit.spec.endpoint)
        for other in self._serving_but(unit):
            # It may have become ready while this one started, and then has been announced to all but this one.
            self._introduce(unit.spec.endpoint, other.spec.endpoint)

    def _introduce(self, *endpoints: str) -> None:
        """Tell each of two processes that the other one reads its endpoint, and where."""
        for endpoint, other in (endpoints, endpoints[::-1]):
            self.control.tell(other, messages.PeerUpMessage(endpoint, self._address(endpoint, other)))

    def _address(self, endpoint: str, seen_from: str | None = None) -> str:
        assert self._placing is not None
        return self._placing.address(endpoint, seen_from)

    def unit_is_back(self, unit: Supervisor) -> None:
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
        """Abort what runs, end every process, and remove every socket. Idempotent. In a fork, nothing: they are its parent's."""
        if os.getpid() != self._pid:
            return
        self._stopping = True
        if self._heartbeat is not None:
            self._heartbeat.close()
        try:
            if self._coordinator is not None:
                self._coordinator.close()
            if self._observation is not None:
                self._observation.close()
            if self._operations is not None:
                self._operations.close()
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
            if self._launcher is not None:
                try:
                    await self._launcher.release()
                except BaseException as error:  # a launcher is anyone's code
                    if issubclass(type(error), asyncio.CancelledError) or is_interrupt(error):
                        raise
                    logger.error("the launcher has not given back everything\n%s", traceback_of(error))
            if self._control is not None:
                self._control.close()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None
            if self._cleaner is not None:
                self._cleaner.dismiss()
                self._cleaner = None
