"""Stand-in for an engine, used by :class:`omni_testing.ModelRunnerConformance`: batches, a plain cache, and undoing a failed step.

Everything is done the slow and obvious way, one request after the other, so that a difference is the runner's doing.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, field

from omni_core.api import ARRequest, ForwardBatch, IncomingMessage, ModelRunner
from omni_torch.engine.key_values import KeyValues
from omni_torch.runners.model_runner import ARModelRunner

STEPS = 10_000
"""Steps after which a request that has not ended counts as never ending."""


@define(eq=False)
class Answer:
    """Everything that a request got: ``(type, target, data)`` of its messages in order, and its end."""

    messages: list[tuple[str, str | None, Any]] = field(factory=list)
    token_ids: list[int] = field(factory=list)
    fed: list[torch.Tensor] = field(factory=list)
    finish_reason: str | None = None
    result: Any = None
    error: BaseException | None = None


class Driver:
    """Runs requests on a runner as a scheduler would, in one thread.

    Args:
        part: prompt positions computed in one step; ``None`` for all at once.
        watch: called with every batch right before it is executed.
    """

    def __init__(
        self, runner: ModelRunner, part: int | None = None, watch: Callable[[ForwardBatch], None] | None = None
    ) -> None:
        self.runner = runner
        self._part, self._watch = part, watch
        self.answers: dict[str, Answer] = {}
        self.requests: dict[str, ARRequest] = {}
        self._caches: dict[str, list[tuple[torch.Tensor, torch.Tensor]]] = {}
        self._kept: dict[str, torch.Tensor] = {}
        if isinstance(runner, ARModelRunner) and runner.hands_over:
            runner.exporter = self._export

    def give(self, message: IncomingMessage) -> ARRequest | None:
        """Hand a message to the runner; what it raises ends the request."""
        name = message.request_id
        answer = self.answers.setdefault(name, Answer())
        if answer.error is not None or answer.finish_reason is not None:
            return None
        try:
            request = self.runner.receive(message)
            if request is not None:
                self.requests[name] = request
                self._begin(request)
                if request.finish_reason is not None:
                    self._finish(request)
        except BaseException as error:
            self._fail(name, error)
            return None
        return request

    def run(self) -> None:
        """Step until every request has ended."""
        for _ in range(STEPS):
            if not self.step():
                assert not self.requests, f"nothing can be computed, and {sorted(self.requests)} have not ended"
                return
        raise AssertionError(f"{sorted(self.requests)} have not ended after {STEPS} steps")

    def step(self) -> bool:
        """One step of everything that can be computed; whether there was something."""
        able = [(request, count) for request in self.requests.values() if (count := self._count(request))]
        if able:
            self._execute(able)
        return bool(able)

    def forget(self, request_id: str) -> None:
        """Release a request that ended or was aborted, as a scheduler does. ``request_id`` may be unknown to the runner."""
        self.requests.pop(request_id, None)
        self._caches.pop(request_id, None)
        self._kept.pop(request_id, None)
        self.runner.release(request_id)

    def preempt(self, request_id: str) -> None:
        """Take a request's cache away: all its positions are computed again."""
        self._caches.pop(request_id, None)
        self._begin(self.requests[request_id])

    def _begin(self, request: ARRequest) -> None:
        """Start a request before its first position, or behind those whose keys and values it brings."""
        hands_over = isinstance(self.runner, ARModelRunner) and self.runner.hands_over
        given = self.runner.past_key_values(request) if hands_over else None  # type: ignore[attr-defined]
        request.computed = 0 if given is None else given.positions
        if given is not None:
            self._caches[request.request_id] = list(zip(given.keys, given.values, strict=True))
            if given.hidden is not None:
                self._kept[request.request_id] = given.hidden

    def _export(self, runner: ARModelRunner, request: ARRequest) -> KeyValues:
        """See :meth:`ARModelRunner.export_key_values`."""
        count, layers = request.computed, self._caches[request.request_id]
        keys, values = (torch.stack([layer[which][:count] for layer in layers]) for which in (0, 1))
        ids = (request.prompt_ids + request.output_ids)[:count]
        hidden = self._kept[request.request_id][:count] if runner.exports_hidden else None
        return KeyValues(keys, values, ids, count + request.position_delta, hidden)

    def _count(self, request: ARRequest) -> int:
        left = request.length - request.computed
        count = left if self._part is None else min(left, self._part)
        newest = count == left and request.output_ids
        return 0 if newest and not self.runner.can_step(request) else count

    def _execute(self, work: list[tuple[ARRequest, int]]) -> None:
        """Run a batch. If it fails, its requests run one by one, so that only the guilty one fails."""
        before = [(request, len(request.output_ids), len(request.output_embeds)) for request, _ in work]
        batch = self.batch(work)
        if self._watch is not None:
            self._watch(batch)
        try:
            sampled = self.runner.execute(batch)
        except AssertionError:
            raise  # of the test that watches
        except BaseException as error:
            for request, outputs, fed in before:
                del request.output_ids[outputs:], request.output_embeds[fed:]
                request.finish_reason = None
            if len(work) == 1:
                self._fail(work[0][0].request_id, error)
            else:
                for each in work:
                    self._execute([each])
            return
        for request, count in work:
            request.computed += count
        for request, token in sampled:
            self._hand_out(request, token)

    def batch(self, work: Sequence[tuple[ARRequest, int]]) -> ForwardBatch:
        """A batch of ``(request, positions)``, on the runner's device."""
        requests, lengths = [request for request, _ in work], [count for _, count in work]
        starts = [request.computed for request in requests]
        ends = [start + count for start, count in zip(starts, lengths, strict=True)]
        ids = [(r.prompt_ids + r.output_ids)[start:end] for r, start, end in zip(requests, starts, ends, strict=True)]
        positions = [_positions(r, start, end) for r, start, end in zip(requests, starts, ends, strict=True)]
        if any(each.dim() == 2 for each in positions):
            positions = [each if each.dim() == 2 else each.expand(3, -1) for each in positions]
        sampled = [index for index, request in enumerate(requests) if ends[index] == request.length]
        last_rows = torch.tensor(lengths).cumsum(0) - 1
        device = self.runner.device

        def keep(rows: torch.Tensor) -> None:
            for request, start, new in zip(requests, starts, torch.split(rows, lengths), strict=True):
                self._kept[request.request_id] = torch.cat([self._kept.get(request.request_id, new)[:start], new])

        return ForwardBatch(
            requests=requests,
            starts=starts,
            lengths=lengths,
            input_ids=torch.tensor([token for each in ids for token in each], device=device),
            input_embeds=None,
            positions=torch.cat(positions, dim=-1).to(device),
            attention=PlainAttention([self._caches.setdefault(r.request_id, []) for r in requests], starts, lengths),
            sample_rows=last_rows[sampled].to(device),
            sampled=sampled,
            keep=keep if self.runner.kept_width else None,
        )

    def _hand_out(self, request: ARRequest, token: int) -> None:
        try:
            for message in self.runner.emit(request, token):
                self.answers[message.request_id].messages.append((message.type, message.target, message.data))
            if request.finish_reason is not None:
                self._finish(request)
        except BaseException as error:
            self._fail(request.request_id, error)

    def _finish(self, request: ARRequest) -> None:
        answer = self.answers[request.request_id]
        answer.result = self.runner.result(request)
        answer.token_ids, answer.fed = list(request.output_ids), list(request.output_embeds)
        answer.finish_reason = request.finish_reason
        self.forget(request.request_id)

    def _fail(self, request_id: str, error: BaseException) -> None:
        self.answers[request_id].error = error
        self.forget(request_id)


class PlainAttention:
    """Causal attention over caches that are whole tensors, request by request. A :class:`~omni_core.model_runner.PagedAttention`."""

    def __init__(
        self, caches: list[list[tuple[torch.Tensor, torch.Tensor]]], starts: list[int], lengths: list[int]
    ) -> None:
        self._caches, self._starts, self._lengths = caches, starts, lengths

    def __call__(
        self, layer: int, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scale: float | None = None
    ) -> torch.Tensor:
        rows = [torch.split(each, self._lengths) for each in (query, key, value)]
        pieces = zip(self._caches, self._starts, *rows, strict=True)
        return torch.cat([_attend(cache, layer, start, q, k, v, scale) for cache, start, q, k, v in pieces])


def _attend(
    cache: list[tuple[torch.Tensor, torch.Tensor]],
    layer: int,
    start: int,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float | None,
) -> torch.Tensor:
    """``[length, heads, head_dim]`` for one request's new positions, whose K and V are put into its cache."""
    if layer == len(cache):
        cache.append((key[:0], value[:0]))
    # A step that failed and is repeated finds what it has left behind its start, and replaces it.
    keys, values = torch.cat([cache[layer][0][:start], key]), torch.cat([cache[layer][1][:start], value])
    cache[layer] = keys, values
    seen = torch.ones(len(query), len(keys), dtype=torch.bool, device=query.device).tril(start)
    q, k, v = (each.transpose(0, 1).unsqueeze(0) for each in (query, keys, values))
    return F.scaled_dot_product_attention(q, k, v, seen, scale=scale, enable_gqa=True)[0].transpose(0, 1)


def _positions(request: ARRequest, start: int, end: int) -> torch.Tensor:
    """Rotary positions of a run: ``[n]`` or ``[3, n]``."""
    prompt, given = len(request.prompt_ids), request.prompt_positions
    head = torch.arange(prompt) if given is None else given.cpu()
    tail = torch.arange(prompt, request.length) + request.position_delta
    return torch.cat([head, tail.expand(*head.shape[:-1], -1)], dim=-1)[..., start:end]


def remembers(owner: Any, request_id: str) -> str | None:
    """Return where an object still holds a request's id or the request itself, as a path; ``None`` if nowhere.

    Looks through attributes and containers, not into modules of weights.
    """
    seen: set[int] = set()
    todo: list[tuple[str, Any]] = [(type(owner).__name__, owner)]
    while todo:
        path, value = todo.pop()
        if value == request_id if isinstance(value, str) else isinstance(value, ARRequest):
            return path
        if id(value) in seen or isinstance(value, torch.Tensor | torch.nn.Module | ModuleType | type):
            continue
        seen.add(id(value))
        todo += _parts(path, value)
    return None


def _parts(path: str, value: Any) -> Iterable[tuple[str, Any]]:
    if isinstance(value, dict):
        for key, each in value.items():
            yield f"a key of {path}", key
            yield f"{path}[{key!r}]", each
    elif isinstance(value, list | tuple | set | frozenset | deque):
        yield from ((f"an item of {path}", each) for each in value)
    elif not callable(value):
        slots = [name for kind in type(value).__mro__ for name in getattr(kind, "__slots__", ())]
        names = {*getattr(value, "__dict__", ()), *slots}
        yield from ((f"{path}.{name}", getattr(value, name)) for name in sorted(names) if hasattr(value, name))
