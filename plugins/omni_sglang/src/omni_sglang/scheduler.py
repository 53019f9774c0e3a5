"""``OmniScheduler``: the contract of a stage's scheduler on SGLang's own. SGLang batches; messages, requests and streams are ours."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any

import torch
from attrs import define

from omni_core.errors import ConfigError, InvalidRequestError
from omni_core.model_runner.base import ModelRunner
from omni_core.model_runner.feedback import FeedbackARModelRunner
from omni_core.model_runner.types import ARRequest, ForwardBatch
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage
from omni_sglang.adapter import Chosen, Limits, ModelShape, Runtime, Step
from omni_sglang.packing import input_ids, rotary_positions
from omni_sglang.qwen3_moe import Qwen3MoeDecoder

logger = logging.getLogger(__name__)

_WAKE = IncomingMessage("", "stream_done")


@define(eq=False)
class _Entry:
    """A request and the name that SGLang knows it by."""

    key: str
    request: ARRequest


class OmniScheduler:
    """The ``Scheduler`` contract for autoregressive stages, on any :class:`ModelRunner`, driven by SGLang's scheduler.

    Args:
        runner: the model and what its requests are.
        max_running: requests computed together.
        max_batch_tokens: prompt positions computed in one step, over all requests.
        chunk_size: positions of one prompt computed in one step.
        block_size: positions per page of the cache.
        kv_cache_mb: the cache's size in MiB, all layers together; it never grows.
        kv_blocks: the cache's size in pages instead.
        max_context: positions that one request may reach; more prompt is an error, more output ends it with ``length``.
        server_args: fields of SGLang's ``ServerArgs`` to set, such as ``{"schedule_policy": "lpm"}``.

    Raises:
        ConfigError: there is another one in this process, or the model's ``kv_layout`` does not say its query heads.
    """

    def __init__(
        self,
        runner: ModelRunner,
        *,
        max_running: int = 32,
        max_batch_tokens: int = 2048,
        chunk_size: int = 512,
        block_size: int = 1,
        kv_cache_mb: int = 512,
        kv_blocks: int | None = None,
        max_context: int = 32768,
        server_args: dict[str, Any] | None = None,
    ) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()
        self._runner = runner
        self._fed_back = isinstance(runner, FeedbackARModelRunner)
        self._max_context = max_context
        layout, model = runner.model.kv_layout, runner.model
        if not layout.heads:
            raise ConfigError(
                f"{type(model).__name__}.kv_layout.heads: unset; SGLang must know the number of query heads before it starts"
            )
        position_bytes = 2 * layout.layers * layout.kv_heads * layout.head_dim * layout.dtype.itemsize
        if kv_blocks is None:
            wanted = kv_cache_mb * 2**20 // (position_bytes * block_size)
            kv_blocks = max(1, min(wanted, max_running * -(-max_context // block_size)))
        shape = ModelShape(
            layers=layout.layers,
            heads=layout.heads,
            kv_heads=layout.kv_heads,
            head_dim=layout.head_dim,
            hidden_size=model.hidden_size,
            vocab_size=model.vocab_size,
            dtype=layout.dtype,
        )
        limits = Limits(
            max_running=max_running,
            max_batch_tokens=max_batch_tokens,
            chunk_size=chunk_size,
            page_size=block_size,
            tokens=kv_blocks * block_size,
            max_context=max_context,
        )
        self.runtime = Runtime(shape, limits, runner.device, **(server_args or {}))
        if isinstance(model, Qwen3MoeDecoder):
            model.build()
        self._keys = (f"{number:016d}" for number in count())
        self._entries: dict[str, _Entry] = {}
        self._by_key: dict[str, _Entry] = {}
        self._sampled: list[tuple[ARRequest, int]] = []
        self._parked: dict[str, _Entry] = {}
        self._suspects: deque[str] = deque()
        self._suspect: str | None = None
        self._held: deque[str] = deque()
        self._known: set[str] = set()
        self._aborted: set[str] = set()
        self._lock = threading.Lock()
        self._refused_in_a_row = 0
        self.steps = 0
        self.tokens = 0

    # --- the scheduler contract --------------------------------------------------------------------------------------
    def start(self) -> None:
        self.runtime.connect(self._compute)
        if self._runner.device.type == "cuda":  # SGLang set it in the thread that made it, and a thread has its own
            torch.cuda.set_device(self._runner.device)
        try:
            with torch.inference_mode():
                while self._serve_once():
                    continue
        finally:
            self.runtime.close()

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)
        with self._lock:
            self._aborted.add(request_id)
        self.inbox.put(_WAKE)

    def statistics(self) -> dict[str, float]:
        return {
            "free_tokens": float(self.runtime.free_tokens),
            "total_tokens": float(self.runtime.total_tokens),
            "running": float(self.runtime.running),
            "waiting": float(self.runtime.waiting + len(self._suspects) + len(self._held)),
            "parked": float(len(self._parked)),
            "pending": float(len(self._known)),
            "preemptions": float(self.runtime.retractions),
            "steps": float(self.steps),
            "tokens": float(self.tokens),
        }

    # --- the loop ----------------------------------------------------------------------------------------------------
    def _serve_once(self) -> bool:
        """One turn: take messages in, let SGLang compute a batch, hand out; or sleep until a message comes. ``False`` at the end."""
        if self.inbox.closed:
            return False
        for message in self.inbox.drain():
            self._take(message)
        self._drop_aborted()
        self._wake_parked()
        self._next_suspect()
        if self._step():
            return True
        if self._refuse_what_cannot_run():
            return True
        if (lost := self.runtime.rest()) is not None:
            logger.error("SGLang misses memory that no request holds: %s", lost)
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
        prompt, capacity = len(request.prompt_ids), self.runtime.total_tokens
        if prompt == 0:
            raise InvalidRequestError("the prompt is empty")
        if prompt >= self._max_context:
            raise InvalidRequestError(f"the prompt has {prompt} tokens; the context holds {self._max_context}")
        if prompt + 2 > capacity:
            raise InvalidRequestError(
                f"the prompt has {prompt} tokens; the KV cache of this stage holds {capacity} (raise kv_cache_mb)"
            )
        entry = _Entry(next(self._keys), request)
        self._entries[request.request_id] = self._by_key[entry.key] = entry
        if self._suspects or self._suspect is not None:
            self._held.append(entry.key)
        else:
            self._submit(entry)

    def _submit(self, entry: _Entry) -> None:
        request = entry.request
        # An embedding says more than its id: what was computed of one is of use to the request itself only, when it begins again.
        private = self._fed_back or request.prompt_embeds is not None or request.prompt_positions is not None
        self.runtime.submit(
            entry.key,
            [max(token, 0) for token in request.prompt_ids],
            request.sampling.max_new_tokens,
            namespace=entry.key if private else None,
        )

    # --- a step ------------------------------------------------------------------------------------------------------
    def _step(self) -> bool:
        """Let SGLang compute a batch; ``False`` if it has none."""
        outcome = self.runtime.step()
        for key, reason in outcome.given_up.items():
            self._give_up(self._by_key[key], reason)
        if outcome.error is not None:
            self._isolate([key for key in outcome.keys if key in self._by_key], outcome.error)
            return True
        if not outcome.keys:
            return bool(outcome.given_up)
        self.steps += 1
        self._refused_in_a_row = 0
        if self._suspect in outcome.chosen:
            self._suspect = None
        sampled, self._sampled = self._sampled, []
        for request, token in sampled:
            self.tokens += 1
            if request.request_id in self._entries:
                self._hand_out(request, token)
        return True

    def _compute(self, step: Step) -> dict[str, Chosen]:
        """SGLang's model: one step of the runner. What it raises ends the batch; see :meth:`_isolate`."""
        requests = [self._by_key[key].request for key in step.keys]
        before = [(request, len(request.output_ids), len(request.output_embeds)) for request in requests]
        self._sampled = []
        try:
            sampled = self._runner.execute(self._batch(step, requests))
        except BaseException:
            for request, outputs, embeds in before:
                del request.output_ids[outputs:], request.output_embeds[embeds:]
                request.finish_reason = None
            raise
        for request, length in zip(requests, step.lengths, strict=True):
            request.computed += length
        for request, _ in sampled:
            if request.finish_reason is None and request.length >= self._max_context:
                request.finish_reason = "length"
        self._sampled = sampled
        return {
            self._entries[request.request_id].key: Chosen(token, request.finish_reason is not None)
            for request, token in sampled
        }

    def _batch(self, step: Step, requests: list[ARRequest]) -> ForwardBatch:
        """Pack the step's positions."""
        ids: list[int] = []
        positions, sample_rows, sampled = [], [], []
        for index, (request, start, length) in enumerate(zip(requests, step.starts, step.lengths, strict=True)):
            request.computed = start
            ids.extend(input_ids(request, start, length))
            positions.append(rotary_positions(request, start, length))
            if start + length == request.length:
                sampled.append(index)
                sample_rows.append(len(ids) - 1)
        if any(each.dim() == 2 for each in positions):
            positions = [each if each.dim() == 2 else each.expand(3, -1) for each in positions]
        device = self._runner.device
        return ForwardBatch(
            requests=requests,
            starts=step.starts,
            lengths=step.lengths,
            input_ids=torch.tensor(ids, device=device),
            input_embeds=None,
            positions=torch.cat(positions, dim=-1).to(device),
            attention=step.attention,
            sample_rows=torch.tensor(sample_rows, dtype=torch.int64, device=device),
            sampled=sampled,
        )

    def _hand_out(self, request: ARRequest, token: int) -> None:
        """Stream a new token's messages; finish the request if it was its last, or park it if its next input is not there."""
        with self._lock:
            if request.request_id in self._aborted:
                return  # dropped at the next turn; nobody reads what it says
        entry = self._entries[request.request_id]
        try:
            for message in self._runner.emit(request, token):
                self.outbox.put(message)
            if request.finish_reason is not None:
                self._finish(request)
            elif not self._runner.can_step(request):
                self.runtime.detach(entry.key, keep=True)
                self._parked[request.request_id] = entry
        except BaseException as error:
            self._fail(request.request_id, error)

    def _wake_parked(self) -> None:
        for request_id, entry in list(self._parked.items()):
            try:
                if self._runner.can_step(entry.request):
                    del self._parked[request_id]
                    self._resume(entry.key)
            except BaseException as error:
                self._fail(request_id, error)

    def _resume(self, key: str) -> None:
        if self._suspects or self._suspect is not None:
            self._held.append(key)
        else:
            self.runtime.attach(key)

    # --- a batch that failed -----------------------------------------------------------------------------------------
    def _isolate(self, keys: Sequence[str], error: BaseException) -> None:
        """Find out whose fault it was: the requests of the batch begin again, one by one, and nobody else begins meanwhile.

        Each computes everything again that it has, so the fault shows in a batch of its own.
        """
        if len(keys) == 1:
            if self._suspect == keys[0]:
                self._suspect = None
            self._fail(self._by_key[keys[0]].request.request_id, error)
            return
        logger.warning("a batch of %d failed (%s); its requests run alone", len(keys), error)
        self._suspect = None
        self._suspects.extend(keys)
        self._held.extend(self.runtime.detach_waiting())

    def _next_suspect(self) -> None:
        """One suspect at a time; when there are none left, those who had to wait for that."""
        if self._suspect is not None:
            return
        if self._suspects:
            self._suspect = self._suspects.popleft()
            self.runtime.attach(self._suspect)
            return
        while self._held:
            key = self._held.popleft()
            entry = self._by_key[key]
            try:
                if self.runtime.knows(key):
                    self.runtime.attach(key)
                else:
                    self._submit(entry)
            except BaseException as error:
                self._fail(entry.request.request_id, error)

    def _refuse_what_cannot_run(self) -> bool:
        """When SGLang twice plans nothing while nothing runs, its oldest waiting request is why, and stays so."""
        key = self.runtime.oldest_waiting
        if key is None:
            return False
        self._refused_in_a_row += 1
        if self._refused_in_a_row > 2:
            self._refused_in_a_row = 0
            self._give_up(self._by_key[key], "no room to begin")
        return True

    def _give_up(self, entry: _Entry, reason: str) -> None:
        message = (
            f"the request has grown to {entry.request.length} tokens; the KV cache of this stage holds "
            f"{self.runtime.total_tokens} (raise kv_cache_mb, or lower max_new_tokens); SGLang says: {reason}"
        )
        self._fail(entry.request.request_id, InvalidRequestError(message))

    # --- ends --------------------------------------------------------------------------------------------------------
    def _finish(self, request: ARRequest) -> None:
        result = OutgoingMessage(request.request_id, "result", self._runner.result(request))
        self._forget(request.request_id)
        self.outbox.put(result)

    def _fail(self, request_id: str, error: BaseException) -> None:
        self._forget(request_id)
        with self._lock:
            if request_id in self._aborted:
                return
        self.outbox.put(OutgoingMessage(request_id, "error", error))

    def _drop_aborted(self) -> None:
        with self._lock:
            aborted, self._aborted = self._aborted, set()
        for request_id in aborted:
            self._forget(request_id)

    def _forget(self, request_id: str) -> None:
        entry = self._entries.pop(request_id, None)
        if entry is not None:
            self._forget_entry(entry)
        if request_id in self._known:
            self._known.discard(request_id)
            try:
                self._runner.release(request_id)
            except BaseException:  # the request has ended either way; the others go on
                logger.exception("releasing request %s failed; some of its state may remain", request_id)

    def _forget_entry(self, entry: _Entry) -> None:
        key = entry.key
        del self._by_key[key]
        self._parked.pop(entry.request.request_id, None)
        for line in (self._suspects, self._held):
            if key in line:
                line.remove(key)
        if self._suspect == key:
            self._suspect = None
        self.runtime.withdraw(key)
