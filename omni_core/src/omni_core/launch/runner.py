"""Runs a pipeline: launches its units from resolved specs, and ties coordinator, supervision and control plane together.

Serving uses this runner for one process and for many alike (seed 000). Processes are fresh interpreters, never forks.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable, Sequence
from itertools import count
from pathlib import Path
from typing import Any

from attrs import define, field

from omni_core.config.schema import PipelineConfig
from omni_core.config.validation import validate
from omni_core.control.plane import ControlPlane
from omni_core.coordinator.admission import admission
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.replicas import ReplicaChoice
from omni_core.errors import ConfigError, OmniError, StageFailedError, StartupError, did_you_mean
from omni_core.launch.prepare import PreparedPipeline, prepare
from omni_core.machines.hosts import Hosts
from omni_core.observe.profiler import ProfileSummary, Recorder, merge
from omni_core.observe.telemetry import telemetry
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.processes.deaths import Survey, lost_requests
from omni_core.processes.run_directory import Janitor, run_directory
from omni_core.processes.supervisor import Unit, UnitState
from omni_core.protocol.messages import (
    CompleteMessage,
    ErrorInfo,
    PeerDownMessage,
    PeerDownReport,
    PeerFailedMessage,
    PeerUpMessage,
    PingMessage,
    PongMessage,
    ProcessFailedMessage,
    ProfileDone,
    ProfileMessage,
    ProfileReport,
    ProfileRequest,
    ReadyMessage,
    ShutdownMessage,
    StageSpan,
    StageStatistics,
    StatisticsRequest,
    StatusReport,
    StatusRequest,
    StreamMessage,
)
from omni_core.protocol.specs import ProcessSpec

logger = logging.getLogger(__name__)

Progress = Callable[[str, str], None]
"""Told a stage's name and its state: ``starting``, ``ready``, ``stalled``, ``restarting``, ``failed``."""

PING_SECONDS = 1.0
"""While requests are in flight, every process is asked this often whether it turns. An idle pipeline asks nothing."""

STALL_SECONDS = 3.0

_PROFILE_SECONDS = 60.0
"""How long a process may take to begin a profile (torch's own takes a while) or to write one."""

_ONLOOKER_SECONDS = 1.0
"""How long an onlooker may take to read what it asked for."""

REPORT_SECONDS = 0.5
"""How long survivors may take to say what they know about a dead process."""


@define
class _Inquest:
    """The survivors' answers about one dead unit, as they come."""

    waiting: set[str]
    answered: asyncio.Event
    reports: list[PeerDownReport] = field(factory=list)

    def take(self, report: PeerDownReport) -> None:
        self.reports.append(report)
        self.drop(report.process)

    def drop(self, process: str) -> None:
        self.waiting.discard(process)
        if not self.waiting:
            self.answered.set()


class MultiProcessPipelineRunner:
    """Owns the processes of one running pipeline and its coordinator. An async context manager.

    Args:
        config: the pipeline.
        registry: the installed plugins; discovered if not given.
        on_progress: told about every stage as its state changes.
        startup_timeout: seconds until every stage must be ready, beside each stage's own ``startup_timeout``.
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
        self._units: dict[str, Unit] = {}
        self._unit_of: dict[str, Unit] = {}
        self._statistics: dict[str, asyncio.Future[dict[str, dict[str, float]]]] = {}
        self._inquests: dict[int, _Inquest] = {}
        self._deaths = count(1)
        self._profile_reports: dict[str, asyncio.Future[ProfileReport]] = {}
        self._since = 0.0
        self._tasks: set[asyncio.Task[None]] = set()
        self._directory: Path | None = None
        self._janitor: Janitor | None = None
        self._hosts: Hosts | None = None
        self._control: ControlPlane | None = None
        self._coordinator: Coordinator | None = None
        self._heartbeat: asyncio.TimerHandle | None = None
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
            raise OmniError("the pipeline was not started, or was stopped")
        return self._control

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
        validate(self._config)
        directory = self._directory = run_directory(self._config.endpoints.base_path)
        self._janitor = Janitor(directory)
        self._hosts = Hosts(self._config, directory)
        abroad = self._hosts.abroad()
        self._control = ControlPlane(f"ipc://{directory}/coordinator.sock", self._on_message, abroad)
        self._control.listen()
        places = await self._hosts.open(self._control)
        prepared = prepare(self._config, self._registry or load_plugins(), places, self._hosts.keys)
        if abroad is not None:
            abroad.routes.update(prepared.routes)
        self._since = asyncio.get_running_loop().time()
        self._coordinator = self._make_coordinator(prepared)
        try:
            async with asyncio.timeout(self._startup_timeout):
                for spec in prepared.units:
                    unit = self._units[spec.name] = Unit(
                        spec, self._config.restart, self, self._hosts.launch(spec.host)
                    )
                    self._unit_of |= dict.fromkeys((process.name for process in spec.processes), unit)
                    self.unit_changed(unit)
                    unit.launch()
                    await asyncio.sleep(0)
                done, _ = await asyncio.wait(
                    [unit.started for unit in self._units.values()], return_when=asyncio.FIRST_EXCEPTION
                )
                for each in done:
                    each.result()
        except TimeoutError:
            late = [unit for unit in self._units.values() if not unit.started.done()]
            names = ", ".join(name for unit in late for name in unit.spec.stage_names)
            log = "".join(process.last_lines for unit in late for process in unit.processes)
            raise StartupError(f"not ready within {self._startup_timeout:g} s: {names}{log}") from None

    def _make_coordinator(self, prepared: PreparedPipeline) -> Coordinator:
        self._choice = ReplicaChoice(prepared.replicated, self._available_replicas)
        entry = prepared.stage_endpoints[prepared.entry_stage]
        return Coordinator(
            entry_stage=prepared.entry_stage,
            terminal_stages=prepared.terminal_stages,
            terminal_stages_fn=prepared.terminal_stages_fn,
            submit_to_stage=lambda message, request: self.control.send(
                entry[request.placement.get(message.stage, 0)], message, (message.request_id, message.stage)
            ),
            broadcast=self._broadcast,
            place=self._choice,
            max_in_flight=self._max_in_flight,
            admit=admission(self._config),
            retries=self._config.retries,
            on_busy=self._begin_heartbeat,
            telemetry=telemetry(prepared.name),
        )

    def _available_replicas(self, group: str) -> list[int]:
        """The replicas of a process group that serve, else those that will, else none."""
        units = [unit for unit in self._units.values() if unit.spec.group == group]
        chosen = [unit for unit in units if unit.state is UnitState.READY] or [
            unit for unit in units if unit.state is not UnitState.FAILED
        ]
        return [unit.spec.replica for unit in chosen]

    # --- run ---------------------------------------------------------------------------------------------------------
    def _on_message(self, message: Any) -> None:
        if isinstance(message, CompleteMessage | StreamMessage):
            self.coordinator.handle(message)
        elif isinstance(message, StageSpan):
            self.coordinator.stage_span(message)
        elif isinstance(message, PongMessage):
            self._unit_of[message.process].answered(message.process)
        elif isinstance(message, StageStatistics):
            waiting = self._statistics.pop(message.process, None)
            if waiting is not None and not waiting.done():
                waiting.set_result(message.counters)
        elif isinstance(message, PeerDownReport):
            inquest = self._inquests.get(message.inquest)
            if inquest is not None:
                inquest.take(message)
        elif isinstance(message, ProfileReport):
            waiting_report = self._profile_reports.get(message.process)
            if waiting_report is not None and not waiting_report.done():
                waiting_report.set_result(message)
        elif isinstance(message, StatusRequest):
            self._spawn(self._answer(message.endpoint))
        elif isinstance(message, ProfileRequest):
            self._spawn(self._profile_for(message))
        elif isinstance(message, ReadyMessage):
            self._unit_of[message.process].process_is_ready(message.process)
        elif isinstance(message, ProcessFailedMessage):
            self._unit_of[message.process].start_failed(message.error)
        elif self._hosts is None or not self._hosts.handle(message):
            logger.error("the coordinator cannot handle a %s", type(message).__name__)

    def _tell(self, endpoint: str, message: Any) -> None:
        try:
            self.control.send(endpoint, message)
        except OmniError as error:
            logger.warning("a %s was not sent: %s", type(message).__name__, error)

    def _broadcast(self, message: Any) -> None:
        if self._stopping:
            return
        for unit in self._units.values():
            if unit.state is not UnitState.FAILED:
                self._tell(unit.spec.endpoint, message)
        request_id = getattr(message, "request_id", None)
        if request_id is not None:
            self.control.forget(request_id)

    # --- the life of units (see supervisor.Owner) ----------------------------------------------------------------------
    def unit_changed(self, unit: Unit) -> None:
        for name in unit.spec.stage_names:
            self._on_progress(name, unit.state.value)

    def unit_died(self, unit: Unit, reason: str) -> None:
        for inquest in self._inquests.values():
            for process in unit.spec.processes:
                inquest.drop(process.name)
        self._spawn(self._settle(unit, reason))

    def unit_is_ready(self, unit: Unit) -> None:
        # Rank 0 may have begun before the others read their sockets; what it has for them waits until it hears this.
        for follower in unit.spec.processes[1:]:
            self._tell(unit.spec.endpoint, PeerUpMessage(follower.endpoint))

    def unit_is_back(self, unit: Unit) -> None:
        for other in self._serving_but(unit):
            self._tell(other.spec.endpoint, PeerUpMessage(unit.spec.endpoint))
        for other in self._units.values():
            if other.state is UnitState.FAILED:
                self._tell(unit.spec.endpoint, self._failure_of(other))
        for process in unit.spec.processes:
            self.control.peer_is_up(process.endpoint)

    def unit_failed(self, unit: Unit, reason: str) -> None:
        message = self._failure_of(unit)
        for other in self._units.values():
            if other is not unit and other.state is not UnitState.FAILED:
                self._tell(other.spec.endpoint, message)
        error = StageFailedError(unit.label, reason)
        for attempt, stage in self.control.peer_has_failed(unit.spec.endpoint, error):
            self.coordinator.fail(attempt, ErrorInfo(stage, type(error).__name__, str(error)))

    def _failure_of(self, unit: Unit) -> PeerFailedMessage:
        return PeerFailedMessage(unit.spec.endpoint, unit.spec.stage_names, unit.reason)

    def _serving_but(self, unit: Unit) -> list[Unit]:
        return [other for other in self._units.values() if other is not unit and other.serves]

    async def _settle(self, unit: Unit, reason: str) -> None:
        """Fail or run again what the dead unit held, and nothing else."""
        endpoint, names = unit.spec.endpoint, unit.spec.stage_names
        reached = {work for process in unit.spec.processes for work in self.control.peer_is_down(process.endpoint)}
        requests = [name for name, request in self.coordinator.attempts().items() if self._concerns(request, unit)]
        others = self._serving_but(unit)
        number = next(self._deaths)
        inquest = self._inquests[number] = _Inquest({other.spec.processes[0].name for other in others}, asyncio.Event())
        for other in others:
            self._tell(other.spec.endpoint, PeerDownMessage(number, endpoint, names, requests))
        try:
            async with asyncio.timeout(REPORT_SECONDS):
                # Alone, there is nobody to wait for, but what the dead process had sent must still be read.
                await (inquest.answered.wait() if others else asyncio.sleep(0.02))
        except TimeoutError:
            logger.warning("no answer about the death of %s from %s", unit.label, ", ".join(sorted(inquest.waiting)))
        del self._inquests[number]
        silent = {other.spec.processes[0].name for other in others} - {each.process for each in inquest.reports}
        survey = Survey(
            reached | {(r, stage) for report in inquest.reports for r, stage in report.reached},
            {
                (r, source, here): (seen, to)
                for report in inquest.reports
                for r, source, here, seen, to in report.arrived
            },
            {(r, stage) for r in requests for stage in names if self.coordinator.completed(r, stage)},
            complete=not silent,
        )
        for request, stage in lost_requests(requests, unit.spec.stages, survey).items():
            self.coordinator.lost(request, stage, reason)

    @staticmethod
    def _concerns(request: Any, unit: Unit) -> bool:
        return all(
            request.placement.get(name, unit.spec.replica) == unit.spec.replica for name in unit.spec.stage_names
        )

    def _spawn(self, work: Any) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    # --- stalls --------------------------------------------------------------------------------------------------------
    def _begin_heartbeat(self) -> None:
        if self._heartbeat is None and not self._stopping:
            self._heartbeat = asyncio.get_running_loop().call_later(PING_SECONDS, self._beat)

    def _beat(self) -> None:
        self._heartbeat = None
        if not self.coordinator.in_flight:
            return
        now = asyncio.get_running_loop().time()
        for unit in self._units.values():
            if not unit.serves:
                continue
            unit.look(now, STALL_SECONDS)
            for process in unit.processes:
                if process.unanswered_since is None:
                    process.unanswered_since = now
                    self._tell(process.spec.endpoint, PingMessage())
        self._begin_heartbeat()

    # --- what can be seen ------------------------------------------------------------------------------------------------
    async def statistics(self, timeout: float = 10.0) -> dict[str, dict[str, dict[str, float]]]:
        """Counters by process, then by stage (or ``relay``, ``process``); the coordinator's own under ``coordinator``.

        A process that does not answer within ``timeout`` seconds is left out, except for what its parent counts.
        """
        waiting = {}
        counters: dict[str, dict[str, dict[str, float]]] = {}
        for unit in self._units.values():
            for process in unit.processes:
                name = process.spec.name
                counters[name] = {"process": {"restarts": float(unit.restarts)}}
                if unit.state is UnitState.READY:
                    waiting[name] = self._statistics.setdefault(name, asyncio.get_running_loop().create_future())
                    self._tell(process.spec.endpoint, StatisticsRequest(name))
        if waiting:
            await asyncio.wait(waiting.values(), timeout=timeout)
        for name, future in waiting.items():
            if future.done():
                counters[name] |= future.result()
            elif self._statistics.get(name) is future:
                del self._statistics[name]
        return {**counters, "coordinator": {"requests": self.coordinator.statistics()}}

    async def start_profile(self, torch: Sequence[str] = ()) -> None:
        """Record in every process from now on. ``torch``: stages in whose processes torch's own profiler runs too.

        Raises:
            ConfigError: no such stage. OmniError: a profile is running already.
        """
        unknown = [name for name in torch if name not in {stage.name for stage in self._config.stages}]
        if unknown:
            raise ConfigError(
                f"torch: no stage is called {unknown[0]!r}{did_you_mean(unknown[0], self._stage_names())}"
            )
        if self.coordinator.recorder is not None:
            raise OmniError("a profile is running already; stop it first")
        messages = [(process, ProfileMessage(start=True, torch=list(torch))) for process in self._serving_processes()]
        await self._profile_answers(messages)
        self.coordinator.recorder = Recorder("client")

    async def stop_profile(self, path: str | Path) -> ProfileSummary:
        """Stop recording, and write one trace of all processes to ``path``.

        Raises:
            OmniError: no profile is running, or ``path`` cannot be written.
        """
        recorder, self.coordinator.recorder = self.coordinator.recorder, None
        if recorder is None or self._directory is None:
            raise OmniError("no profile is running; start one first")
        messages = [
            (process, ProfileMessage(start=False, path=str(self._directory / f"profile{number}.json")))
            for number, process in enumerate(self._serving_processes())
        ]
        reports, missing = await self._profile_answers(messages)
        parts = [part for report in reports if (part := Path(report.path)).is_file()]
        try:
            count = await asyncio.to_thread(merge, parts, recorder.finish(), Path(path))
        except OSError as error:
            raise OmniError(f"the trace cannot be written to {path}: {error.strerror}") from error
        finally:
            for part in parts:
                part.unlink()
        return ProfileSummary(count, recorder.dropped + sum(report.dropped for report in reports), missing)

    async def _profile_answers(
        self, messages: list[tuple[ProcessSpec, ProfileMessage]]
    ) -> tuple[list[ProfileReport], list[str]]:
        """Tell every process its message; the reports, and the names of the processes that had a problem or said nothing."""
        loop = asyncio.get_running_loop()
        waiting = self._profile_reports = {process.name: loop.create_future() for process, _ in messages}
        for process, message in messages:
            self._tell(process.endpoint, message)
        if waiting:
            await asyncio.wait(waiting.values(), timeout=_PROFILE_SECONDS)
        reports = [each.result() for each in waiting.values() if each.done()]
        problems = {report.process: report.problem for report in reports if report.problem}
        problems |= {name: "no answer" for name, report in waiting.items() if not report.done()}
        for name, problem in problems.items():
            logger.warning("profile of %s: %s", name, problem)
        return reports, list(problems)

    def _stage_names(self) -> list[str]:
        return [stage.name for stage in self._config.stages]

    def _serving_processes(self) -> list[ProcessSpec]:
        return [process for unit in self._units.values() if unit.serves for process in unit.spec.processes]

    async def _answer(self, endpoint: str) -> None:
        """Tell somebody who looks on (``omni top``) how things are."""
        uptime = asyncio.get_running_loop().time() - self._since
        report = StatusReport(self._config.resolved_name, uptime, self.health(), await self.statistics(2.0))
        await self._tell_onlooker(endpoint, report)

    async def _profile_for(self, request: ProfileRequest) -> None:
        """Profile on behalf of somebody who looks on (``omni profile``)."""
        try:
            await self.start_profile(request.torch)
            await asyncio.sleep(request.seconds)
            summary = await self.stop_profile(request.path)
        except OmniError as error:
            done = ProfileDone(problem=str(error))
        else:
            done = ProfileDone(summary.events, summary.dropped, summary.missing)
        await self._tell_onlooker(request.endpoint, done)

    async def _tell_onlooker(self, endpoint: str, message: Any) -> None:
        self._tell(endpoint, message)
        await asyncio.sleep(_ONLOOKER_SECONDS)
        self.control.drop(endpoint)

    def health(self) -> dict[str, dict[str, Any]]:
        """By unit: its stages, its ``state`` (see :class:`~omni_core.processes.supervisor.UnitState`), restarts, last reason, pids."""
        return {
            name: {
                "stages": unit.spec.stage_names,
                "state": unit.state.value,
                "restarts": unit.restarts,
                "reason": unit.reason,
                "pids": [process.pid for process in unit.processes],
            }
            for name, unit in self._units.items()
        }

    @property
    def process_ids(self) -> dict[str, int]:
        """The pid of every process by its name."""
        return {process.spec.name: process.pid for unit in self._units.values() for process in unit.processes}

    # --- stop --------------------------------------------------------------------------------------------------------
    async def stop(self) -> None:
        """Abort what runs, end every process, and remove every socket. Idempotent."""
        self._stopping = True
        if self._heartbeat is not None:
            self._heartbeat.cancel()
        try:
            if self._coordinator is not None:
                self._coordinator.close()
            for task in self._tasks:
                task.cancel()
            for unit in self._units.values():
                if unit.serves:
                    for process in unit.processes:
                        self._tell(process.spec.endpoint, ShutdownMessage("the pipeline stops"))
                unit.begin_stop()
            await asyncio.gather(*(unit.finish_stop(self._stop_timeout) for unit in self._units.values()))
            self._units.clear()
        finally:
            if self._hosts is not None:
                self._hosts.close()
            if self._control is not None:
                self._control.close()
                self._control = None
            if self._directory is not None:
                shutil.rmtree(self._directory, ignore_errors=True)
                self._directory = None
            if self._janitor is not None:
                self._janitor.dismiss()
                self._janitor = None
