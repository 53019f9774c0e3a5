"""The view into a running pipeline: health, statistics and profiles, for its owner and for status clients."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Generic, TypeVar

from omni_core.config.schema import PipelineConfig
from omni_core.control.lanes import Tasks
from omni_core.control.plane import ControlPlane
from omni_core.coordinator.coordinator import Coordinator
from omni_core.errors import ConfigError, OmniError, did_you_mean
from omni_core.observe.profiler import ProfileSummary, Recorder, merge
from omni_core.processes.supervisor import Supervisor
from omni_core.processes.unit import UnitState
from omni_core.protocol import messages

logger = logging.getLogger(__name__)

T = TypeVar("T")

Statistics = dict[str, dict[str, dict[str, float]]]

_PROFILE_SECONDS = 60.0
"""The time that a process has to begin a profile (torch's own takes a while) or to write one."""

_CLIENT_SECONDS = 1.0
"""The time that a status client has to read its answer."""


class Answers(Generic[T]):
    """Questions to processes that wait for an answer. Several may ask one process at once: its next answer is for all of them."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[asyncio.Future[T]]] = {}

    async def ask(self, questions: Mapping[str, Callable[[], None]], timeout: float) -> dict[str, T]:
        """Send the question of each process; the answers that come within ``timeout`` seconds, by process."""
        loop = asyncio.get_running_loop()
        mine = {name: loop.create_future() for name in questions}
        for name, future in mine.items():
            self._waiting.setdefault(name, []).append(future)
            questions[name]()
        try:
            if mine:
                await asyncio.wait(mine.values(), timeout=timeout)
        finally:
            for name, future in mine.items():
                waiting = self._waiting.get(name, [])
                if future in waiting:
                    waiting.remove(future)
        return {name: future.result() for name, future in mine.items() if future.done()}

    def take(self, name: str, answer: T) -> None:
        """The answer of a process has come."""
        for future in self._waiting.pop(name, []):
            if not future.done():
                future.set_result(answer)


class Observation:
    """Answers what can be asked of a running pipeline.

    Args:
        units: its units by name, as they are now.
    """

    def __init__(
        self,
        config: PipelineConfig,
        directory: Path,
        units: Mapping[str, Supervisor],
        coordinator: Coordinator,
        control: ControlPlane,
    ) -> None:
        self._config = config
        self._directory = directory
        self._units = units
        self._coordinator = coordinator
        self._control = control
        self._since = asyncio.get_running_loop().time()
        self._statistics: Answers[dict[str, dict[str, float]]] = Answers()
        self._profiles: Answers[messages.ProfileReport] = Answers()
        self._is_profiling = False
        self._tasks = Tasks()

    def handle(self, message: Any) -> bool:
        """Handle a message of a process or a status client. Returns False if it is for others."""
        if isinstance(message, messages.StageStatistics):
            self._statistics.take(message.process, message.counters)
        elif isinstance(message, messages.ProfileReport):
            self._profiles.take(message.process, message)
        elif isinstance(message, messages.StatusRequest):
            self._tasks.start(self._answer_status(message.endpoint))
        elif isinstance(message, messages.ProfileRequest):
            self._tasks.start(self._answer_profile(message))
        else:
            return False
        return True

    def close(self) -> None:
        """Answer no more."""
        for task in self._tasks:
            task.cancel()

    def health(self) -> dict[str, dict[str, Any]]:
        """By unit: its stages, its ``state`` (see :class:`UnitState`), restarts, reason of the last death, pids."""
        return {
            name: {
                "stages": unit.spec.stage_names,
                "state": unit.life.state.value,
                "restarts": unit.life.restarts,
                "reason": unit.life.reason,
                "pids": [process.pid for process in unit.processes],
            }
            for name, unit in self._units.items()
        }

    async def statistics(self, timeout: float = 10.0) -> Statistics:
        """Counters by process, then by stage (or ``relay``, ``process``); the coordinator's own under ``coordinator``.

        A process that does not answer within ``timeout`` seconds is left out, except for what its parent counts.
        """
        counters: Statistics = {}
        questions = {}
        for unit in self._units.values():
            for process in unit.processes:
                name = process.spec.name
                counters[name] = {"process": {"restarts": float(unit.life.restarts)}}
                if unit.life.state is UnitState.READY:
                    questions[name] = self._question(process.spec.endpoint, messages.StatisticsRequest(name))
        for name, answer in (await self._statistics.ask(questions, timeout)).items():
            counters[name] |= answer
        return {**counters, "coordinator": {"requests": self._coordinator.statistics()}}

    async def start_profile(self, torch: Sequence[str] = ()) -> None:
        """Record in every process from now on. ``torch``: stages in whose processes torch's own profiler runs too.

        Raises:
            ConfigError: no such stage. OmniError: a profile is running already.
        """
        stages = [stage.name for stage in self._config.stages]
        unknown = [name for name in torch if name not in stages]
        if unknown:
            raise ConfigError(f"torch: no stage is called {unknown[0]!r}{did_you_mean(unknown[0], stages)}")
        if self._is_profiling:
            raise OmniError("a profile is running already; stop it first")
        self._is_profiling = True
        try:
            await self._ask_profiles(lambda number: messages.ProfileMessage(start=True, torch=list(torch)))
        except BaseException:
            self._is_profiling = False
            raise
        self._coordinator.recorder = Recorder("client")

    async def stop_profile(self, path: str | Path) -> ProfileSummary:
        """Stop recording, and write one trace of all processes to ``path``.

        Raises:
            OmniError: no profile is running, or ``path`` cannot be written.
        """
        recorder, self._coordinator.recorder = self._coordinator.recorder, None
        if recorder is None:
            raise OmniError("no profile is running; start one first")
        try:
            reports, missing = await self._ask_profiles(
                lambda number: messages.ProfileMessage(start=False, path=str(self._directory / f"profile{number}.json"))
            )
            parts = [part for report in reports if (part := Path(report.path)).is_file()]
            try:
                count = await asyncio.to_thread(merge, parts, recorder.finish(), Path(path))
            except OSError as error:
                raise OmniError(f"the trace cannot be written to {path}: {error.strerror}") from error
            finally:
                for part in parts:
                    part.unlink()
        finally:
            self._is_profiling = False
        return ProfileSummary(count, recorder.dropped + sum(report.dropped for report in reports), missing)

    async def _ask_profiles(
        self, message: Callable[[int], messages.ProfileMessage]
    ) -> tuple[list[messages.ProfileReport], list[str]]:
        """Send a message to every process that serves; the reports, and the names of processes with a problem or no answer."""
        serving = [process for unit in self._units.values() if unit.life.serves for process in unit.spec.processes]
        questions = {each.name: self._question(each.endpoint, message(n)) for n, each in enumerate(serving)}
        reports = await self._profiles.ask(questions, _PROFILE_SECONDS)
        problems = {name: "no answer" for name in questions if name not in reports}
        problems |= {name: report.problem for name, report in reports.items() if report.problem}
        for name, problem in problems.items():
            logger.warning("profile of %s: %s", name, problem)
        return list(reports.values()), list(problems)

    def _question(self, endpoint: str, message: Any) -> Callable[[], None]:
        return lambda: self._control.tell(endpoint, message)

    # --- status clients (``omni top``, ``omni profile``) ---------------------------------------------------------------
    async def _answer_status(self, endpoint: str) -> None:
        uptime = asyncio.get_running_loop().time() - self._since
        report = messages.StatusReport(self._config.resolved_name, uptime, self.health(), await self.statistics(2.0))
        await self._tell_client(endpoint, report)

    async def _answer_profile(self, request: messages.ProfileRequest) -> None:
        try:
            await self.start_profile(request.torch)
            await asyncio.sleep(request.seconds)
            summary = await self.stop_profile(request.path)
        except OmniError as error:
            done = messages.ProfileDone(problem=str(error))
        else:
            done = messages.ProfileDone(summary.events, summary.dropped, summary.missing)
        await self._tell_client(request.endpoint, done)

    async def _tell_client(self, endpoint: str, message: Any) -> None:
        self._control.tell(endpoint, message)
        await asyncio.sleep(_CLIENT_SECONDS)
        self._control.drop(endpoint)
