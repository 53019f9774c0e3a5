"""Which requests compute how many positions in the next step: decode first, then prompts in chunks, oldest first."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from attrs import define, field

from omni_core.model_runner.types import ARRequest
from omni_engine.kv_cache import KVCache


@define
class Plan:
    """One step: ``(request, positions)`` in packing order."""

    work: list[tuple[ARRequest, int]] = field(factory=list)


@define
class Batcher:
    """The waiting line, the running set, and the policy between them.

    Decode steps come first: they are short and somebody reads their output. What is left of ``max_batch_tokens`` goes to
    prompts, at most ``chunk_size`` positions each. When the cache is full, the newest running request gives way: its
    blocks are freed and it is computed again later, from the front of the line.
    """

    cache: KVCache
    max_running: int
    max_batch_tokens: int
    chunk_size: int
    waiting: deque[ARRequest] = field(factory=deque)
    running: list[ARRequest] = field(factory=list)
    preemptions: int = 0

    def plan(self, can_step: Callable[[ARRequest], bool]) -> Plan:
        """The next step's work; empty when nothing can be computed now."""
        plan = Plan()
        budget = self.max_batch_tokens
        preemptions = self.preemptions
        for request in list(self.running):
            if (
                budget
                and request in self.running
                and _is_decode(request)
                and can_step(request)
                and self._make_room(request)
            ):
                plan.work.append((request, 1))
                budget -= 1
        for request in [each for each in self.running if not _is_decode(each)]:
            count = self._chunk(request, budget, can_step)
            if count:
                plan.work.append((request, count))
                budget -= count
        # What gave way in this step made its room for others; admitting it at once would only take that room back.
        for request in list(self.waiting) if self.preemptions == preemptions else []:
            if budget <= 0 or len(self.running) >= self.max_running:
                break
            count = self._chunk(request, budget, can_step)
            if not count:
                continue  # it waits for its stream: those behind it need not
            # All that is known of it fits before it starts, so that prompts never push each other out half computed.
            if not self.cache.reserve(request.request_id, request.length):
                break
            self.waiting.remove(request)
            self.running.append(request)
            plan.work.append((request, count))
            budget -= count
        return plan

    def _chunk(self, request: ARRequest, budget: int, can_step: Callable[[ARRequest], bool]) -> int:
        """How many positions of a prompt to compute now: none for a recomputed request whose next input is not there."""
        remaining = request.length - request.computed
        count = min(remaining, self.chunk_size, budget)
        needs_feedback = request.output_ids and count == remaining
        return 0 if count <= 0 or (needs_feedback and not can_step(request)) else count

    def _make_room(self, request: ARRequest) -> bool:
        """Room for one more position, taken from the newest requests if need be. ``False`` if it had to give way itself."""
        while not self.cache.reserve(request.request_id, request.length):
            newest = self.running[-1]
            self.preempt(newest)
            if newest is request:
                return False
        return True

    def preempt(self, request: ARRequest) -> None:
        self.running.remove(request)
        self.cache.release(request.request_id)
        request.computed = 0
        self.waiting.appendleft(request)
        self.preemptions += 1

    def remove(self, request: ARRequest) -> None:
        """Forget a request that finished, failed or was aborted. Idempotent."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self.cache.release(request.request_id)


def _is_decode(request: ARRequest) -> bool:
    """Whether only the newest generated token is left to compute."""
    return bool(request.output_ids) and request.length - request.computed == 1
