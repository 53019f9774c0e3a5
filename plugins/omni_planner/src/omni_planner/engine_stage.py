"""An engine in simulated time: continuous batching in the order of arrival, with chunked prompts and the blocks of its KV cache."""

from __future__ import annotations

from collections import deque

from attrs import define, field

from omni_core.api import ConfigError
from omni_planner.estimate import NOTHING, Costing, Visit
from omni_planner.load import Flight
from omni_planner.stages import CHUNK, Inputs, Message, Output, Settings, SimulatedStage, Step, streamed
from omni_torch.placement.budgets import MAX_BATCH_TOKENS, MAX_RUNNING, chunks
from omni_torch.placement.work import Counts

BLOCK = 16
"""Positions of a block of the cache, unless its stage says otherwise."""


@define(eq=False)
class _Request:
    """A request of an engine.

    Attributes:
        computed: positions in the cache.
        made: outputs.
        blocks: that it holds.
        is_running: it has its place in steps.
    """

    flight: Flight
    visit: Visit
    prompt: int
    outputs: int
    inputs: Inputs = field(factory=Inputs)
    computed: int = 0
    made: int = 0
    blocks: int = 0
    is_running: bool = False

    @property
    def length(self) -> int:
        return self.prompt + self.made

    @property
    def is_decode(self) -> bool:
        """Only its last token is left to compute."""
        return self.made > 0 and self.length - self.computed == 1


class EngineStage(SimulatedStage):
    """An autoregressive stage.

    A step computes one position of each running request whose prompt is done, and of prompts what ``max_batch_tokens`` leaves. A request
    begins when the blocks of its prompt are free; when there are none for a decode, the last that began is computed again later.

    Args:
        admit_after: messages of a request that come before it computes.
        settings: ``max_running``, ``max_batch_tokens``, ``chunk_size`` and ``block_size`` are used.
        kv_blocks: of the cache; ``None``: it is never full.
    """

    def __init__(
        self, name: str, costing: Costing, settings: Settings, admit_after: int = 1, kv_blocks: int | None = None
    ) -> None:
        super().__init__(name, costing)
        given = settings.get("chunk_size")
        self._chunk, self._chunk_alone = chunks(int(given) if given else None)
        self._most_running = int(settings.get("max_running") or MAX_RUNNING)
        self._most_positions = int(settings.get("max_batch_tokens") or MAX_BATCH_TOKENS)
        self._block = int(settings.get("block_size") or BLOCK)
        self._admit_after, self._blocks = admit_after, kv_blocks or 10**9
        self._free = self._blocks
        self._known: dict[str, _Request | None] = {}
        """By name; ``None``: it has ended, and its stream goes on."""
        self._waiting: deque[_Request] = deque()
        self._running: list[_Request] = []

    def turn(self) -> list[Step]:
        taken = len(self.inbox)
        while self.inbox:
            self._take(self.inbox.popleft())
        work = self._planned()
        if not work:
            return [(self._costing(NOTHING, 0, taken), [])] if taken else []
        decodes = sum(each.is_decode for each, _ in work)
        counts = Counts(
            decodes,
            len(work) - decodes,
            sum(count for _, count in work) - decodes,
            sum(each.computed for each, _ in work),
            sum(count * (each.computed + count / 2) for each, count in work),
        )
        outputs: list[Output] = []
        for each, count in work:
            each.computed += count
            if each.computed == each.length:
                self._emit(each, outputs)
        return [(self._costing(counts, 1, taken), outputs)]

    def _take(self, message: Message) -> None:
        flight = message[0]
        if flight.name not in self._known:
            visit = flight.sample[self.name]
            self._known[flight.name] = _Request(flight, visit, max(1, visit.prompt), max(1, visit.outputs))
        request = self._known[flight.name]
        if request is None:
            return
        request.inputs.take(message)
        if request.inputs.messages == self._admit_after:
            most = request.prompt + request.outputs - 1
            if self._blocks_of(most) > self._blocks:
                raise ConfigError(
                    f"stages[{self.name}]: a request of {most} positions does not fit into a KV cache of "
                    f"{self._blocks * self._block}; raise kv_cache_mb or kv_blocks"
                )
            self._waiting.append(request)

    def _planned(self) -> list[tuple[_Request, int]]:
        """Return the requests of the next step, and the positions that each computes."""
        budget, work = self._most_positions, list[tuple[_Request, int]]()
        for each in list(self._running):
            if not each.is_running or not self._can_step(each):
                continue  # it was preempted, or waits for its stream
            while self._blocks_of(each.length) - each.blocks > self._free:
                last = self._running[-1]
                self._preempt(last)
                if last is each:
                    break
            count = min(each.length - each.computed, self._most_of_prompt, budget)
            if each.is_running and count:
                self._hold(each)
                work.append((each, count))
                budget -= count
        while self._waiting and budget and len(self._running) < self._most_running:
            each = self._waiting[0]
            if self._blocks_of(each.length) > self._free:
                break
            self._hold(each)
            count = min(each.length, self._most_of_prompt, budget)
            self._running.append(self._waiting.popleft())
            each.is_running = True
            work.append((each, count))
            budget -= count
        return [(each, count) for each, count in work if each.is_running]

    @property
    def _most_of_prompt(self) -> int:
        is_alone = len(self._running) + len(self._waiting) == 1
        return max(self._chunk, self._chunk_alone) if is_alone else self._chunk

    def _can_step(self, each: _Request) -> bool:
        before = self._admit_after
        return before == 1 or not each.made or bool(each.inputs.done) or each.made < each.inputs.chunks - before + 1

    def _emit(self, each: _Request, outputs: list[Output]) -> None:
        """Add the outputs of a request with another token."""
        each.made += 1
        for target, total in each.visit.chunks.items():
            outputs += [(each.flight, CHUNK, [target], 0)] * streamed(total, each.outputs, each.made)
        if each.made == each.outputs:
            self._running.remove(each)
            self._release(each)
            self._known[each.flight.name] = None
            outputs += self._result(each.flight)

    def _blocks_of(self, positions: int) -> int:
        return -(-positions // self._block)

    def _hold(self, each: _Request) -> None:
        more = self._blocks_of(each.length) - each.blocks
        each.blocks, self._free = each.blocks + more, self._free - more

    def _release(self, each: _Request) -> None:
        self._free, each.blocks = self._free + each.blocks, 0

    def _preempt(self, each: _Request) -> None:
        self._running.remove(each)
        self._release(each)
        each.computed, each.is_running = 0, False
        self._waiting.appendleft(each)
