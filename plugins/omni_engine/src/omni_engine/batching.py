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
            if request in self.running:
                budget -= self._add_chunk(plan, request, budget, can_step)
        while self.waiting and len(self.running) < self.max_running and budget > 0:
            request = self.waiting[0]
            taken = self._add_chunk(plan, request, budget, can_step)
            if not taken:
                break
            budget -= taken
            self.running.append(self.waiting.popleft())
        plan.work = [(request, count) for request, count in plan.work if request in self.running]
        return plan

    def _add_chunk(self, plan: Plan, request: ARRequest, budget: int, can_step: Callable[[ARRequest], bool]) -> int:
        """Give a prompt as many positions as it may have; how many that was."""
        remaining = request.length - request.computed
        count = min(remaining, self.chunk_size, budget)
        needs_feedback = request.output_ids and count == remaining
        if count <= 0 or (needs_feedback and not can_step(request)):
            return 0
        if not self._reserve_for_prompt(request, request.computed + count):
            return 0
        plan.work.append((request, count))
        return count

    def _reserve_for_prompt(self, request: ARRequest, positions: int) -> bool:
        """Room for a prompt's chunk. One that is already running takes it from newer requests; a waiting one does not."""
        while not self.cache.reserve(request.request_id, positions):
            if request not in self.running or self.running[-1] is request:
                return False
            self.preempt(self.running[-1])
        return True

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
