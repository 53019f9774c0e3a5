"""SGLang's scheduler, stepped by ours.

:class:`Runtime` holds one :class:`sglang.srt.managers.scheduler.Scheduler` and steps it. SGLang decides which requests
compute how many positions, the location of their K and V, the sharing in the radix cache, and which requests to retract
when the pool is full. It computes by calling a model; that model is :class:`OmniDecoder`, which calls ``compute`` and
so the stage's model runner.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from attrs import define
from sglang.srt.managers.io_struct import TokenizedGenerateReqInput
from sglang.srt.managers.schedule_batch import FINISH_LENGTH, Req, ScheduleBatch
from sglang.srt.mem_cache.common import release_kv_cache
from sglang.srt.sampling.sampling_params import SamplingParams

from omni_core.api import InvalidRequestError
from omni_sglang.adapter.local_scheduler import Limits, ModelShape, claim, release, start
from omni_sglang.adapter.model import Chosen, Compute, OmniDecoder


@define
class Outcome:
    """The outcome of :meth:`Runtime.step`.

    Attributes:
        keys: the requests that were computed; empty when there was nothing to compute.
        chosen: those of them that got a token.
        error: the exception of the computation; then every request of ``keys`` is detached and holds no memory.
        given_up: requests that SGLang ended on its own, with its reason; they hold no memory.
    """

    keys: list[str]
    chosen: dict[str, Chosen]
    error: BaseException | None
    given_up: dict[str, str]


class Runtime:
    """One SGLang scheduler, the only one in its process: its parallel state and its config are global.

    A request is in one of three states: in SGLang (waiting or running), detached (known, but SGLang does not see it,
    and it holds no memory that is not shared) or unknown. All calls must come from one thread at a time.

    ``server_args`` are arguments of SGLang's ``ServerArgs`` that override the defaults chosen here.

    Raises:
        ConfigError: another one exists in this process.
    """

    def __init__(self, shape: ModelShape, limits: Limits, device: torch.device, **server_args: Any) -> None:
        claim(self)
        try:
            self._scheduler = start(shape, limits, device, server_args)
        except BaseException:
            release(self)
            raise
        self._model: OmniDecoder = self._scheduler.tp_worker.model_runner.model
        self._requests: dict[str, Req] = {}
        self._detached: set[str] = set()
        self.retractions = 0
        """The number of times SGLang retracted a running request, to compute it again later."""

    def connect(self, compute: Compute) -> None:
        """Set the function that computes steps."""
        self._model.compute = compute

    def submit(self, key: str, ids: Sequence[int], max_new_tokens: int, *, namespace: str | None) -> None:
        """Add a request to SGLang.

        Args:
            key: its name; no key may begin with another one (SGLang's abort matches prefixes).
            ids: one number per prompt position. Requests with equal namespaces share the K and V of equal prefixes.
            max_new_tokens: an upper bound that SGLang plans with.
            namespace: see ``ids``.

        Raises:
            InvalidRequestError: SGLang rejects it; it is forgotten.
        """
        scheduler = self._scheduler
        sampling = SamplingParams(temperature=0.0, max_new_tokens=max_new_tokens)
        sampling.normalize(None)
        scheduler.handle_generate_request(
            TokenizedGenerateReqInput(
                rid=key,
                input_text="",
                input_ids=array("q", ids),
                input_embeds=None,
                mm_inputs=None,
                token_type_ids=None,
                sampling_params=sampling,
                return_logprob=False,
                logprob_start_len=-1,
                top_logprobs_num=0,
                token_ids_logprob=None,
                stream=False,
                extra_key=namespace,
            )
        )
        req = next(req for req in reversed(scheduler.waiting_queue) if req.rid == key)
        self._requests[key] = req
        if req.to_finish is not None:
            self.withdraw(key)
            raise InvalidRequestError(f"SGLang rejects the request: {req.to_finish.message}")

    def withdraw(self, key: str) -> None:
        """Forget a request in any state, and free its memory. Idempotent."""
        req = self._requests.pop(key, None)
        if req is not None and key not in self._detached and not req.finished():
            self._take_back(req, keep=False)
        self._detached.discard(key)

    def knows(self, key: str) -> bool:
        return key in self._requests

    def detach(self, key: str, *, keep: bool) -> None:
        """Detach a request from SGLang; ``keep`` leaves its K and V in the radix cache while there is room."""
        self._take_back(self._requests[key], keep=keep)
        self._detached.add(key)

    def detach_waiting(self) -> list[str]:
        """Detach every request that has not begun."""
        keys = [req.rid for req in self._scheduler.waiting_queue]
        self._scheduler.waiting_queue = []
        self._detached.update(keys)
        return keys

    def attach(self, key: str) -> None:
        """Add a detached request to SGLang again; it waits, and the positions that are not in the radix cache are
        recomputed.
        """
        self._detached.discard(key)
        self._scheduler._add_request_to_queue(self._requests[key], is_retracted=True)

    def _take_back(self, req: Req, *, keep: bool) -> None:
        scheduler = self._scheduler
        if req in scheduler.waiting_queue:
            scheduler.waiting_queue.remove(req)
            return
        for batch in (scheduler.running_batch, scheduler.last_batch):
            if batch is not None and req in batch.reqs:
                batch.filter_batch(reqs_to_exclude=[req])
                batch.batch_is_full = False
        if scheduler.chunked_req is req:
            scheduler.chunked_req = None
        if req.kv.holds_kv:
            release_kv_cache(req, scheduler.tree_cache, checkpoint=keep)
        req.reset_for_retract()

    def step(self) -> Outcome:
        """Plan and compute one batch. Never raises an exception of ``compute``: see :class:`Outcome`."""
        scheduler = self._scheduler
        begun = {req.rid for req in self._inside()}
        plan = scheduler.get_next_batch_to_run(running_batch=scheduler.running_batch, last_batch=scheduler.last_batch)
        scheduler.running_batch, batch = plan.running_batch, plan.batch_to_run
        self.retractions += sum(req.rid in begun for req in scheduler.waiting_queue)
        if batch is None:
            scheduler.last_batch = None
            return Outcome([], {}, None, self._given_up())
        keys = [req.rid for req in batch.reqs]
        try:
            result = scheduler.run_batch(batch)
        except BaseException as error:
            self._drop(batch)
            return Outcome(keys, {}, error, self._given_up())
        chosen, self._model.chosen = self._model.chosen, {}
        for req in batch.reqs:
            if req.rid in chosen and chosen[req.rid].last:
                req.to_finish = FINISH_LENGTH(length=len(req.output_ids) + 1)
        scheduler.process_batch_result(batch, result)
        scheduler.last_batch = batch
        given_up = {
            req.rid: "no room for another token"
            for req in batch.reqs
            if req.finished() and not (req.rid in chosen and chosen[req.rid].last)
        }
        return Outcome(keys, chosen, None, {**given_up, **self._given_up()})

    def _drop(self, batch: ScheduleBatch) -> None:
        """Release the memory of a batch whose computation failed, and detach its requests."""
        scheduler = self._scheduler
        scheduler.last_batch = batch
        for req in list(batch.reqs):
            self.detach(req.rid, keep=False)
        scheduler.last_batch = None

    def _given_up(self) -> dict[str, str]:
        replies = self._scheduler.replies
        reasons, replies.aborts = replies.aborts, {}
        return {key: reason for key, reason in reasons.items() if key in self._requests}

    def rest(self) -> str | None:
        """Do SGLang's housekeeping before a pause: it checks its pools and resets its estimates. Returns the memory
        that it misses.
        """
        try:
            self._scheduler.on_idle()
        except ValueError as lost:
            return str(lost)
        return None

    @property
    def running(self) -> int:
        return len({req.rid for req in self._inside()})

    @property
    def waiting(self) -> int:
        return len(self._scheduler.waiting_queue)

    @property
    def oldest_waiting(self) -> str | None:
        queue = self._scheduler.waiting_queue
        return queue[0].rid if queue else None

    def _inside(self) -> Iterable[Req]:
        scheduler = self._scheduler
        for batch in (scheduler.running_batch, scheduler.last_batch):
            if batch is not None:
                yield from (req for req in batch.reqs if not req.finished())
        if scheduler.chunked_req is not None:
            yield scheduler.chunked_req

    @property
    def total_tokens(self) -> int:
        return int(self._scheduler.max_total_num_tokens)

    @property
    def free_tokens(self) -> int:
        """Positions of the pool that no live request holds: free ones, and those that only the radix cache holds."""
        scheduler = self._scheduler
        return int(scheduler.token_to_kv_pool_allocator.available_size() + scheduler.tree_cache.evictable_size())

    def cached_tokens(self, key: str) -> int:
        """Return the number of a request's prompt positions that were found in the radix cache."""
        return int(self._requests[key].cached_tokens)

    def flush_cache(self) -> None:
        """Empty the radix cache. May be called only while no request waits or runs."""
        self._scheduler.flush_cache()

    def close(self) -> None:
        """Release SGLang's globals, so that the process can hold another one. Idempotent."""
        release(self)
