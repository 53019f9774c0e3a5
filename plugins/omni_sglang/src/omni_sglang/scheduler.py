"""``OmniScheduler``: a stage's scheduler on SGLang's own. SGLang batches; messages, requests and streams are ours."""

from __future__ import annotations

import logging
from collections import deque
from collections.abc import Sequence
from itertools import count
from typing import Any

from attrs import define

from omni_core.api import ARRequest, ConfigError, InvalidRequestError, ModelRunner
from omni_sglang.adapter.local_scheduler import Limits, ModelShape
from omni_sglang.adapter.model import Chosen, Step
from omni_sglang.adapter.runtime import Runtime
from omni_sglang.qwen3_moe import Qwen3MoeDecoder
from omni_torch.api import (
    AutoregressiveLoop,
    FeedbackARModelRunner,
    LoopedScheduler,
    StepResult,
    packed_batch,
    run_batch,
)

logger = logging.getLogger(__name__)


@define(eq=False)
class _Entry:
    """A request and its key in SGLang."""

    key: str
    request: ARRequest


class OmniScheduler(LoopedScheduler):
    """The ``Scheduler`` contract for autoregressive stages, on any :class:`ModelRunner`: an :class:`AutoregressiveLoop` whose
    policy is SGLang's scheduler.

    Args:
        runner: the model and its requests' state.
        max_running: requests computed together.
        max_batch_tokens: prompt positions computed in one step, over all requests.
        chunk_size: positions of one prompt computed in one step.
        block_size: positions per page of the cache.
        kv_cache_mb: the cache's size in MiB, all layers together; it never grows.
        kv_blocks: the cache's size in pages instead.
        max_context: the most positions of one request; a longer prompt is an error, longer output ends with ``length``. By default
            the runner's, and 32768 if it has none.
        server_args: fields of SGLang's ``ServerArgs`` to set, such as ``{"schedule_policy": "lpm"}``.

    Raises:
        ConfigError: there is another one in this process, the model's ``kv_layout`` does not give its query heads, or
            a layer does not attend plainly.
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
        max_context: int | None = None,
        server_args: dict[str, Any] | None = None,
    ) -> None:
        if max_context is None:
            max_context = 32768 if runner.max_context is None else runner.max_context
        self._runner, self._max_context = runner, max_context
        self.loop = AutoregressiveLoop(runner, self, max_context)
        self._fed_back = isinstance(runner, FeedbackARModelRunner)
        layout, model = runner.model.kv_layout, runner.model
        if not layout.heads:
            raise ConfigError(
                f"{type(model).__name__}.kv_layout.heads: unset; SGLang must know the number of query heads before it starts"
            )
        if forms := layout.form_names:
            raise ConfigError(
                f"scheduler: {type(model).__name__} has {' and '.join(forms)}, and this one attends plainly; use `engine`"
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
        self._result = StepResult()
        self._given: list[str] = []  # requests that the last step gave a token
        self._parked: dict[str, _Entry] = {}
        self._suspects: deque[str] = deque()
        self._suspect: str | None = None
        self._held: deque[str] = deque()
        self._refused_in_a_row = 0
        self._forgets = False
        self.steps = 0
        self.tokens = 0

    def start(self) -> None:
        """See :meth:`AutoregressiveLoop.start`."""
        self.runtime.connect(self._compute)
        try:
            super().start()
        finally:
            self.runtime.close()

    def statistics(self) -> dict[str, float]:
        return {
            "free_tokens": float(self.runtime.free_tokens),
            "total_tokens": float(self.runtime.total_tokens),
            "running": float(self.runtime.running),
            "waiting": float(self.runtime.waiting + len(self._suspects) + len(self._held)),
            "parked": float(len(self._parked)),
            "pending": float(self.loop.pending),
            "preemptions": float(self.runtime.retractions),
            "steps": float(self.steps),
            "tokens": float(self.tokens),
        }

    def step(self) -> StepResult | None:
        """See :class:`omni_torch.loop.autoregressive.StepPolicy`."""
        self._result = StepResult()
        if self._forgets and not self.loop.pending:  # SGLang can do it only while nothing runs
            self._forgets = False
            self.runtime.flush_cache()
        self._park()
        self._wake_parked()
        self._next_suspect()
        if self._step() or self._refuse_what_cannot_run() or self._result.failed:
            return self._result
        if (lost := self.runtime.rest()) is not None:
            logger.error("SGLang reports leaked memory: %s", lost)
        return None

    def forget(self) -> None:
        """See :class:`omni_torch.loop.autoregressive.StepPolicy`. It is done when no request runs."""
        self._forgets = True

    def admit(self, request: ARRequest) -> None:
        """See :class:`omni_torch.loop.autoregressive.StepPolicy`."""
        prompt, capacity = len(request.prompt_ids), self.runtime.total_tokens
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
        # An id does not determine an embedding, so the K and V computed from one may be reused by the request itself
        # only, when it is restarted.
        private = self._fed_back or request.prompt_embeds is not None or request.prompt_positions is not None
        self.runtime.submit(
            entry.key,
            [max(token, 0) for token in request.prompt_ids],
            request.sampling.max_new_tokens,
            namespace=entry.key if private else None,
        )

    def _step(self) -> bool:
        """Compute a batch with SGLang; ``False`` if it has none."""
        outcome = self.runtime.step()
        for key, reason in outcome.given_up.items():
            self._give_up(self._by_key[key], reason)
        if outcome.error is not None:
            self._isolate([key for key in outcome.keys if self._lives(key)], outcome.error)
            return True
        if not outcome.keys:
            return bool(outcome.given_up)
        self.steps += 1
        self._refused_in_a_row = 0
        if self._suspect in outcome.chosen:
            self._suspect = None
        self._result.sampled, self._sampled = self._sampled, []
        self.tokens += len(self._result.sampled)
        self._given = [request.request_id for request, _ in self._result.sampled]
        return True

    def _lives(self, key: str) -> bool:
        entry = self._by_key.get(key)
        return entry is not None and entry.request.request_id not in self._result.failed

    def _compute(self, step: Step) -> dict[str, Chosen]:
        """Compute one step of the runner, as SGLang's model. An error ends the batch; see :meth:`_isolate`."""
        requests = [self._by_key[key].request for key in step.keys]
        for request, start in zip(requests, step.starts, strict=True):
            request.computed = start
        self._sampled = []
        batch = packed_batch(requests, step.starts, step.lengths, step.attention, self._runner.device)
        self._sampled = run_batch(self._runner, batch, self._max_context)
        for request, length in zip(requests, step.lengths, strict=True):
            request.computed += length
        return {
            self._entries[request.request_id].key: Chosen(token, request.finish_reason is not None)
            for request, token in self._sampled
        }

    def _park(self) -> None:
        """Detach the requests that the last step gave a token and whose next input has not arrived."""
        given, self._given = self._given, []
        for request_id in given:
            entry = self._entries.get(request_id)
            if entry is None or request_id in self._parked:
                continue
            try:
                if not self._runner.can_step(entry.request):
                    self.runtime.detach(entry.key, keep=True)
                    self._parked[request_id] = entry
            except BaseException as error:
                self._result.failed[request_id] = error

    def _wake_parked(self) -> None:
        for request_id, entry in list(self._parked.items()):
            try:
                if self._runner.can_step(entry.request):
                    del self._parked[request_id]
                    self._resume(entry.key)
            except BaseException as error:
                self._result.failed[request_id] = error

    def _resume(self, key: str) -> None:
        if self._suspects or self._suspect is not None:
            self._held.append(key)
        else:
            self.runtime.attach(key)

    def _isolate(self, keys: Sequence[str], error: BaseException) -> None:
        """Find the failing request: the requests of the batch are restarted one by one, and no other starts meanwhile.

        Each computes all its positions again, so the error is raised in a batch of its own.
        """
        if len(keys) == 1:
            if self._suspect == keys[0]:
                self._suspect = None
            self._result.failed[self._by_key[keys[0]].request.request_id] = error
            return
        logger.warning("a batch of %d failed (%s); its requests run alone", len(keys), error)
        self._suspect = None
        self._suspects.extend(keys)
        self._held.extend(self.runtime.detach_waiting())

    def _next_suspect(self) -> None:
        """Run one suspect at a time; when there are none left, resume the requests that were held back."""
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
                self._result.failed[entry.request.request_id] = error

    def _refuse_what_cannot_run(self) -> bool:
        """Fail SGLang's oldest waiting request after it has planned nothing three times while nothing runs."""
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
        self._result.failed[entry.request.request_id] = InvalidRequestError(message)

    def remove(self, request_id: str, failed: bool) -> None:
        """See :class:`omni_torch.loop.autoregressive.StepPolicy`."""
        entry = self._entries.pop(request_id, None)
        if entry is None:
            return
        key = entry.key
        del self._by_key[key]
        self._parked.pop(request_id, None)
        for line in (self._suspects, self._held):
            if key in line:
                line.remove(key)
        if self._suspect == key:
            self._suspect = None
        self.runtime.withdraw(key)
