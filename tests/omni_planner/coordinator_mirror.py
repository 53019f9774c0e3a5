"""The runtime's coordinator beside a simulated one: it gets the same events at the same times, and what both decide is written down."""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

from attrs import define, evolve, field

from omni_core.config.placement import process_groups
from omni_core.config.schema import PipelineConfig
from omni_core.coordinator.actions import Action, Ended, Start, Withdraw
from omni_core.coordinator.coordinator import Coordinator
from omni_core.coordinator.replicas import ReplicaChoice
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.coordinator.requests import TrackedRequest
from omni_core.errors import OmniError
from omni_core.launch.prepare import replicated_group
from omni_core.launch.runner import MultiProcessPipelineRunner
from omni_core.launch.running import machine_of
from omni_core.plugins import PluginRegistry
from omni_core.processes.supervisor import Role
from omni_core.protocol.codec import encode
from omni_core.protocol.messages import (
    AbortMessage,
    CompleteMessage,
    ErrorInfo,
    OmniRequest,
    StreamMessage,
    SubmitMessage,
)
from omni_planner.requests import Flight
from omni_planner.simulation import Simulation

_LATER = 1e-9
"""Seconds by which a simulated timer rings late, so that rounding does not make it ring again."""


class _Selector(selectors.DefaultSelector):
    """Waits for nothing: the time goes on instead."""

    def __init__(self) -> None:
        super().__init__()
        self.seconds = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.seconds += timeout or 0.0
        return super().select(0)


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop in simulated time."""

    def __init__(self) -> None:
        self._clock = _Selector()
        super().__init__(self._clock)

    def time(self) -> float:
        return self._clock.seconds

    def advance(self, seconds: float) -> None:
        """Run what is due until then, and what follows from it."""
        if seconds > self._clock.seconds:
            self.call_at(seconds + _LATER, self.stop)
            self.run_forever()
            self.settle()
            self._clock.seconds = seconds

    def settle(self) -> None:
        """Run what follows from what has happened."""
        for _ in range(8):
            self.call_soon(self.stop)
            self.run_forever()


@define
class Decisions:
    """The decisions of a coordinator.

    Attributes:
        attempts: each start of a request and each withdrawal, in order: the time, what, the request, the number of the attempt, and the
            placement of a start.
        ends: when each request ended, and with what error; or was refused.
        read: by request, what its client has read: the time, the stage, and whether that was its last.
    """

    attempts: list[tuple[float, str, str, int, dict[str, int]]] = field(factory=list)
    ends: dict[str, tuple[float, str]] = field(factory=dict)
    read: dict[str, list[tuple[float, str, bool]]] = field(factory=dict)
    _numbers: dict[str, int] = field(factory=dict)
    _names: dict[str, list[str]] = field(factory=dict)

    def started(self, now: float, attempt: str, placement: Mapping[str, int]) -> None:
        names = self._names.setdefault(_request(attempt), [])
        names.append(attempt)
        self._numbers[attempt] = len(names)
        self.attempts.append((now, "start", _request(attempt), len(names), dict(placement)))

    def withdrawn(self, now: float, attempt: str) -> None:
        self.attempts.append((now, "withdraw", _request(attempt), self._numbers[attempt], {}))

    def ended(self, now: float, request: str, error: BaseException | None) -> None:
        self.ends[request] = now, "" if error is None else type(error).__name__

    def rows(self) -> list[tuple[float, tuple[Any, ...]]]:
        """Return all of it: each time, and what happened then."""
        ends = [(when, ("end", request, error)) for request, (when, error) in sorted(self.ends.items())]
        read = [(each[0], ("read", request, *each[1:])) for request, some in sorted(self.read.items()) for each in some]
        return [*((row[0], row[1:]) for row in self.attempts), *ends, *read]

    def name_in(self, others: Decisions, attempt: str) -> str:
        """Return the name that the other coordinator has given to an attempt."""
        names, number = others._names.get(_request(attempt), []), self._numbers[attempt]
        return names[number - 1] if number <= len(names) else "unknown"


def _request(attempt: str) -> str:
    return attempt.partition("~")[0]


class Mirror:
    """A coordinator of the runtime whose stages are those of a simulation: it gets what comes to the simulated one.

    Attributes:
        simulated, real: the decisions of both.
    """

    def __init__(self, config: PipelineConfig) -> None:
        self.simulated, self.real = Decisions(), Decisions()
        self._loop, self._config = SimulatedLoop(), config
        self._clients = set[asyncio.Task[None]]()
        self._flights: dict[str, Flight] = {}

    def begin(self, simulation: Simulation) -> None:
        """Make the coordinator, for a simulation that has its units and no request yet."""
        config, self._simulation = self._config, simulation
        supervisors = {}
        for unit in simulation.units:
            spec = SimpleNamespace(group=unit.group, slot=unit.number, replica=unit.number)
            supervisors[unit.name] = SimpleNamespace(role=Role.SERVING, life=unit.life, spec=spec)
        groups = [
            evolve(
                replicated_group(name, stages, PluginRegistry([])),
                work=lambda request: self._flights[request.inputs].expected_work(),
            )
            for name, stages in process_groups(config).items()
            if stages[0].replicas > 1 or stages[0].balance != "turns"
        ]
        runner: Any = SimpleNamespace(_units=supervisors)
        choice = ReplicaChoice(groups, partial(MultiProcessPipelineRunner._available_replicas, runner))

        async def make() -> Coordinator:
            return Coordinator(
                entry_stage=config.resolved_entry_stage,
                machine=partial(
                    machine_of(config),
                    terminal_stages=config.terminal_stages,
                    terminal_stages_fn=lambda request: self._flights[request.inputs].answering(config.terminal_stages),
                    place=choice.place,
                    max_in_flight=config.max_in_flight,
                    retries=config.retries,
                ),
                submit_to_stage=self._starts,
                broadcast=self._says,
                left=choice.left,
            )

        self._coordinator = self._loop.run_until_complete(make())

    def end(self) -> None:
        """Let timers ring that are left, and end it."""
        self._loop.advance(self._loop.time() + 60.0)
        for each in self._clients:
            each.cancel()
        self._loop.settle()
        self._loop.close()

    # --- what comes to the simulated one ---------------------------------------------------------------------------------
    def advance(self) -> None:
        """Let timers ring that are due."""
        self._loop.advance(self._simulation.clock.now)

    def submit(self, request: OmniRequest, name: str) -> None:
        self._flights[name] = self._simulation.flights[-1]
        client = self._loop.create_task(self._read(request, name))
        self._clients.add(client)
        client.add_done_callback(self._clients.discard)
        self._loop.settle()

    def result(self, attempt: str, stage: str, final: bool) -> None:
        name = self.simulated.name_in(self.real, attempt)
        body = encode(None)
        self._coordinator.handle(CompleteMessage(name, stage, body) if final else StreamMessage(name, stage, 0, body))
        self._loop.settle()

    def failure(self, attempt: str, info: ErrorInfo) -> None:
        self._coordinator.fail(self.simulated.name_in(self.real, attempt), info)
        self._loop.settle()

    def process_lost(self, lost: Mapping[str, str], reason: str) -> None:
        self._coordinator.process_lost(
            {self.simulated.name_in(self.real, each): stage for each, stage in lost.items()}, reason
        )
        self._loop.settle()

    # --- what it does ------------------------------------------------------------------------------------------------
    async def _read(self, request: OmniRequest, name: str) -> None:
        read = self.real.read.setdefault(name, [])
        error: OmniError | None = None
        try:
            async for event in self._coordinator.stream(request, name):
                read.append((self._loop.time(), event.stage, event.final))
        except OmniError as problem:
            error = problem
        self.real.ended(self._loop.time(), name, error)

    def _starts(self, message: SubmitMessage, request: OmniRequest) -> None:
        self.real.started(self._loop.time(), message.request_id, request.placement)

    def _says(self, message: object) -> int:
        """Take a message to all processes. Nobody is asked: a simulated request that has expired ends at once."""
        if isinstance(message, AbortMessage):
            self.real.withdrawn(self._loop.time(), message.request_id)
        return 0


class Mirrored:
    """The machine of a simulation, whose events go to a mirror too, and whose actions are written down."""

    def __init__(self, machine: RequestMachine, mirror: Mirror) -> None:
        self._machine, self._mirror = machine, mirror

    def __getattr__(self, name: str) -> Any:
        return getattr(self._machine, name)

    def submit(
        self, request: OmniRequest, name: str, *, wants_partial: bool, now: float
    ) -> tuple[TrackedRequest, list[Action]]:
        self._mirror.advance()
        self._mirror.submit(request, name)
        try:
            tracked, actions = self._machine.submit(request, name, wants_partial=wants_partial, now=now)
        except OmniError as error:
            self._mirror.simulated.ended(now, name, error)
            raise
        return tracked, self._noted(actions, now)

    def result(self, attempt: str, stage: str, data: Any, *, final: bool, now: float) -> list[Action]:
        self._mirror.advance()
        self._mirror.result(attempt, stage, final)
        return self._noted(self._machine.result(attempt, stage, data, final=final, now=now), now)

    def failure(self, attempt: str, info: ErrorInfo, now: float) -> list[Action]:
        self._mirror.advance()
        self._mirror.failure(attempt, info)
        return self._noted(self._machine.failure(attempt, info, now), now)

    def process_lost(self, lost: Mapping[str, str], reason: str, now: float, excuse: Any) -> list[Action]:
        self._mirror.advance()
        self._mirror.process_lost(lost, reason)
        return self._noted(self._machine.process_lost(lost, reason, now, excuse), now)

    def asked(self, attempt: str, processes: int, now: float) -> list[Action]:
        return self._noted(self._machine.asked(attempt, processes, now), now)

    def clock(self, now: float) -> list[Action]:
        self._mirror.advance()
        return self._noted(self._machine.clock(now), now)

    def _noted(self, actions: list[Action], now: float) -> list[Action]:
        said = self._mirror.simulated
        for action in actions:
            if isinstance(action, Start):
                said.started(now, action.request.attempt_id, action.request.request.placement)
            elif isinstance(action, Withdraw):
                said.withdrawn(now, action.attempt_id)
            elif isinstance(action, Ended):
                said.ended(now, action.request.request_id, action.request.error)
        return actions
