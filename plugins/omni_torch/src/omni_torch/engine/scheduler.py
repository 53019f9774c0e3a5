"""The engine: a scheduler that computes batches of requests over a paged KV cache, and isolates requests that fail."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial

import torch

from omni_core.api import ARRequest, ConfigError, InvalidRequestError, ModelRunner, pausing
from omni_core.runtime_api import name_of
from omni_torch.engine.attention import choose
from omni_torch.engine.attention.base import StepAttention
from omni_torch.engine.attention.whole import WholeStepAttention
from omni_torch.engine.batching import Batcher, Plan
from omni_torch.engine.cache_size import default_blocks
from omni_torch.engine.graphs import DecodeGraphs
from omni_torch.engine.hand_over import check_ranks, export, given_to, restore
from omni_torch.engine.kv_cache import KVCache
from omni_torch.engine.memory import available_bytes
from omni_torch.engine.pace import Pace
from omni_torch.loop.autoregressive import AutoregressiveLoop, LoopedScheduler, StepResult, run_batch
from omni_torch.loop.packing import packed_batch
from omni_torch.placement.budgets import MAX_BATCH_TOKENS, MAX_RUNNING, chunks
from omni_torch.processes.ranks import RankInbox
from omni_torch.runners.graphs import Graphs, Recorder, padded
from omni_torch.runners.model_runner import ARModelRunner
from omni_torch.vocoder.deadlines import TEXT_SECONDS, policy_of

logger = logging.getLogger(__name__)

DEFAULT_CONTEXT = 32768
"""``max_context`` for runners that do not name one."""

PATIENCE = 64
"""``patience`` without a policy."""

LONGEST_SECONDS = 1e9
"""``prefix_cache_seconds`` is less."""

MAX_PRIORITY = 1000
"""The highest priority that a request may ask for in its ``metadata``; minus this is the lowest."""


class EngineScheduler(LoopedScheduler):
    """The ``Scheduler`` contract for autoregressive stages, on any :class:`ModelRunner`: an :class:`AutoregressiveLoop` whose
    policy it is.

    Args:
        runner: the model and its requests' state.
        max_running: requests computed together.
        max_batch_tokens: positions computed in one step, over all requests.
        chunk_size: positions of one prompt computed in one step; by default :data:`~omni_torch.placement.budgets.CHUNK_SIZE`, and
            :data:`~omni_torch.placement.budgets.CHUNK_ALONE` if there is no other request.
        block_size: positions per cache block.
        kv_cache_mb: the cache's size in MiB, all layers together; it never grows. By default, on a GPU, what weights and one step leave
            of ``gpu_memory``; on a CPU 512 MiB, or one request of ``max_context``, but at most a quarter of the free memory.
        kv_fraction: its size as a share of the device's free memory, instead.
        kv_blocks: its size in blocks, instead.
        prefix_cache: true if requests with equal prefixes share their KV blocks.
        prefix_cache_seconds: how long blocks that no request uses are kept for later ones, at most.
        patience: steps without service after which a request's priority rises by one, 64 by default. Not with a ``policy``: there it is
            30 s.
        attention: one of :data:`omni_torch.engine.attention.BACKENDS`; by default the best that can work here.
        max_context: the most positions of one request; a longer prompt is an error, longer output ends with ``length``. By default
            the runner's, and :data:`DEFAULT_CONTEXT` if it has none.
        cuda_graphs: true if decode steps are recorded on a GPU and replayed; a recorder in tests, for any device. By default
            true for a stage of one rank, whose sums over ranks would be untested inside a graph, and layers that all attend plainly.
        step_kernels: true if a model may compute a step on a CPU by one call of an installed kernel (decision 0024).
        gpu_memory: the stage's budget on its GPU: bytes, or a share of the GPU.
        tp_size: the stage's tensor parallel ranks, each of which runs its own scheduler.
        policy: the order of requests of one priority: ``package.module:attribute`` of a callable that returns a
            :class:`omni_torch.vocoder.deadlines.DeadlinePolicy`, such as ``omni_torch.vocoder.deadlines:Deadlines``. By default the order
            in which they came. Every rank makes one, which is called alike on all of them.

    Attributes:
        clock: returns the time in seconds; with ranks that of the last look into the inbox, which they have in common.
        hands_over: it exports keys and values, and takes those of another stage (:mod:`omni_torch.engine.hand_over`).
    """

    hands_over = True

    def __init__(
        self,
        runner: ModelRunner,
        *,
        max_running: int = MAX_RUNNING,
        max_batch_tokens: int = MAX_BATCH_TOKENS,
        chunk_size: int | None = None,
        block_size: int = 16,
        kv_cache_mb: int | None = None,
        kv_blocks: int | None = None,
        max_context: int | None = None,
        kv_fraction: float | None = None,
        prefix_cache: bool = True,
        prefix_cache_seconds: float = 3600.0,
        patience: int | None = None,
        attention: str = "auto",
        cuda_graphs: bool | type[Recorder] | None = None,
        step_kernels: bool = True,
        gpu_memory: int | float | None = None,
        tp_size: int = 1,
        policy: str | None = None,
    ) -> None:
        chunk_size, chunk_alone = chunks(chunk_size)
        options = {"max_running": max_running, "max_batch_tokens": max_batch_tokens, "chunk_size": chunk_size}
        if patience is not None and policy is not None:
            raise ConfigError(
                "patience: counts steps, and a policy counts seconds: with one, a request's priority rises after 30 s without service; "
                "remove patience or policy"
            )
        patience = PATIENCE if patience is None else patience
        for name, value in {**options, "block_size": block_size, "patience": patience}.items():
            if value < 1:
                raise ConfigError(f"{name}: must be at least 1, is {value}")
        if not 0 < prefix_cache_seconds < LONGEST_SECONDS:
            raise ConfigError(
                f"prefix_cache_seconds: must be above 0 and below {LONGEST_SECONDS:g}, is {prefix_cache_seconds!r}; to keep nothing, "
                "set prefix_cache to false"
            )
        if tp_size > 1 and kv_fraction is not None:
            raise ConfigError(
                "kv_fraction: the ranks must agree on the size of their KV caches; give kv_cache_mb instead"
            )
        if max_context is None:
            max_context = DEFAULT_CONTEXT if runner.max_context is None else runner.max_context
        self._runner, self._max_context = runner, max_context
        check_ranks(runner, tp_size)
        self.loop = AutoregressiveLoop(runner, self, max_context)
        self._ranked = tp_size > 1
        self.clock: Callable[[], float] = partial(_moment, self.loop) if self._ranked else time.monotonic
        layout = runner.model.kv_layout
        block_bytes = self._block_bytes = KVCache.block_bytes(layout, block_size, runner.kept_width)
        if kv_blocks is None or kv_cache_mb is not None or kv_fraction is not None:
            asked = _asked_bytes(runner.device, kv_cache_mb, kv_blocks, kv_fraction)
            longest = -(-max_context // block_size)
            if asked is not None:
                kv_blocks = max(1, asked // block_bytes)
            else:
                kv_blocks = default_blocks(
                    runner, block_bytes, block_size, longest, max_batch_tokens, max_running, gpu_memory
                )
                if isinstance(runner, ARModelRunner):
                    kv_blocks = runner.parallel.least(kv_blocks, runner.device)  # ranks may see different memory
            kv_blocks = min(kv_blocks, max_running * longest)
        backend = choose(attention, runner.device, layout, block_size)
        forms = " and ".join(layout.form_names)
        if cuda_graphs and forms:
            raise ConfigError(
                f"cuda_graphs: recorded steps attend plainly, and {type(runner.model).__name__} has {forms}; leave it out"
            )
        graphs = Graphs.choose(runner.device, tp_size == 1 and not forms if cuda_graphs is None else cuda_graphs)
        scratch = 0 if graphs is None else padded(max_running)
        self.cache = KVCache(layout, kv_blocks, block_size, runner.device, runner.kept_width, scratch)
        if isinstance(runner, ARModelRunner) and runner.hands_over:
            runner.exporter = partial(export, self.cache)
        self.attention = backend(self.cache)
        self._graphs: DecodeGraphs | None = None
        if graphs is not None:
            self._graphs = DecodeGraphs(runner.model, self.attention, graphs, max_running, max_context)
        self._kernel_taken = True  # until a step of decodes shows that the model has none
        self._step_kernels = step_kernels and not forms and graphs is None and runner.device.type == "cpu"
        heard = runner.output_seconds
        made = policy_of(policy)
        self._pace = None if made is None else Pace(made, TEXT_SECONDS if heard is None else heard)
        self._unlearnt: tuple[int, int, float] | None = (
            None  # a step's decodes and positions of prompts, and its beginning
        )
        self.batcher = Batcher(
            self.cache,
            max_running,
            max_batch_tokens,
            chunk_size,
            prefix_cache,
            patience=patience,
            pace=self._pace,
            chunk_alone=chunk_alone,
        )
        self._requests: dict[str, ARRequest] = {}
        self._kept_seconds = prefix_cache_seconds
        self.steps = 0
        self.kernel_steps = 0
        self.tokens = 0
        self.rows = 0
        self.positions = 0

    def statistics(self) -> dict[str, float]:
        """Return counters since the start and current values; docs/engine.md defines each."""
        pool, batcher = self.cache.pool, self.batcher
        counted = {
            "free_blocks": pool.free,
            "total_blocks": pool.total,
            "peak_blocks": pool.peak,
            "block_positions": self.cache.block_size,
            "block_bytes": self._block_bytes,
            "shared_blocks": pool.named,
            "evictions": pool.evictions,
            "prompt_positions": batcher.prompt_positions,
            "reused_positions": batcher.reused_positions,
            "running": len(batcher.running),
            "waiting": len(batcher.waiting),
            "pending": self.loop.pending,
            "preemptions": batcher.preemptions,
            "steps": self.steps,
            "graph_steps": 0 if self._graphs is None else self._graphs.steps,
            "kernel_steps": self.kernel_steps,
            "computed": self.rows,
            "positions": self.positions,
            "tokens": self.tokens,
        }
        return {name: float(value) for name, value in counted.items()}

    def pause(self, request_id: str, paused: bool) -> None:
        """Leave a request out of the steps, or take it in again; it keeps its place in the cache. From any thread."""
        self.inbox.put(pausing(request_id, paused))

    def admit(self, request: ARRequest) -> None:
        """See :class:`omni_torch.loop.autoregressive.StepPolicy`."""
        prompt, capacity = len(request.prompt_ids), self.cache.capacity
        # The last token is never computed. A request that fits alone fits eventually, because others are preempted.
        most = min(prompt + request.sampling.max_new_tokens, self._max_context) - 1
        if most > capacity:
            raise InvalidRequestError(
                f"the prompt has {prompt} tokens and may grow to {most}; the KV cache of this stage holds {capacity} "
                f"(lower max_new_tokens, which is {request.sampling.max_new_tokens}, or raise kv_cache_mb)"
            )
        given = given_to(self._runner, request)
        request.priority = request.priority or _priority(request)
        now = self.clock()
        if self._pace is not None:
            self._pace.policy.begin(request.request_id, request.request, now)
        self._requests[request.request_id] = request
        self.batcher.add(request, now, 0 if given is None else given.positions)

    def step(self) -> StepResult | None:
        """See :class:`omni_torch.loop.autoregressive.StepPolicy`."""
        result = StepResult()
        begin = self.cache.pool.now = self.clock()
        self.loop.wake_in = self.cache.pool.expire(self._kept_seconds)
        if self._pace is not None:
            self._learn(self._pace, begin)
        plan = self.batcher.plan(partial(self._can_step, result), begin)
        if plan.reused:
            self._reuse(plan, result)
        if plan.work:
            decodes = (
                0 if self._pace is None else sum(count == 1 and bool(each.output_ids) for each, count in plan.work)
            )
            self._execute(plan, result)
            if self._pace is not None:
                self._unlearnt = decodes, sum(count for _, count in plan.work) - decodes, begin
                if not self._ranked:  # ranks know the time again at the next step, which follows at once
                    self._learn(self._pace, self.clock())
                for request, _ in result.sampled:
                    self._pace.emitted(request.request_id, self.clock())
        return result if plan.work or result.failed else None

    def remove(self, request_id: str, failed: bool) -> None:
        """See :class:`omni_torch.loop.autoregressive.StepPolicy`."""
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.batcher.remove(request, invalidate=failed)
            if self._pace is not None:
                self._pace.policy.end(request_id)

    def forget(self) -> None:
        """See :class:`omni_torch.loop.autoregressive.StepPolicy`."""
        self.cache.pool.forget()

    def _learn(self, pace: Pace, end: float) -> None:
        """Let the pace learn what the last step cost, which ended now."""
        if self._unlearnt is not None:
            decodes, positions, begin = self._unlearnt
            pace.computed(decodes, positions, end - begin)
        self._unlearnt = None

    def _can_step(self, result: StepResult, request: ARRequest) -> bool:
        try:
            return request.request_id not in self.loop.paused and self._runner.can_step(request)
        except BaseException as error:
            result.failed[request.request_id] = error
            return False

    def _reuse(self, plan: Plan, result: StepResult) -> None:
        """Give the runner the kept rows of positions that need not be computed; those of another stage are copied first."""
        for request in plan.reused:
            positions = min(request.computed, len(request.prompt_ids))
            try:
                restore(self.cache, self._runner, request)
                self._runner.reuse(request, self.cache.kept[self.cache.slots(request.request_id, 0, positions)])
            except BaseException as error:
                plan.work = [work for work in plan.work if work[0] is not request]
                result.failed[request.request_id] = error

    def _execute(self, plan: Plan, result: StepResult) -> None:
        """Compute the plan. If the batch fails, its requests are computed one by one, so that only the failing one fails."""
        decodes = [work for work in plan.work if work[1] == 1]
        if self._step_kernels and self._kernel_taken and 0 < len(decodes) < len(plan.work):
            # The decodes keep their kernel, and their results do not depend on the prompts that arrive meanwhile.
            self._execute(Plan(decodes), result)
            self._execute(Plan([work for work in plan.work if work[1] > 1]), result)
            return
        requests = [request for request, _ in plan.work]
        starts, lengths = [request.computed for request in requests], [count for _, count in plan.work]
        graphs, runner = self._graphs, self._runner
        try:
            attention: StepAttention
            if self._step_kernels:
                attention = WholeStepAttention(self.attention, requests, starts, lengths)
            else:
                attention = (graphs or self.attention).plan(requests, starts, lengths)
            keep = attention.keep if runner.kept_width else None
            batch = packed_batch(requests, starts, lengths, attention, runner.device, keep)
            sampled = run_batch(runner, batch, self._max_context, None if graphs is None else graphs.forward)
        except BaseException as error:
            if len(plan.work) == 1:
                result.failed[plan.work[0][0].request_id] = error
                return
            logger.warning("a batch of %d failed (%s); its requests run alone", len(plan.work), name_of(error))
            for each in plan.work:
                self._execute(Plan([each]), result)
            return
        self.steps += 1
        if isinstance(attention, WholeStepAttention):
            self._kernel_taken = attention.taken or (self._kernel_taken and len(decodes) < len(plan.work))
            self.kernel_steps += attention.taken
        self.rows += len(requests)
        self.positions += sum(lengths)
        self.tokens += len(sampled)
        self.batcher.computed(plan)
        result.sampled += sampled


def _moment(loop: AutoregressiveLoop) -> float:
    """Return the time that all ranks have in common."""
    inbox = loop.inbox
    return inbox.moment if isinstance(inbox, RankInbox) else time.monotonic()


def _asked_bytes(
    device: torch.device, kv_cache_mb: int | None, kv_blocks: int | None, kv_fraction: float | None
) -> int | None:
    """Return the cache's size in bytes from the one option that sets it; ``None`` if none does."""
    given = {"kv_cache_mb": kv_cache_mb, "kv_blocks": kv_blocks, "kv_fraction": kv_fraction}
    named = [name for name, value in given.items() if value is not None]
    if len(named) > 1:
        raise ConfigError(f"{' and '.join(named)}: give one of them; each says how large the KV cache is")
    if kv_fraction is None:
        return None if kv_cache_mb is None else kv_cache_mb * 2**20
    if not 0 < kv_fraction <= 1:
        raise ConfigError(f"kv_fraction: must be above 0 and at most 1, is {kv_fraction}")
    return int(available_bytes(device) * kv_fraction)


def _priority(request: ARRequest) -> int:
    """Return ``metadata["priority"]`` of the client's request.

    Raises:
        InvalidRequestError: it is not a whole number within the bounds.
    """
    value = request.request.metadata.get("priority", 0) if request.request is not None else 0
    if isinstance(value, bool) or not isinstance(value, int) or abs(value) > MAX_PRIORITY:
        raise InvalidRequestError(
            f"metadata.priority: must be a whole number from {-MAX_PRIORITY} to {MAX_PRIORITY}, is {value!r}"
        )
    return value
