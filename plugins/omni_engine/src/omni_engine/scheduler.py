"""The engine: admit, plan, execute, hand out; in one thread, asleep whenever nothing can be computed."""

from __future__ import annotations

import logging
import threading

import torch

from omni_core.errors import InvalidRequestError
from omni_core.model_runner.base import ModelRunner
from omni_core.model_runner.types import ARRequest, ForwardBatch
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage
from omni_engine.attention import PagedAttention
from omni_engine.batching import Batcher, Plan
from omni_engine.kv_cache import KVCache

logger = logging.getLogger(__name__)

_WAKE = IncomingMessage("", "stream_done")


class EngineScheduler:
    """The ``Scheduler`` contract for autoregressive stages, on any :class:`ModelRunner`.

    Args:
        runner: the model and what its requests are.
        max_running: requests computed together.
        max_batch_tokens: positions computed in one step, over all requests.
        chunk_size: positions of one prompt computed in one step.
        block_size: positions per cache block.
        kv_cache_mb: the cache's size in MiB, all layers together; it never grows.
        kv_blocks: the cache's size in blocks instead.
        max_context: positions that one request may reach; more prompt is an error, more output ends it with ``length``.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        max_running: int = 32,
        max_batch_tokens: int = 2048,
        chunk_size: int = 512,
        block_size: int = 16,
        kv_cache_mb: int = 512,
        kv_blocks: int | None = None,
        max_context: int = 32768,
    ) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()
        self._runner = runner
        self._max_context = max_context
        layout = runner.model.kv_layout
        if kv_blocks is None:
            wanted = kv_cache_mb * 2**20 // KVCache.block_bytes(layout, block_size)
            kv_blocks = max(1, min(wanted, max_running * -(-max_context // block_size)))
        self.cache = KVCache(layout, kv_blocks, block_size, runner.device)
        self.batcher = Batcher(self.cache, max_running, max_batch_tokens, chunk_size)
        self._requests: dict[str, ARRequest] = {}
        self._known: set[str] = set()
        self._aborted: set[str] = set()
        self._lock = threading.Lock()
        self.steps = 0
        self.tokens = 0

    # --- the scheduler contract --------------------------------------------------------------------------------------
    def start(self) -> None:
        with torch.inference_mode():
            while self._serve_once():
                continue

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)
        with self._lock:
            self._aborted.add(request_id)
        self.inbox.put(_WAKE)

    def statistics(self) -> dict[str, float]:
        return {
            "free_blocks": float(self.cache.pool.free),
            "total_blocks": float(self.cache.pool.total),
            "running": float(len(self.batcher.running)),
            "waiting": float(len(self.batcher.waiting)),
            "pending": float(len(self._known)),
            "preemptions": float(self.batcher.preemptions),
            "steps": float(self.steps),
            "tokens": float(self.tokens),
        }

    # --- the loop ----------------------------------------------------------------------------------------------------
    def _serve_once(self) -> bool:
        """One turn: take messages in, plan, execute, hand out; or sleep until a message comes. ``False`` at the end."""
        if self.inbox.closed:
            return False
        for message in self.inbox.drain():
            self._take(message)
        self._drop_aborted()
        plan = self.batcher.plan(self._can_step)
        if plan.work:
            self._execute(plan)
            return True
        if self._refuse_what_never_fits():
            return True
        following = self.inbox.get()
        if following is None:
            return False
        self._take(following)
        return True

    def _take(self, message: IncomingMessage) -> None:
        if not message.request_id:  # _WAKE, or what another rank was sent of it
            return
        with self._lock:
            if message.request_id in self._aborted:
                return
        self._known.add(message.request_id)
        try:
            request = self._runner.receive(message)
            if request is None:
                return
            if request.finish_reason is not None:
                self._finish(request)
            else:
                self._admit(request)
        except BaseException as error:
            self._fail(message.request_id, error)

    def _admit(self, request: ARRequest) -> None:
        prompt = len(request.prompt_ids)
        capacity = self.cache.pool.total * self.cache.block_size
        if prompt == 0:
            raise InvalidRequestError("the prompt is empty")
        if prompt >= self._max_context:
            raise InvalidRequestError(f"the prompt has {prompt} tokens; the context holds {self._max_context}")
        if prompt + 1 > capacity:
            raise InvalidRequestError(
                f"the prompt has {prompt} tokens; the KV cache of this stage holds {capacity} (raise kv_cache_mb)"
            )
        self._requests[request.request_id] = request
        self.batcher.waiting.append(request)

    def _can_step(self, request: ARRequest) -> bool:
        try:
            return self._runner.can_step(request)
        except BaseException as error:
            self._fail(request.request_id, error)
            return False

    def _refuse_what_never_fits(self) -> bool:
        """When nothing can be computed, a request that is longer than the whole cache is why, and stays so."""
        for request in [*self.batcher.running, *self.batcher.waiting]:
            if self.cache.blocks_for(request.length) > self.cache.pool.total:
                error = InvalidRequestError(
                    f"the request has grown to {request.length} tokens; the KV cache of this stage holds "
                    f"{self.cache.pool.total * self.cache.block_size} (raise kv_cache_mb, or lower max_new_tokens)"
                )
                self._fail(request.request_id, error)
                return True
        return False

    def _execute(self, plan: Plan) -> None:
        """Run the plan. If the batch fails, its requests run one by one, so that only the guilty one fails."""
        before = [(request, len(request.output_ids), len(request.output_embeds)) for request, _ in plan.work]
        try:
            sampled = self._runner.execute(self._batch(plan))
        except BaseException as error:
            for request, outputs, embeds in before:
                del request.output_ids[outputs:], request.output_embeds[embeds:]
                request.finish_reason = None
            if len(plan.work) == 1:
                self._fail(plan.work[0][0].request_id, error)
                return
            logger.warning("a batch of %d failed (%s); its requests run alone", len(plan.work), error)
            for each in plan.work:
                self._execute(Plan([each]))
            return
        self.steps += 1
        for request, count in plan.work:
            request.computed += count
        for request, token in sampled:
            self.tokens += 1
            self._hand_out(request, token)

    def _batch(self, plan: Plan) -> ForwardBatch:
        """Pack the plan's positions."""
        requests = [request for request, _ in plan.work]
        starts = [request.computed for request in requests]
        lengths = [count for _, count in plan.work]
        ids: list[int] = []
        positions, sample_rows, sampled = [], [], []
        for index, (request, start, count) in enumerate(zip(requests, starts, lengths, strict=True)):
            ids.extend(_ids(request, start, count))
            positions.append(_positions(request, start, count))
            if start + count == request.length:
                sampled.append(index)
                sample_rows.append(len(ids) - 1)
        if any(each.dim() == 2 for each in positions):
            positions = [each if each.dim() == 2 else each.expand(3, -1) for each in positions]
        device = self._runner.device
        return ForwardBatch(
            requests=requests,
            starts=starts,
            lengths=lengths,
            input_ids=torch.tensor(ids, device=device),
            input_embeds=None,
            positions=torch.cat(positions, dim=-1).to(device),
            attention=PagedAttention(self.cache, requests, starts, lengths),
            sample_rows=torch.tensor(sample_rows, dtype=torch.int64, device=device),
            sampled=sampled,
        )

    def _hand_out(self, request: ARRequest, token: int) -> None:
        """Stream a new token's messages; finish the request if it was its last."""
        if request.finish_reason is None and request.length >= self._max_context:
            request.finish_reason = "length"
        with self._lock:
            if request.request_id in self._aborted:
                return  # dropped at the next turn; nobody reads what it says
        try:
            for message in self._runner.emit(request, token):
                self.outbox.put(message)
            if request.finish_reason is not None:
                self._finish(request)
        except BaseException as error:
            self._fail(request.request_id, error)

    def _finish(self, request: ARRequest) -> None:
        result = OutgoingMessage(request.request_id, "result", self._runner.result(request))
        self._forget(request.request_id)
        self.outbox.put(result)

    # --- ends --------------------------------------------------------------------------------------------------------
    def _fail(self, request_id: str, error: BaseException) -> None:
        self._forget(request_id)
        self.outbox.put(OutgoingMessage(request_id, "error", error))

    def _drop_aborted(self) -> None:
        with self._lock:
            aborted, self._aborted = self._aborted, set()
        for request_id in aborted:
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        request = self._requests.pop(request_id, None)
        if request is not None:
            self.batcher.remove(request)
        if request_id in self._known:
            self._known.discard(request_id)
            try:
                self._runner.release(request_id)
            except BaseException:  # the request has ended either way; the others go on
                logger.exception("releasing request %s failed; some of its state may remain", request_id)


def _ids(request: ARRequest, start: int, count: int) -> list[int]:
    prompt = len(request.prompt_ids)
    if start >= prompt:
        return request.output_ids[start - prompt : start - prompt + count]
    return (request.prompt_ids[start : start + count] + request.output_ids)[:count]


def _positions(request: ARRequest, start: int, count: int) -> torch.Tensor:
    """Rotary positions of a run: the prompt's own, then index plus delta. ``[count]`` or ``[3, count]``."""
    prompt, given, delta = len(request.prompt_ids), request.prompt_positions, request.position_delta
    tail = torch.arange(max(start, prompt) + delta, max(start + count, prompt) + delta)
    if start < prompt:
        end = min(start + count, prompt)
        head = torch.arange(start, end) if given is None else given[..., start:end]
        tail = torch.cat([head, tail.expand(*head.shape[:-1], -1)], dim=-1) if start + count > prompt else head
    elif given is not None:
        tail = tail.expand(*given.shape[:-1], -1)
    return tail
