"""One world: a pipeline, its clients and what happens to it, all decided by a seed."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from functools import partial
from random import Random
from types import SimpleNamespace
from typing import Any

from attrs import define, field

from omni_core.api import InvalidRequestError, OmniError, OmniRequest, ProcessSpec, RestartConfig, SupervisedProcess
from omni_core.runtime_api import (
    REPORT_SECONDS,
    Coordinator,
    Launch,
    Load,
    ReplicaChoice,
    ReplicatedGroup,
    RequestMachine,
    Supervisor,
    Units,
    UnitSpec,
    UnitState,
    least_busy,
)
from omni_testing.world import harm, inputs, judge
from omni_testing.world.clock import Clock, Loop
from omni_testing.world.host import patched
from omni_testing.world.pipeline import RUN, pipeline, plan
from omni_testing.world.plane import End, Plane
from omni_testing.world.pool import Pool
from omni_testing.world.process import Process
from omni_testing.world.stages import Plan, plan_of, terminals

HORIZON = 400.0
"""Seconds of simulated time in which everything has to end."""

_HOME = "world://runner"


class Broken(AssertionError):
    """An invariant does not hold; the message shows what happened in that world."""


@define(eq=False)
class Client:
    """One request and what became of it."""

    name: str
    plan: Plan
    request: OmniRequest
    pace: float
    leaves_after: float | None = None
    begun: float = math.nan
    over: float = math.nan
    results: dict[str, Any] = field(factory=dict)
    chunks: dict[str, int] = field(factory=dict)
    error: BaseException | None = None
    aborted: bool = False
    sends: int | None = None
    chunk_timeout: float | None = None
    opened: Any = None
    sending: asyncio.Task[None] | None = None
    sent_at: list[float] = field(factory=list)
    has_sent: bool = False
    was_read: bool = False

    @property
    def is_over(self) -> bool:
        return not math.isnan(self.over)


class World:
    """One run. ``World(seed).run()`` raises :class:`Broken` if an invariant does not hold.

    Attributes:
        deaths: of processes so far: ``(time, unit, stages, plan that was the cause or None, requests of its schedulers)``.
        heard: by request, the chunks of its input that the entry stage has got.
        notes: what happened, with times.
        is_unclear: of a death, somebody could not be asked: what cannot be told counts as lost.
    """

    def __init__(self, seed: int) -> None:
        self.seed = seed
        random = self.random = Random(seed)
        self.clock = Clock(random)
        self.plane = Plane(self.clock, random)
        self.pipeline = pipeline(random)
        self.inputs = Random(f"inputs {seed}")  # of its own, so that other worlds stay as they are
        self.takes_input = self.inputs.random() < 0.3
        if self.takes_input:
            self.pipeline.stages[0].stream_from.append("")
        self.mode = random.choice(
            ("calm", "calm", "deaths", "deaths", "deaths", "poison", "poison", "slow", "mixed", "mixed")
        )
        self.retries = random.choice((0, 1, 1, 2))
        self.policy = RestartConfig(random.choice((0, 1, 3, 5)), 10.0, 0.1, 1.0)
        self.max_in_flight = random.choice((3, 256))
        self.plans: dict[int, Plan] = {}
        self.pools: dict[str, Pool] = {}
        self.loads: dict[int, Load] = {}
        self.clients: list[Client] = []
        self.processes: list[Process] = []
        self.heard: dict[str, int] = {}
        self.deaths: list[tuple[float, str, set[str], int | None, set[str]]] = []
        self.notes: list[tuple[float, str]] = []
        self.errors: list[str] = []
        self.failure: Broken | None = None
        self.harm_until = 0.0
        self.is_unclear = False
        self.is_finished = False
        self._pids = 1
        self._ids = 0
        self.failing_starts = 0
        self.parent = Loop(self.clock, SimpleNamespace(pid=1, world=self, address=_HOME), self.uncaught)
        self.units: Units
        self.coordinator: Coordinator

    def run(self) -> World:
        """Let everything happen, and check it."""
        random = self.random
        self.is_small = random.random() < 0.5
        with patched(self, small=self.is_small):
            try:
                self.parent.call_soon(self._begin)
                while self.failure is None and not self.is_finished and self.clock.now < HORIZON and self.clock.step():
                    pass
                if self.failure is not None:
                    raise self.failure
                self.expect(self.is_finished, f"still not over after {self.clock.now:.0f} s: {self._unfinished()}")
            finally:
                for loop in (self.parent, *(process.loop for process in self.processes)):
                    loop.discard()
        return self

    def _begin(self) -> None:
        self._driver = self.parent.create_task(self._drive())

    def _unfinished(self) -> str:
        waiting = [client.name for client in self.clients if not client.is_over]
        states = {name: unit.life.state.value for name, unit in self.units.items()}
        return f"requests {waiting}, units {states}"

    async def _drive(self) -> None:
        loop, random = self.parent, self.random
        units = self.pipeline.units(slots=random.choice((1, 2, 100)))
        self._connect(units)
        for spec in units:
            unit = self.units[spec.name] = Supervisor(spec, self.policy, self.units, self)
            unit.launch()
        await asyncio.gather(*(unit.started for unit in self.units.values()))
        begin, seconds = loop.time(), random.choice((0.05, 0.5, 2.0))
        self._plan_clients()
        for client in self.clients:
            loop.call_at(begin + seconds * random.random(), self._start, client)
        for when, kind, name in harm.planned(self, seconds):
            self.harm_until = max(self.harm_until, begin + when)
            loop.call_at(begin + when, kind, self, name)
        await self._until(lambda: all(client.is_over for client in self.clients), 0.3)
        await self._until(lambda: loop.time() > self.harm_until + 0.1, 0.5)
        await self._until(self._is_settled, 0.5)
        if all(unit.life.serves for unit in self.units.values()):
            probe = self._client(plan(Random(self.seed), self.pipeline, len(self.plans)), is_probe=True)
            self._start(probe)
            await self._until(lambda: probe.is_over, 0.2)
            self.expect(probe.error is None, f"after all harm is over, a good request fails: {probe.error!r}")
        await asyncio.sleep(3.5)
        judge.nothing_is_held(self)
        self.is_finished = True

    async def _until(self, condition: Callable[[], bool], pause: float) -> None:
        while not condition():
            await asyncio.sleep(pause)

    def _is_settled(self) -> bool:
        """Return whether every unit serves, or never will again, and none computes for a request that is over."""
        states = [unit.life.state for unit in self.units.values()]
        for_good = self.policy.limit == 0
        computing = [each for each in self.processes if each.is_alive and each.worker and each.held()]
        return not computing and all(
            state is UnitState.READY or (state is UnitState.FAILED and for_good) for state in states
        )

    def _connect(self, units: list[UnitSpec]) -> None:
        """Make the runner's part: its plane, its coordinator, as ``launch/runner.py`` does."""
        self.units = Units(lambda *_: None, self._address, lambda message: self.broken(f"unexpected {message}"))
        choice = ReplicaChoice(self._replicated(), self.units.available_replicas)
        entry = {unit.replica: unit.endpoint for unit in units if self.pipeline.stages[0] in unit.stages}
        first = self.pipeline.stages[0].name
        machine = partial(
            RequestMachine,
            terminal_stages=self.pipeline.terminals,
            terminal_stages_fn=terminals if self.pipeline.has_routes else None,
            place=choice.place,
            max_in_flight=self.max_in_flight,
            retries=self.retries,
            new_id=self._new_id,
        )
        self.units.connect(
            RUN,
            _HOME,
            End(self.plane, self.parent, _HOME),
            lambda: Coordinator(
                entry_stage=first,
                machine=machine,
                submit_to_stage=lambda message, request: self.units.control.send(
                    entry[request.placement.get(first, 0)], message, (message.request_id, first)
                ),
                broadcast=self.units.broadcast,
                left=choice.left,
                on_busy=self.units.heartbeat.begin,
                input_streams=["data"] if self.takes_input else [],
            ),
        )
        self.coordinator = self.units.coordinator

    def _replicated(self) -> list[ReplicatedGroup]:
        groups = []
        for number, (stages, count) in enumerate(zip(self.pipeline.groups, self.pipeline.replicas, strict=True)):
            if count > 1 or self.random.random() < 0.3:
                balance = self.random.choice((None, self._balance, self._balance))
                groups.append(ReplicatedGroup(f"p{number}", [each.name for each in stages], None, balance))
        return groups

    def _balance(self, request: OmniRequest, loads: Sequence[Load]) -> int:
        self.loads.update((id(load), load) for load in loads)
        kind = plan_of(request).balance
        if kind:
            raise {"exits": SystemExit, "fails": InvalidRequestError}[kind]("no replica is good enough")
        return least_busy(request, loads)

    async def place(self, unit: UnitSpec, number: int) -> tuple[list[ProcessSpec], Launch]:
        """See :class:`omni_core.processes.supervisor.Places`."""
        if self.random.random() < 0.3:
            await asyncio.sleep(0.02 * self.random.random())
        return unit.processes, self._launch

    def waits_for(self, unit: UnitSpec) -> str:
        return ""

    def _launch(self, spec: ProcessSpec, on_exit: Callable[[SupervisedProcess], None]) -> SupervisedProcess:
        if self.failing_starts:
            self.failing_starts -= 1
            raise OSError("no process can be started")
        judge.launch(self, spec)
        process = Process(self, spec, on_exit)
        self.processes.append(process)
        self.note(f"{spec.name} is launched, pid {process.pid}")
        return process

    def start_seconds(self) -> float:
        """Return how long a process takes to build its stages."""
        is_slow = self.mode in ("deaths", "mixed") and self.parent.time() > 1 and self.random.random() < 0.05
        return 6.0 if is_slow else 0.05 * self.random.random()

    def addresses(self) -> dict[str, str]:
        """Return the addresses that are known now."""
        known = {each.spec.endpoint: each.address for each in self.processes if each.running}
        return {**known, RUN: _HOME}

    def _address(self, endpoint: str, seen_from: str | None) -> str:
        return self.addresses().get(endpoint, "")

    def new_pid(self) -> int:
        self._pids += 1
        return self._pids

    def _new_id(self) -> str:
        self._ids += 1
        return f"r{self._ids}"

    def _plan_clients(self) -> None:
        random = self.random
        harms = {
            "calm": ("", "", "", "", "", "fails"),
            "deaths": ("", "", "", "fails"),
            "poison": ("", "", "", "kills"),
            "slow": ("", "", "hangs"),
            "mixed": ("", "", "", "", "kills", "fails"),
        }[self.mode]
        poisons = 0
        for _ in range(random.choice((1, 2, 4, 7))):
            kind = random.choice(harms)
            poisons += kind == "kills"
            if kind == "kills" and poisons > 2:
                kind = ""
            sends = self.inputs.choice((None, 0, 1, 3, 20)) if self.takes_input else None
            long = random.random() < 0.04
            made = plan(random, self.pipeline, len(self.plans), kind, long, sends)
            for _ in range(random.choice((1, 1, 1, 4)) if kind == "kills" else 1):
                self._client(made, sends)

    def _client(self, made: Plan, sends: int | None = None, is_probe: bool = False) -> Client:
        random = self.random
        self.plans[made.number] = made
        timeout: float | None = None
        leaves_after = None
        if not is_probe:
            if random.random() < 0.1:
                made.balance = random.choice(("exits", "fails", "fails"))
            if made.hangs or random.random() < 0.2:
                timeout = random.choice((0.01, 0.3, 2.0))
            if random.random() < 0.02:
                timeout = random.choice((10**400, math.nan, math.inf, -1.0))
            if random.random() < 0.15:
                leaves_after = random.choice((0.0, 0.01, 0.3))
        request = OmniRequest(
            f"in{made.number}", metadata={"plan": made.number}, stream=random.random() < 0.5, timeout=timeout
        )
        client = Client(f"c{len(self.clients)}", made, request, random.choice((0.0, 0.0, 0.05)), leaves_after)
        client.sends = sends
        if sends is not None:
            client.chunk_timeout = self.inputs.choice((None, None, None, 0.01, 0.3))
        self.clients.append(client)
        return client

    def _start(self, client: Client) -> None:
        client.begun = self.parent.time()
        self._note(client, f"begins (plan {client.plan.number})")
        task = self.parent.create_task(self._ask(client))
        client.results["task"] = task
        if client.leaves_after is not None:
            self.parent.call_later(client.leaves_after, self._leave, client, task)

    def _leave(self, client: Client, task: asyncio.Task[None]) -> None:
        if client.is_over:
            return
        client.aborted = True
        self._note(client, "is aborted")
        if self.random.random() < 0.5:
            self.coordinator.abort(client.name)
        else:
            task.cancel()

    async def _ask(self, client: Client) -> None:
        try:
            if client.sends is not None:
                await inputs.converse(self, client, client.sends)
            elif client.request.stream:
                async for event in self.coordinator.stream(client.request, client.name):
                    judge.event(self, client, event)
                    if client.pace:
                        await asyncio.sleep(client.pace)
            else:
                client.results = dict(await self.coordinator.submit(client.request, client.name))
        except (OmniError, asyncio.CancelledError) as error:
            client.error = error
        except (GeneratorExit, Broken):
            raise
        except BaseException as error:
            self.broken(f"{client.name} hears of {error!r}")
        client.results.pop("task", None)
        client.over = self.parent.time()
        self._note(client, f"is over: {client.error!r}" if client.error else "has its results")
        judge.end(self, client)

    def died(self, process: Process, poison: int | None) -> None:
        """Take in the death of a process."""
        stages = {each.name for each in process.spec.stages}
        if self.deaths and self.clock.now < self.deaths[-1][0] + REPORT_SECONDS + 0.1:
            self.is_unclear = True
        self.deaths.append((self.clock.now, process.spec.name, stages, poison, process.held()))

    def uncaught(self, context: dict[str, Any]) -> None:
        """Take in an error that nobody has caught."""
        error = context.get("exception")
        if isinstance(error, Broken):
            return
        self.broken(f"{context['message']}: {error!r}", error)

    def expect(self, holds: bool, what: str) -> None:
        """Check an invariant."""
        if not holds:
            self.broken(what)

    def broken(self, what: str, cause: Any = None) -> None:
        """Say that an invariant does not hold."""
        if self.failure is None:  # kept: what is checked may catch it
            self.failure = Broken(f"{what}\n{self}")
            self.failure.__cause__ = cause
        raise self.failure

    def note(self, what: str) -> None:
        self.notes.append((self.clock.now, what))

    def _note(self, client: Client, what: str) -> None:
        self.note(f"{client.name} {what}")

    def __str__(self) -> str:
        lines = [f"  {when:9.4f}  {what}" for when, what in self.notes[-60:]]
        head = f"seed {self.seed}: {self.pipeline}; {self.mode}, retries {self.retries}, {self.policy}"
        return "\n".join([head, *lines, f"  again: python -m omni_testing.world {self.seed}"])
