"""Runs a pipeline: launches its units from resolved specs, and connects coordinator, supervision and control plane.

Serving uses this runner for one process and for many alike. Processes are forks of a server of this run, which has no threads, or fresh
interpreters; never forks of this process.
"""

from __future__ import annotations

import asyncio
import logging
import os
import shutil
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
from omni_core.errors import OmniError, StartupError, is_interrupt, traceback_of
from omni_core.forks import check_process
from omni_core.launch.observation import Observation
from omni_core.launch.prepare import PreparedPipeline, check_modules, prepare
from omni_core.launch.running import Running, RunningOperations, machine_of, operations_of
from omni_core.launch.units import Progress, Units
from omni_core.machines import Launcher, Placing, make_launcher, needs
from omni_core.machines.placing import coordinator_address
from omni_core.observe.telemetry import telemetry
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.processes.run_directory import DirectoryCleaner, restore_directory, run_directory
from omni_core.processes.supervisor import Supervisor
from omni_core.protocol import messages, process_messages
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.operation_messages import OperationCancel, OperationDone, OperationRequest

logger = logging.getLogger(__name__)


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
        self._startup_timeout = startup_timeout
        self._stop_timeout = stop_timeout
        self._units = Units(on_progress or (lambda stage, state: None), self._address, self._on_message)
        self._tasks = Tasks()
        self._directory: Path | None = None
        self._cleaner: DirectoryCleaner | None = None
        self._launcher: Launcher | None = None
        self._placing: Placing | None = None
        self._is_connected = False
        self._observation: Observation | None = None
        self._running: Running | None = None
        self._operations: RunningOperations | None = None
        self._pid = os.getpid()

    async def __aenter__(self) -> MultiProcessPipelineRunner:
        await self.start()
        return self

    async def __aexit__(self, *exception: object) -> None:
        await self.stop()

    @property
    def coordinator(self) -> Coordinator:
        check_process(self._pid)
        if not self._is_connected:
            raise OmniError("the pipeline was not started")
        return self._units.coordinator

    @property
    def control(self) -> ControlPlane:
        check_process(self._pid)
        if not self._is_connected:
            raise OmniError("the pipeline was not started")
        return self._units.control

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
        if not launcher.anywhere:
            check_modules(prepared, {stage.name for stage in self._config.stages if stage.hosts})
        try:
            async with asyncio.timeout(self._startup_timeout):
                await launcher.acquire(needs(plan(self._config)))
                self._placing = self._connect(launcher, run, prepared, registry)
                for spec in prepared.units:
                    unit = self._units[spec.name] = Supervisor(spec, self._config.restart, self._units, self._placing)
                    self._units.unit_changed(unit)
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
        here = network.address if network is not None else ""
        placing = Placing(launcher, run, prepared.units, here, self._restore)
        choice = ReplicaChoice(prepared.replicated, self._units.available_replicas)
        make = partial(self._make_coordinator, prepared, choice)
        self._units.connect(run, coordinator_address(launcher.here), network, make)
        self._is_connected = True
        self._observation = Observation(self._config, placing.machine, self._units, self.coordinator, self.control)
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
            control=self.control,
            coordinator=self.coordinator,
            observation=self._observation,
            choice=choice,
            owner=self._units,
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
                self.control.tell(process.endpoint, process_messages.ListenAgainMessage())

    def _begin_work(self) -> None:
        """The first request has come to an idle pipeline."""
        self._units.heartbeat.begin()
        if self._operations is not None:
            self._operations.begin()

    def _make_coordinator(self, prepared: PreparedPipeline, choice: ReplicaChoice) -> Coordinator:
        config = self._config
        entry = prepared.stage_endpoints[config.resolved_entry_stage]

        def to_entry(message: messages.SubmitMessage | messages.DataReadyMessage, request: OmniRequest) -> None:
            replica = request.placement.get(message.stage, 0)
            self._units.control.send(entry[replica], message, (message.request_id, message.stage))

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
            broadcast=self._units.broadcast,
            left=choice.left,
            admit=admission(config, self._registry or load_plugins()),
            check_result=claims_check(config.interface),
            on_busy=self._begin_work,
            telemetry=telemetry(config.resolved_name),
        )

    def _address(self, endpoint: str, seen_from: str | None) -> str:
        assert self._placing is not None
        return self._placing.address(endpoint, seen_from)

    def _on_message(self, message: Any) -> None:
        if isinstance(message, OperationRequest | OperationCancel):
            self._operate(message)
        elif self._observation is None or not self._observation.handle(message):
            logger.error("the coordinator cannot handle a %s", type(message).__name__)

    def _operate(self, message: OperationRequest | OperationCancel) -> None:
        """Hand on the message of a command, or say that nothing here can handle it."""
        try:
            self.operations.handle(message)
        except OmniError as error:
            self._tasks.start(self.observation.tell_client(message.endpoint, OperationDone(problem=str(error))))

    @property
    def process_ids(self) -> dict[str, int]:
        """The pid of every process by its name."""
        return self._units.process_ids

    async def stop(self) -> None:
        """Abort what runs, end every process, and remove every socket. Idempotent. In a fork, nothing: they are its parent's."""
        if os.getpid() != self._pid:
            return
        self._units.close()
        try:
            if self._is_connected:
                self.coordinator.close()
            if self._observation is not None:
                self._observation.close()
            if self._operations is not None:
                self._operations.close()
            for task in self._tasks:
                task.cancel()
            for unit in self._units.values():
                if unit.life.serves:
                    for process in unit.processes:
                        self.control.tell(process.spec.endpoint, process_messages.ShutdownMessage())
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
            if self._is_connected:
                self.control.close()
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None
            if self._cleaner is not None:
                self._cleaner.dismiss()
                self._cleaner = None
