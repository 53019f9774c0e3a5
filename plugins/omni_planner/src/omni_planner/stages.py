"""Stages in simulated time. Each takes messages and makes turns by the rule of its scheduler; what a turn costs is in the profile.

The decisions are the runtime's own: an engine's turns are planned by :class:`omni_engine.batching.Batcher`, and the chunks of a vocoder by
:class:`omni_torch.vocoder.VocoderScheduler`. Only the networks are missing, and the time that they take.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from attrs import define, field

from omni_core.model_runner import ARRequest, SamplingParams
from omni_core.model_runner.types import KVLayout
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_engine.batching import Batcher
from omni_engine.kv_cache import KVCache
from omni_engine.pace import Pace
from omni_planner.profile import CLIENT, Costing, Seconds, StageProfile
from omni_planner.requests import Flight
from omni_torch.budgets import MAX_BATCH_TOKENS, MAX_RUNNING
from omni_torch.deadlines import TEXT_SECONDS, policy_of
from omni_torch.vocoder import VocoderScheduler

PAYLOAD, CHUNK, DONE = "new_request", "stream_chunk", "stream_done"

Output = tuple[Flight, str, list[str], int]
"""A request, what is sent of it (:data:`PAYLOAD`, :data:`CHUNK`, :data:`DONE`), to whom, and the frames of sound in it."""

Step = tuple[Seconds, list[Output]]
"""Seconds of a processor and then of the device, and what is sent at their end."""

Settings = dict[str, Any]


@define
class Message:
    """A message in a stage's inbox."""

    flight: Flight
    what: str
    source: str


class SimulatedStage(ABC):
    """One replica of a stage.

    Attributes:
        inbox: what has come and was not taken yet. now: returns the time, in seconds. woken: 1 if its thread has waited before this
            turn, else 0.
        wait: after a turn without steps, the seconds until the next one, if no message comes before; ``None``: none.
    """

    now: Callable[[], float] = staticmethod(lambda: 0.0)
    wait: float | None = None
    woken = 0

    def __init__(self, name: str, profile: StageProfile, costing: Costing) -> None:
        self.name = name
        self.inbox: deque[Message] = deque()
        self._profile, self._costing = profile, costing

    @abstractmethod
    def turn(self) -> list[Step]:
        """Take messages and return the steps of a turn; none if there is nothing to do before another message comes."""

    @abstractmethod
    def drop(self, flight: Flight) -> None:
        """Forget a request that was withdrawn; what it has in the inbox is removed already."""

    def _seconds(self, kind: str = "", **counts: float) -> Seconds:
        return self._costing(kind, counts)

    def _result(self, flight: Flight) -> list[Output]:
        """Return the outputs at a request's end: the ends of its streams, and its result."""
        visit = flight.sample[self.name]
        streams = [target for target in visit.chunks if target != CLIENT]
        return [(flight, DONE, streams, 0)] * bool(streams) + [(flight, PAYLOAD, list(visit.targets), 0)]


def streamed(total: int, outputs: int, made: int) -> int:
    """Return how many of ``total`` chunks go out with output number ``made`` (from 1) of ``outputs``: spread evenly."""
    return total * made // outputs - total * (made - 1) // outputs if outputs else 0


@define
class _Watch:
    """A scheduler's clock within a turn. Processors are shared, so steps take longer than they compute: by as much as
    lately.

    Attributes:
        spent: processor seconds of the turn's steps so far.
    """

    spent: float = 0.0
    _began: float = 0.0
    _stretch: float = 1.0

    @property
    def elapsed(self) -> float:
        """The seconds since the turn began."""
        return self.spent * self._stretch

    def turn(self, now: float) -> None:
        """Begin a turn. One with steps is followed by another one at their end."""
        if self.spent:
            self._stretch += 0.2 * ((now - self._began) / self.spent - self._stretch)
        self._began, self.spent = now, 0.0

    def spend(self, seconds: float) -> None:
        """Add a step."""
        self.spent += seconds


class FunctionStage(SimulatedStage):
    """One request at a time."""

    def drop(self, flight: Flight) -> None:
        pass

    def turn(self) -> list[Step]:
        while self.inbox:
            message = self.inbox.popleft()
            if message.what == PAYLOAD:
                positions = message.flight.sample[self.name].prompt
                kind = message.flight.arrival.kind
                cost = self._seconds(kind, turns=1, requests=1, positions=positions, woken=self.woken)
                return [(cost, self._result(message.flight))]
        return []


@define
class _Inputs:
    """The messages that have come for a request of a stage that is fed by streams."""

    messages: int = 0
    chunks: int = 0
    has_payload: bool = False
    done: set[str] = field(factory=set)

    def take(self, message: Message) -> None:
        self.messages += 1
        self.chunks += message.what == CHUNK
        self.has_payload |= message.what == PAYLOAD
        if message.what == DONE:
            self.done.add(message.source)

    def complete(self, flight: Flight, stage: str) -> bool:
        """Return whether the payload and the end of every stream have come."""
        sources = flight.sample[stage].sources
        streams = {name for name in sources if name != CLIENT and flight.sample[name].chunks.get(stage)}
        return self.has_payload and streams <= self.done


class StreamStage(SimulatedStage):
    """Takes all that has come at once; hands on chunks as they come."""

    def __init__(self, name: str, profile: StageProfile, costing: Costing) -> None:
        super().__init__(name, profile, costing)
        self._inputs: dict[str, _Inputs] = {}

    def drop(self, flight: Flight) -> None:
        self._inputs.pop(flight.name, None)

    def turn(self) -> list[Step]:
        taken, self.inbox = self.inbox, deque()
        if not taken:
            return []
        outputs: list[Output] = []
        for message in taken:
            flight, inputs = message.flight, self._inputs.setdefault(message.flight.name, _Inputs())
            inputs.take(message)
            visit = flight.sample[self.name]
            if message.what == CHUNK:
                coming = sum(flight.sample[name].chunks.get(self.name, 0) for name in visit.sources if name != CLIENT)
                for target, total in visit.chunks.items():
                    outputs += [(flight, CHUNK, [target], 0)] * streamed(total, coming, inputs.chunks)
            if inputs.complete(flight, self.name):
                del self._inputs[flight.name]
                outputs += self._result(flight)
        kind = taken[0].flight.arrival.kind
        return [(self._seconds(kind, turns=1, taken=len(taken), woken=self.woken), outputs)]


@define(eq=False)
class _Running:
    """An engine's request."""

    flight: Flight
    inputs: _Inputs = field(factory=_Inputs)
    request: ARRequest | None = None


class EngineStage(SimulatedStage):
    """An autoregressive stage: takes all that has come, then computes a step that the engine's batcher plans.

    Args:
        settings: the stage's ``factory_args``; those that the engine has are used.
        output_seconds: the same of its model runner.
    """

    def __init__(
        self,
        name: str,
        profile: StageProfile,
        costing: Costing,
        settings: Settings,
        output_seconds: float | None = None,
    ) -> None:
        super().__init__(name, profile, costing)
        policy = policy_of(settings.get("policy"))
        self._pace = None if policy is None else Pace(policy, output_seconds or TEXT_SECONDS)
        self._watch = _Watch()
        self._kind = ""
        layout = KVLayout(0, 1, 1, torch.float32)
        block = int(settings.get("block_size", 16))
        cache = KVCache(layout, int(settings.get("kv_blocks") or 100_000), block, torch.device("cpu"))
        self.batcher = Batcher(
            cache,
            int(settings.get("max_running") or MAX_RUNNING),
            int(settings.get("max_batch_tokens") or MAX_BATCH_TOKENS),
            int(settings.get("chunk_size") or 512),
            share_prefixes=False,  # a sample's prompt is what was computed of it
            patience=int(settings.get("patience") or 64),
            pace=self._pace,
        )
        self._running: dict[str, _Running] = {}
        self._ended: set[str] = set()

    def turn(self) -> list[Step]:
        taken, now = len(self.inbox), self.now()
        if taken:
            self._kind = self.inbox[0].flight.arrival.kind
        self._watch.turn(now)
        while self.inbox:
            self._take(self.inbox.popleft())
        plan = self.batcher.plan(self._can_step, now)
        if not plan.work:
            return [(self._seconds(self._kind, taken=taken, woken=self.woken), [])] if taken else []
        kind = plan.work[0][0].state.flight.arrival.kind
        decodes = total = context = 0
        pairs = 0.0
        for request, count in plan.work:
            computed = request.computed
            decodes += count == 1 and bool(request.output_ids)
            total += count
            context += computed
            pairs += count * (computed + count / 2)
        prompts = len(plan.work) - decodes
        cost = self._seconds(
            kind,
            turns=bool(decodes) + bool(prompts),
            decodes=decodes,
            prompts=prompts,
            positions=total - decodes,
            taken=taken,
            woken=self.woken,
            context=context,
            pairs=pairs,
        )
        self.batcher.computed(plan)
        self._watch.spend(sum(cost))
        if self._pace is not None:
            self._pace.computed(decodes, total - decodes, self._watch.elapsed)
        return [(cost, [each for request, _ in plan.work for each in self._sampled(request)])]

    def drop(self, flight: Flight) -> None:
        running = self._running.pop(flight.name, None)
        if running is not None and running.request is not None:
            self.batcher.remove(running.request)
            if self._pace is not None:
                self._pace.policy.end(flight.name)

    def _take(self, message: Message) -> None:
        flight = message.flight
        if flight.name in self._ended:
            return  # its stream goes on
        running = self._running.setdefault(flight.name, _Running(flight))
        running.inputs.take(message)
        if running.request is None and running.inputs.messages >= self._profile.admit_after:
            visit = flight.sample[self.name]
            sampling = SamplingParams(max_new_tokens=max(1, visit.outputs))
            running.request = ARRequest(flight.name, OmniRequest(), [0] * max(1, visit.prompt), sampling, state=running)
            if self._pace is not None:
                self._pace.policy.begin(flight.name, running.request.request, self.now())
            self.batcher.add(running.request, self.now())

    def _can_step(self, request: ARRequest) -> bool:
        running: _Running = request.state
        before = self._profile.admit_after
        if before == 1 or not request.output_ids or running.inputs.done:
            return True
        return len(request.output_ids) < running.inputs.chunks - before + 1

    def _sampled(self, request: ARRequest) -> list[Output]:
        """Return the outputs of a request after a step that computed for it: of a token, if it was not a part of its prompt."""
        if request.computed < request.length:
            return []
        running: _Running = request.state
        flight = running.flight
        visit = flight.sample[self.name]
        request.output_ids.append(0)
        if self._pace is not None:
            self._pace.emitted(flight.name, self.now() + self._watch.elapsed)
        made = len(request.output_ids)
        outputs: list[Output] = []
        for target, total in visit.chunks.items():
            chunks = streamed(total, visit.outputs, made)
            if chunks:
                outputs += [(flight, CHUNK, [target], 0)] * chunks
        if made >= visit.outputs:
            self.batcher.remove(request)
            if self._pace is not None:
                self._pace.policy.end(flight.name)
            del self._running[flight.name]
            self._ended.add(flight.name)
            outputs += self._result(flight)
        return outputs


class _Silence:
    """A vocoder without a network: a frame is two samples, in all 80 ms. It notes its passes."""

    device, sample_rate, codebooks, codebook_size = torch.device("cpu"), 25, 1, 1

    def __init__(self, passed: Callable[[int, int], None]) -> None:
        self._passed = passed

    def begin(self) -> None:
        """Keep nothing of a stream."""

    def decode(self, work: list[tuple[None, torch.Tensor]]) -> list[torch.Tensor]:
        self._passed(len(work), sum(len(frames) for _, frames in work))
        return [_wave(2 * len(frames)) for _, frames in work]


@cache
def _wave(samples: int) -> torch.Tensor:
    """Return silence, which nobody writes to."""
    return torch.zeros(samples)


_FRAME = torch.zeros(1, dtype=torch.int64)


class _Collecting(VocoderScheduler[None]):
    """The scheduler, without the test of each frame's codes, of which there are none."""

    def on_chunk(self, state: Any, chunk: torch.Tensor, metadata: dict[str, Any] | None) -> None:
        state.waiting.append(chunk)


class VocoderStage(SimulatedStage):
    """The runtime's vocoder scheduler, whose network takes no time here; every pass is a step.

    Args:
        settings: ``initial_chunk``, ``chunk`` and ``max_running``, as its factory gets them.
    """

    def __init__(self, name: str, profile: StageProfile, costing: Costing, settings: Settings) -> None:
        super().__init__(name, profile, costing)
        self._scheduler = _Collecting(
            _Silence(self._passed),
            initial_chunk=int(settings["initial_chunk"]),
            chunk=int(settings["chunk"]),
            max_running=settings.get("max_running"),
            policy=settings.get("policy"),
        )
        self._scheduler.outbox.tap = self._put
        self._scheduler.clock = lambda: self.now() + self._watch.elapsed
        self._flights: dict[str, Flight] = {}
        self._steps: list[Step] = []
        self._kind = ""
        self._watch = _Watch()

    def turn(self) -> list[Step]:
        taken = bool(self.inbox)
        self._watch.turn(self.now())
        if not taken and not self._scheduler.unfinished:
            self.wait = None
            return []
        self._scheduler.wait = 0.0
        if taken:
            self._kind = self.inbox[0].flight.arrival.kind
        self._steps = [(self._seconds(self._kind, taken=len(self.inbox), woken=self.woken), [])]
        while self.inbox:
            message = self.inbox.popleft()
            name = message.flight.name
            self._flights[name] = message.flight
            data: Any = _FRAME if message.what == CHUNK else None
            if message.what == PAYLOAD:
                data = StagePayload(name, OmniRequest(), None)
            self._scheduler.inbox.put(IncomingMessage(name, message.what, data, message.source))  # type: ignore[arg-type]
        self._scheduler.turn()
        self._scheduler.outbox.drain()
        self.wait = self._scheduler.wait
        return self._steps if taken or len(self._steps) > 1 else []

    def drop(self, flight: Flight) -> None:
        if self._flights.pop(flight.name, None) is not None:
            self._scheduler.abort(flight.name)

    def _passed(self, streams: int, frames: int) -> None:
        self._steps.append((self._seconds(self._kind, turns=1, streams=streams, frames=frames), []))
        self._watch.spend(sum(self._steps[-1][0]))

    def _put(self, action: str, messages: list[OutgoingMessage]) -> None:
        if action != "put":
            return
        for message in messages:
            if message.type == "error":
                raise message.data
            flight = self._flights[message.request_id]
            if message.type == "stream":
                self._steps[-1][1].append((flight, CHUNK, [CLIENT], len(message.data.samples) // 2))
            else:
                del self._flights[message.request_id]
                self._steps[-1][1].extend(self._result(flight))
