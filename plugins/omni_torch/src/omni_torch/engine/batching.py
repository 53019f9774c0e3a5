"""Continuous batching: plans which requests compute how many positions in the next step, which wait and which are preempted.

A state machine without IO: requests come by :meth:`Batcher.add` and go by :meth:`Batcher.remove`; a step is :meth:`Batcher.plan`,
then :meth:`Batcher.computed`. Time is the number of steps; only a policy of deadlines looks at a clock, which the caller reads.
"""

from __future__ import annotations

from bisect import insort
from collections.abc import Callable

import torch
from attrs import define, field

from omni_core.api import ARRequest
from omni_torch.engine.kv_cache import KVCache
from omni_torch.engine.pace import Pace
from omni_torch.engine.positions import BlockKeys

CanStep = Callable[[ARRequest], bool]


@define
class Plan:
    """One step.

    Attributes:
        work: ``(request, positions)`` in packing order.
        reused: the requests of ``work`` that were admitted with cached positions.
    """

    work: list[tuple[ARRequest, int]] = field(factory=list)
    reused: list[ARRequest] = field(factory=list)


@define
class QueueEntry:
    """Bookkeeping of one request.

    Attributes:
        arrival: sequence number of its arrival; a preempted request keeps it.
        served: when it last computed something, or arrived: the number of the step; with a pace, seconds.
        keys: the content keys of its blocks.
        rank: the urgency that it was admitted with; only requests of higher priority preempt it.
        turn: sequence number of the last time it was served, over all requests.
        given: the first positions, whose keys and values another stage has computed; ids do not determine them, so they have no keys.
    """

    arrival: int
    served: float
    keys: BlockKeys
    rank: int = 0
    turn: int = 0
    given: int = 0


@define
class Batcher:
    """Holds the waiting queue and the running set, and decides between them.

    Decode steps are planned first, because they are short and a client reads their output. The rest of
    ``max_batch_tokens`` goes to prompts, at most ``chunk_size`` positions each, or ``chunk_alone`` if that is
    more and there is no other request. A cached prefix is not computed again.

    A request of higher priority goes first, then an older one. For every ``patience`` steps without service a request's
    urgency grows by one, so that none starves. When the cache is full, the lowest and newest running request is
    preempted: its blocks are released and it is computed again later. A waiting request of higher priority preempts
    running ones too, but never one that has work in the step being planned. The running set is kept in that order, the lowest last.

    With a ``pace``, requests of one priority go in the order of their deadlines instead, prompts take only the time that decodes
    can spare, and its policy sees to it that none starves.
    """

    cache: KVCache
    max_running: int
    max_batch_tokens: int
    chunk_size: int
    share_prefixes: bool = True
    patience: int = 64
    pace: Pace | None = None
    chunk_alone: int = 0
    waiting: list[ARRequest] = field(factory=list)
    running: list[ARRequest] = field(factory=list)
    preemptions: int = 0
    prompt_positions: int = 0
    reused_positions: int = 0
    _step: int = 0
    _now: float = 0.0
    _turns: int = 0
    _arrivals: int = 0
    _entries: dict[str, QueueEntry] = field(factory=dict)

    def plan(self, can_step: CanStep, now: float = 0.0) -> Plan:
        """Plan the next step; the plan is empty when nothing can be computed now.

        Args:
            can_step: returns False while a request waits for input of its own (a stream). It may call :meth:`remove` of that request, and
                returns False then.
            now: the time on the clock of ``pace``, in seconds.
        """
        plan, self._now = Plan(), now
        preemptions = self.preemptions
        ready, are_decodes = self._with_room(can_step)
        if are_decodes and self.pace is None and not self.waiting and len(ready) <= self.max_batch_tokens:
            plan.work = [(request, 1) for request in ready]  # in whatever order
            self._count(plan)
            return plan
        if len(ready) > 1:
            ready.sort(key=self._turn)
        if self.pace is not None:
            decodes = self.pace.limit([each for each in ready if _is_decode(each)], now)
            ready = decodes + [each for each in ready if not _is_decode(each)]
        ahead, behind = ready, list[ARRequest]()
        if self.waiting:
            foremost = max(map(self._urgency, self.waiting))
            ahead = []
            for each in ready:
                (behind if self._urgency(each) < foremost else ahead).append(each)
        budget = self._serve(plan, ahead, self.max_batch_tokens, can_step)
        # A request preempted above freed blocks for others; admitting it at once would take them back.
        if self.waiting and self.preemptions == preemptions:
            budget = self._admit(plan, budget, can_step)
        if behind:
            self._serve(plan, [r for r in behind if r in self.running], budget, can_step)
        self._count(plan)
        return plan

    def _count(self, plan: Plan) -> None:
        """Note that the requests of a plan are served."""
        self._step += bool(plan.work)
        time, entries = self._step if self.pace is None else self._now, self._entries
        for turn, (request, _) in enumerate(plan.work, self._turns + 1):
            entry = entries[request.request_id]
            entry.served, entry.turn = time, turn
        self._turns += len(plan.work)

    def _serve(self, plan: Plan, requests: list[ARRequest], budget: int, can_step: CanStep) -> int:
        """Plan running requests in order within a budget of positions, and return the rest of the budget."""
        for request in requests:
            if _is_decode(request):  # that it can step is known
                count = 1 if budget > 0 else 0
            else:
                count = self._chunk(request, request.computed, budget, can_step)
                if self.pace is not None and count:
                    count = self.pace.spare(request.request_id, count, self._now, begins=False)
            if count:
                plan.work.append((request, count))
                budget -= count
        return budget

    def computed(self, plan: Plan) -> None:
        """Record that a plan was carried out: its positions are in the cache, and its full blocks can be shared."""
        for request, count in plan.work:
            request.computed += count
            if self.share_prefixes and request.computed // self.cache.block_size > self.cache.named(request.request_id):
                keys = self._entries[request.request_id].keys.first(request.computed)
                self.cache.name(request.request_id, keys)

    def _with_room(self, can_step: CanStep) -> tuple[list[ARRequest], bool]:
        """Return the running requests that can compute something now, and whether all of them are at a decode step. The highest ranks are
        given blocks first.
        """
        ready: list[ARRequest] = []
        count, are_decodes = len(self.running), True
        reserve, block_size = self.cache.reserve, self.cache.block_size
        for request in list(self.running):
            if len(self.running) < count and request not in self.running:
                continue  # it was preempted for a higher one, or failed
            ids, computed = request.output_ids, request.computed  # _is_decode, with the length at hand
            length = len(request.prompt_ids) + len(ids)
            if ids and length - computed == 1:
                if not can_step(request):
                    continue
                if computed % block_size:  # the position before is in the same block
                    ready.append(request)
                    continue
            else:
                are_decodes = False
            # The blocks of a prompt are allocated at its admission, but not those of one that was extended since.
            if reserve(request.request_id, length) or self._make_room(request):
                ready.append(request)
        if len(self.running) < count:
            ready = [request for request in ready if request in self.running]
        return ready, are_decodes

    def _make_room(self, request: ARRequest) -> bool:
        """Allocate what a request needs, preempting the lowest ones if necessary; ``False`` if it was preempted itself."""
        while not self.cache.reserve(request.request_id, request.length):
            worst = self.running[-1]
            self.preempt(worst)
            if worst is request:
                return False
        return True

    def _chunk(self, request: ARRequest, computed: int, budget: int, can_step: CanStep) -> int:
        """Return how many positions to compute now: 0 for a recomputed request whose next input has not come."""
        count = remaining = request.length - computed
        if count > 1 or budget < 1:
            alone = len(self.running) + len(self.waiting) == 1
            count = min(remaining, max(self.chunk_size, self.chunk_alone if alone else 0), budget)
            if request.prompt_blocks is not None and count > 0:
                count = _uncut(request.prompt_blocks, computed, count)
        needs_feedback = request.output_ids and count == remaining
        return 0 if count <= 0 or (needs_feedback and not can_step(request)) else count

    def _admit(self, plan: Plan, budget: int, can_step: CanStep) -> int:
        """Start waiting requests, the most urgent first; one that does not fit holds up those behind it (no overtaking)."""
        coming = self._coming(plan)
        for request in sorted(self.waiting, key=self._admission_order):
            if budget <= 0:
                break
            keys = self._entry(request).keys.first(request.length - 1) if self.share_prefixes else []
            shared = self.cache.pool.find(keys)
            if len(shared) < len(keys) and keys[len(shared)] in coming:
                continue  # its prefix is being computed by another request
            reused = len(shared) * self.cache.block_size or self._entry(request).given
            count = self._chunk(request, reused, budget, can_step)
            if not count:
                continue  # it waits for its stream, so those behind it may start
            if self.pace is not None:
                count = self.pace.spare(request.request_id, count, self._now, begins=True)
                if not count:
                    break  # running requests would be late
            for victim in self._victims(plan, request, shared):
                self.preempt(victim)
            # Everything known of it must fit before it starts, so that half-computed prompts never preempt each other.
            if len(self.running) >= self.max_running or not self.cache.open(request.request_id, shared, request.length):
                break
            self._start(plan, request, reused)
            plan.work.append((request, count))
            budget -= count
            coming.update(keys[len(shared) :])
        return budget

    def _start(self, plan: Plan, request: ARRequest, reused: int) -> None:
        self.waiting.remove(request)
        self._entry(request).rank = self._urgency(request)
        insort(self.running, request, key=self._worth)
        request.computed = reused
        self.prompt_positions += request.length
        self.reused_positions += reused
        if reused:
            plan.reused.append(request)

    def _coming(self, plan: Plan) -> set[bytes]:
        """Return the keys of the blocks that the prompts of this step will fill, now or in later steps."""
        coming: set[bytes] = set()
        if self.share_prefixes:
            for request, _ in plan.work:
                if not _is_decode(request):
                    keys = self._entry(request).keys.first(request.length)
                    coming.update(keys[request.computed // self.cache.block_size :])
        return coming

    def _victims(self, plan: Plan, request: ARRequest, shared: list[int]) -> list[ARRequest]:
        """Return the running requests to preempt, lowest first, so that a waiting one of higher priority can start.

        None if it fits, or if preempting would not make enough room. Requests in ``plan`` keep their blocks: a running request
        that has waited for ``patience`` steps may be served now although its rank, given at admission, is lower.
        """
        pool, victims = self.cache.pool, list[ARRequest]()
        needed = self.cache.blocks_for(request.length) - len(shared) + pool.idle(shared)
        planned = {each.request_id for each, _ in plan.work}
        lower = (r for r in self.running if self._entry(r).rank < request.priority and r.request_id not in planned)
        candidates = [*lower]
        while len(self.running) - len(victims) >= self.max_running or (
            pool.free + self.cache.freed_by([each.request_id for each in victims]) < needed
        ):
            if not candidates:
                return []
            victims.append(candidates.pop())
        return victims

    def _entry(self, request: ARRequest) -> QueueEntry:
        entry = self._entries.get(request.request_id)
        if entry is None:
            self._arrivals += 1
            keys, time = BlockKeys(request, self.cache.block_size), self._step if self.pace is None else self._now
            entry = self._entries[request.request_id] = QueueEntry(self._arrivals, time, keys, request.priority)
        return entry

    def _urgency(self, request: ARRequest) -> int:
        """Return the priority plus one for every ``patience`` steps without service."""
        return self._urgency_of(request, self._entry(request))

    def _urgency_of(self, request: ARRequest, entry: QueueEntry) -> int:
        pace = self.pace
        if pace is None:
            return request.priority + int((self._step - entry.served) // self.patience)
        return request.priority + int((self._now - entry.served) // pace.patience)

    def _due(self, request: ARRequest) -> float:
        return 0.0 if self.pace is None else self.pace.policy.due(request.request_id, self._now)

    def _admission_order(self, request: ARRequest) -> tuple[int, float, int]:
        """Sort key of waiting requests."""
        return -self._urgency(request), self._due(request), self._entry(request).arrival

    def _turn(self, request: ARRequest) -> tuple[int, bool, float, int, int]:
        """Sort key within a step: urgency; decodes before prompts; by deadline; decodes in turn; prompts one after the other."""
        entry, decode = self._entry(request), _is_decode(request)
        due = 0.0 if self.pace is None else self._due(request)
        return -self._urgency_of(request, entry), not decode, due, entry.turn if decode else 0, entry.arrival

    def _worth(self, request: ARRequest) -> tuple[int, int]:
        """Sort key of running requests: the last is preempted first."""
        entry = self._entry(request)
        return -entry.rank, entry.arrival

    def add(self, request: ARRequest, now: float = 0.0, given: int = 0) -> None:
        """Add a new request to the waiting queue. ``now``: see :meth:`plan`; ``given``: see :class:`QueueEntry`."""
        self._now = now
        entry = self._entry(request)
        if given:
            entry.given, entry.keys = given, BlockKeys(request, self.cache.block_size, identified=0)
        self.waiting.append(request)

    def preempt(self, request: ARRequest) -> None:
        """Move a running request back to the waiting queue and release its blocks; it is computed again later."""
        self.running.remove(request)
        self.cache.release(request.request_id)
        request.computed = 0
        self.waiting.append(request)
        self.preemptions += 1

    def remove(self, request: ARRequest, *, invalidate: bool = False) -> None:
        """Forget a request that finished, was aborted or failed (``invalidate``: see :meth:`KVCache.release`). Idempotent."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._entries.pop(request.request_id, None)
        self.cache.release(request.request_id, invalidate=invalidate)


def _is_decode(request: ARRequest) -> bool:
    """Return True if only the newest generated token is left to compute."""
    ids = request.output_ids
    return bool(ids) and len(request.prompt_ids) + len(ids) - request.computed == 1


def _uncut(blocks: torch.Tensor, computed: int, count: int) -> int:
    """Return how many positions to compute in place of ``count``, so that no block is cut: fewer, or more where a block is larger."""
    if computed + count >= len(blocks):
        return count
    places = torch.arange(len(blocks))
    last = torch.zeros(int(blocks.max()) + 2, dtype=torch.long).scatter_reduce(0, blocks + 1, places, "amax")
    reach = torch.where(blocks < 0, places, last[blocks + 1]).cummax(0).values
    ends = (reach == places).nonzero().flatten() + 1
    ends = ends[ends > computed]
    fitting = ends[ends <= computed + count]
    return int(fitting[-1] if len(fitting) else ends[0]) - computed
