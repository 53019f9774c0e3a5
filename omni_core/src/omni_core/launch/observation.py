"""The view into a running pipeline: health, statistics and profiles, for its owner and for status clients."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Generic, TypeVar

from omni_core.config.schema import PipelineConfig
from omni_core.control.lanes import Tasks
from omni_core.control.plane import ControlPlane
from omni_core.coordinator.coordinator import Coordinator
from omni_core.errors import OmniError
from omni_core.observe.recording import Profiling
from omni_core.processes.actions import UnitState
from omni_core.processes.supervisor import Role, Supervisor
from omni_core.protocol import messages
from omni_core.protocol.specs import ProcessSpec
from omni_core.services import PROFILES

T = TypeVar("T")

Statistics = dict[str, dict[str, dict[str, float]]]

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


def _state(unit: Supervisor) -> str:
    """The state of a unit, as ``health`` shows it."""
    return unit.role.value if unit.role is Role.DRAINING and unit.life.serves else unit.life.state.value


class Observation:
    """Answers what can be asked of a running pipeline.

    Args:
        units: its units by name, as they are now.
        machine_of: the number of the machine of the process at an endpoint; 0: this one.
    """

    def __init__(
        self,
        config: PipelineConfig,
        machine_of: Callable[[str], int],
        units: Mapping[str, Supervisor],
        coordinator: Coordinator,
        control: ControlPlane,
    ) -> None:
        self._config = config
        self._machine_of = machine_of
        self._units = units
        self._coordinator = coordinator
        self._control = control
        self._since = asyncio.get_running_loop().time()
        self._statistics: Answers[dict[str, dict[str, float]]] = Answers()
        self._flushed: Answers[list[str]] = Answers()
        self._profiling: Profiling | None = None
        self._tasks = Tasks()
        self.handlers: dict[type, Callable[[Any], object]] = {
            messages.StageStatistics: lambda message: self._statistics.take(message.process, message.counters),
            messages.FlushReport: lambda message: self._flushed.take(message.process, message.stages),
            messages.ProfileReport: lambda message: self.profiling.take(message),
            messages.StatusRequest: lambda message: self._tasks.start(self._answer_status(message.endpoint)),
            messages.ProfileRequest: lambda message: self._tasks.start(self._answer_profile(message)),
        }
        """By class, the handlers of messages of processes and status clients."""

    def handle(self, message: Any) -> bool:
        """Handle a message of a process or a status client. Returns False if it is for others."""
        handler = self.handlers.get(type(message))
        if handler is not None:
            handler(message)
        return handler is not None

    def close(self) -> None:
        """Answer no more."""
        for task in self._tasks:
            task.cancel()

    def health(self) -> dict[str, dict[str, Any]]:
        """By unit: its stages, its ``state`` (see :class:`UnitState`; ``draining``: it gets no new requests), restarts, reason of the last
        death, pids.
        """
        return {
            name: {
                "stages": unit.spec.stage_names,
                "state": _state(unit),
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
        asked = []
        for unit in self._units.values():
            for process in unit.processes:
                counters[process.spec.name] = {"process": {"restarts": float(unit.life.restarts)}}
                if unit.life.state is UnitState.READY:
                    asked.append(process.spec)
        for name, answer in (await self.counters(asked, timeout)).items():
            counters[name] |= answer
        return {**counters, "coordinator": {"requests": self._coordinator.statistics()}}

    async def counters(
        self, processes: Sequence[ProcessSpec], timeout: float
    ) -> dict[str, dict[str, dict[str, float]]]:
        """Return the counters of those processes that answer within ``timeout`` seconds, by name, then by stage. They have read all
        messages of before.
        """
        questions = {
            each.name: self._question(each.endpoint, messages.StatisticsRequest(each.name)) for each in processes
        }
        return await self._statistics.ask(questions, timeout)

    async def flush_caches(self, timeout: float = 10.0) -> dict[str, list[str]]:
        """Let every stage forget what it keeps for later requests: cached prefixes, encoded media and voices.

        Returns:
            The stages that keep such things, by process. Requests that come from now on find nothing of before.
        """
        serving = [process for unit in self._units.values() if unit.life.serves for process in unit.spec.processes]
        questions = {each.name: self._question(each.endpoint, messages.FlushRequest()) for each in serving}
        return await self._flushed.ask(questions, timeout)

    @property
    def profiling(self) -> Profiling:
        """The profiles of this pipeline. Raises PluginError: no plugin makes them."""
        if self._profiling is None:
            make = PROFILES.need("profiles need").pipeline
            self._profiling = make(self._config, self._machine_of, self._units, self._coordinator, self._control)
        return self._profiling

    def _question(self, endpoint: str, message: Any) -> Callable[[], None]:
        return lambda: self._control.tell(endpoint, message)

    async def _answer_status(self, endpoint: str) -> None:
        uptime = asyncio.get_running_loop().time() - self._since
        report = messages.StatusReport(self._config.resolved_name, uptime, self.health(), await self.statistics(2.0))
        await self.tell_client(endpoint, report)

    async def _answer_profile(self, request: messages.ProfileRequest) -> None:
        try:
            await self.profiling.start(request.torch)
            await asyncio.sleep(request.seconds)
            summary = await self.profiling.stop(request.path)
        except OmniError as error:
            done = messages.ProfileDone(problem=str(error))
        else:
            done = messages.ProfileDone(summary.events, summary.dropped, summary.missing)
        await self.tell_client(request.endpoint, done)

    async def tell_client(self, endpoint: str, message: Any) -> None:
        """Send a status client its last message, and forget the client when it has had time to read it."""
        self._control.tell(endpoint, message)
        await asyncio.sleep(_CLIENT_SECONDS)
        self._control.drop(endpoint)
