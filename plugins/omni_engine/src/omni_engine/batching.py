"""Which requests compute how many positions in the next step: decode first, then prompts in chunks; who waits, who gives way."""

from __future__ import annotations

from collections.abc import Callable

from attrs import define, field

from omni_core.model_runner.types import ARRequest
from omni_engine.kv_cache import KVCache
from omni_engine.positions import BlockKeys

CanStep = Callable[[ARRequest], bool]


@define
class Plan:
    """One step: ``(request, positions)`` in packing order, and the requests that begin behind positions they need not compute."""

    work: list[tuple[ARRequest, int]] = field(factory=list)
    reused: list[ARRequest] = field(factory=list)


@define
class _Seat:
    """What the batcher knows of a request.

    Attributes:
        arrival: its place among all requests that came; a preempted one keeps it.
        served, turn: the step in which it last computed something (or came), and its place among all that ever did.
        rank: the priority that it was admitted with, its patience included: who runs gives way to higher ones only.
        keys: the names of its blocks.
    """

    arrival: int
    served: int
    keys: BlockKeys
    rank: int = 0
    turn: int = 0


@define
class Batcher:
    """The waiting line, the running set, and the policy between them.

    Decode steps come first: they are short and somebody reads their output. What is left of ``max_batch_tokens`` goes to
    prompts, at most ``chunk_size`` positions each. What a prompt begins with and another request has computed is not computed
    again.

    The higher ``priority`` goes first, then the older. Whoever gets nothing for ``patience`` steps counts one priority higher, and
    so on, so that everybody is served some day. When the cache is full, the lowest and newest running request gives way: its
    blocks are given back and it is computed again later. A request also gives way to a waiting one of higher priority.
    """

    cache: KVCache
    max_running: int
    max_batch_tokens: int
    chunk_size: int
    share_prefixes: bool = True
    patience: int = 64
    waiting: list[ARRequest] = field(factory=list)
    running: list[ARRequest] = field(factory=list)
    preemptions: int = 0
    prompt_positions: int = 0
    reused_positions: int = 0
    _step: int = 0
    _turns: int = 0
    _arrivals: int = 0
    _seats: dict[str, _Seat] = field(factory=dict)

    def plan(self, can_step: CanStep) -> Plan:
        """The next step's work; empty when nothing can be computed now."""
        plan = Plan()
        preemptions = self.preemptions
        ready = sorted(self._with_room(can_step), key=self._turn)
        foremost = max(map(self._urgency, self.waiting)) if self.waiting else None
        behind = [r for r in ready if foremost is not None and self._urgency(r) < foremost]
        budget = self._serve(plan, ready[: len(ready) - len(behind)], self.max_batch_tokens, can_step)
        # What gave way in this step made its room for others; admitting it at once would only take that room back.
        if self.waiting and self.preemptions == preemptions:
            budget = self._admit(plan, budget, can_step)
        self._serve(plan, [r for r in behind if r in self.running], budget, can_step)
        self._step += bool(plan.work)
        for request, _ in plan.work:
            self._turns += 1
            seat = self._seat(request)
            seat.served, seat.turn = self._step, self._turns
        return plan

    def _serve(self, plan: Plan, requests: list[ARRequest], budget: int, can_step: CanStep) -> int:
        """Plan running requests, in order, within a budget of positions. Returns what is left of it."""
        for request in requests:
            count = self._chunk(request, request.computed, budget, can_step)
            if count:
                plan.work.append((request, count))
                budget -= count
        return budget

    def computed(self, plan: Plan) -> None:
        """The plan was carried out: its positions are in the cache, and what is full of them can be shared."""
        for request, count in plan.work:
            request.computed += count
            if self.share_prefixes and request.computed // self.cache.block_size > self.cache.named(request.request_id):
                self.cache.name(request.request_id, self._seat(request).keys.first(request.computed))

    # --- who computes ------------------------------------------------------------------------------------------------
    def _with_room(self, can_step: CanStep) -> list[ARRequest]:
        """The running requests that could compute something now. The best are given room first."""
        ready: list[ARRequest] = []
        for request in sorted(self.running, key=self._worth, reverse=True):
            if request not in self.running:
                continue  # it gave way to a better one, or failed
            # A prompt has its room since it was admitted, but one that was extended has not.
            if (not _is_decode(request) or can_step(request)) and self._make_room(request):
                ready.append(request)
        return [request for request in ready if request in self.running]

    def _make_room(self, request: ARRequest) -> bool:
        """Room for one more position, taken from the worst requests if need be. ``False`` if it had to give way itself."""
        while not self.cache.reserve(request.request_id, request.length):
            worst = min(self.running, key=self._worth)
            self.preempt(worst)
            if worst is request:
                return False
        return True

    def _chunk(self, request: ARRequest, computed: int, budget: int, can_step: CanStep) -> int:
        """How many positions to compute now: none for a recomputed request whose next input is not there."""
        remaining = request.length - computed
        count = min(remaining, self.chunk_size, budget)
        needs_feedback = request.output_ids and count == remaining
        return 0 if count <= 0 or (needs_feedback and not can_step(request)) else count

    # --- who is admitted ---------------------------------------------------------------------------------------------
    def _admit(self, plan: Plan, budget: int, can_step: CanStep) -> int:
        """Start waiting requests, the most urgent first; one that does not fit holds up those behind it."""
        coming = self._coming(plan)
        for request in sorted(self.waiting, key=self._place):
            if budget <= 0:
                break
            keys = self._seat(request).keys.first(request.length - 1) if self.share_prefixes else []
            shared = self.cache.pool.find(keys)
            if len(shared) < len(keys) and keys[len(shared)] in coming:
                continue  # its beginning is being computed, for another
            reused = len(shared) * self.cache.block_size
            count = self._chunk(request, reused, budget, can_step)
            if not count:
                continue  # it waits for its stream: those behind it need not
            for victim in self._gives_way(request, shared):
                self.preempt(victim)
            # All that is known of it fits before it starts, so that prompts never push each other out half computed.
            if len(self.running) >= self.max_running or not self.cache.open(request.request_id, shared, request.length):
                break
            self._start(plan, request, reused)
            plan.work.append((request, count))
            budget -= count
            coming.update(keys[len(shared) :])
        return budget

    def _start(self, plan: Plan, request: ARRequest, reused: int) -> None:
        self.waiting.remove(request)
        self.running.append(request)
        self._seat(request).rank = self._urgency(request)
        request.computed = reused
        self.prompt_positions += request.length
        self.reused_positions += reused
        if reused:
            plan.reused.append(request)

    def _coming(self, plan: Plan) -> set[bytes]:
        """The names of the blocks that this step's prompts are about to fill, now or in later steps."""
        coming: set[bytes] = set()
        if self.share_prefixes:
            for request, _ in plan.work:
                if not _is_decode(request):
                    keys = self._seat(request).keys.first(request.length)
                    coming.update(keys[request.computed // self.cache.block_size :])
        return coming

    def _gives_way(self, request: ARRequest, shared: list[int]) -> list[ARRequest]:
        """The running requests, worst first, that have to go so that a waiting one of higher priority can start; none if
        that would not help, or if it fits.
        """
        pool, victims = self.cache.pool, list[ARRequest]()
        needed = self.cache.blocks_for(request.length) - len(shared) + pool.idle(shared)
        candidates = sorted((r for r in self.running if self._seat(r).rank < request.priority), key=self._worth)
        while len(self.running) - len(victims) >= self.max_running or (
            pool.free + self.cache.freed_by([each.request_id for each in victims]) < needed
        ):
            if not candidates:
                return []
            victims.append(candidates.pop(0))
        return victims

    # --- orders ------------------------------------------------------------------------------------------------------
    def _seat(self, request: ARRequest) -> _Seat:
        seat = self._seats.get(request.request_id)
        if seat is None:
            self._arrivals += 1
            keys = BlockKeys(request, self.cache.block_size)
            seat = self._seats[request.request_id] = _Seat(self._arrivals, self._step, keys, request.priority)
        return seat

    def _urgency(self, request: ARRequest) -> int:
        """Priority, and one more for every ``patience`` steps without service."""
        return request.priority + (self._step - self._seat(request).served) // self.patience

    def _place(self, request: ARRequest) -> tuple[int, int]:
        """Order in the waiting line."""
        return -self._urgency(request), self._seat(request).arrival

    def _turn(self, request: ARRequest) -> tuple[int, bool, int, int]:
        """Order in a step: urgency, decode before prompts, decodes in turn, prompts one after the other."""
        seat, decode = self._seat(request), _is_decode(request)
        return -self._urgency(request), not decode, seat.turn if decode else 0, seat.arrival

    def _worth(self, request: ARRequest) -> tuple[int, int]:
        """The lowest gives way first."""
        seat = self._seat(request)
        return seat.rank, -seat.arrival

    # --- ends --------------------------------------------------------------------------------------------------------
    def add(self, request: ARRequest) -> None:
        """Put a new request into the waiting line."""
        self._seat(request)
        self.waiting.append(request)

    def preempt(self, request: ARRequest) -> None:
        self.running.remove(request)
        self.cache.release(request.request_id)
        request.computed = 0
        self.waiting.append(request)
        self.preemptions += 1

    def remove(self, request: ARRequest, *, distrust: bool = False) -> None:
        """Forget a request that finished, failed (``distrust``) or was aborted. Idempotent."""
        if request in self.running:
            self.running.remove(request)
        elif request in self.waiting:
            self.waiting.remove(request)
        self._seats.pop(request.request_id, None)
        self.cache.release(request.request_id, distrust=distrust)


def _is_decode(request: ARRequest) -> bool:
    """Whether only the newest generated token is left to compute."""
    return bool(request.output_ids) and request.length - request.computed == 1
