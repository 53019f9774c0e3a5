"""The loop of an autoregressive stage: messages in, steps, messages out. A policy decides what a step computes.

A scheduler composes an :class:`AutoregressiveLoop` with its :class:`StepPolicy`, which owns the KV cache and the batching; the loop
owns the requests' lives: admission, failures, aborts, results.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable
from functools import partial
from typing import Protocol

import torch
from attrs import define, field

from omni_core.api import (
    ARRequest,
    ConfigError,
    Forward,
    ForwardBatch,
    IncomingMessage,
    InvalidRequestError,
    LoopScheduler,
    MessageQueue,
    ModelRunner,
    OutgoingMessage,
    take_pausing,
)
from omni_core.runtime_api import traceback_of

logger = logging.getLogger(__name__)


@define
class StepResult:
    """The outcome of a step: each sampled request with its token, and the error of each request that failed, by id."""

    sampled: list[tuple[ARRequest, int]] = field(factory=list)
    failed: dict[str, BaseException] = field(factory=dict)


class StepPolicy(Protocol):
    """Decides which requests compute how many positions in a step, and where their keys and values are."""

    def admit(self, request: ARRequest) -> None:
        """Take a request whose prompt is neither empty nor longer than the context.

        Raises:
            InvalidRequestError: it will never fit.
        """
        ...

    def step(self) -> StepResult | None:
        """Compute a step; ``None`` if nothing can be computed before another message comes."""
        ...

    def remove(self, request_id: str, failed: bool) -> None:
        """Drop a request, if it is there. ``failed``: its keys and values may be wrong."""
        ...

    def forget(self) -> None:
        """Drop what is kept of ended requests for later ones, such as keys and values of equal beginnings."""
        ...


READY = {"constraint": "ready"}
"""The metadata of the message that admits a request whose constraint is made; in the inbox, because all ranks must admit it alike."""

FLUSH = IncomingMessage("", "stream_done", metadata={"flush": True})
"""Lets the policy forget what it keeps of ended requests; in the inbox, because all ranks of a stage must do it at the same place."""


class AutoregressiveLoop(LoopScheduler):
    """One thread that drives a runner's requests from their first message to their end; asleep while nothing can be computed.

    Args:
        runner: the model and its requests.
        policy: decides what a step computes; the scheduler that owns the loop, or an object that it keeps.
        max_context: positions that one request may reach; a longer prompt is an error, more output ends it with ``length``.

    Attributes:
        paused: requests whose outputs wait for a slow reader; a policy whose scheduler offers ``pause`` computes none of them.
        wake_in: seconds after which the loop takes a turn though no message comes, set by the policy in a step; ``None``: it sleeps on.

    Raises:
        ConfigError: the runner's model computes on another scheduler only, which it names in ``required_scheduler``; or the runner
            hands over keys and values, and the policy has no ``hands_over``.
    """

    def __init__(self, runner: ModelRunner, policy: StepPolicy, max_context: int) -> None:
        super().__init__()
        self._runner, self._max_context = runner, max_context
        # No strong reference: the cycle would keep a scheduler's KV cache until the next garbage collection.
        self._policy: StepPolicy = weakref.proxy(policy)
        self._requests: dict[str, ARRequest | None] = {}  # None: not yet schedulable
        self._constrained: dict[str, ARRequest] = {}  # those of which the constraint is being made
        self.paused: set[str] = set()
        self.wake_in: float | None = None
        self._holding: set[str] = set()  # requests whose streams wait
        required = getattr(runner.model, "required_scheduler", None)
        if required not in (None, *(f"{kind.__module__}:{kind.__qualname__}" for kind in type(policy).__mro__)):
            raise ConfigError(
                f"scheduler: {type(runner.model).__name__} computes on {required} only, not on {type(policy).__name__}"
            )
        if getattr(runner, "hands_over", False) and not getattr(policy, "hands_over", False):
            raise ConfigError(
                f"scheduler: {type(runner).__name__} hands over keys and values, and {type(policy).__name__} cannot; `engine` can"
            )

    @property
    def pending(self) -> int:
        """The number of requests that have begun and not ended."""
        return len(self._requests)

    def start(self) -> None:
        """Serve until :meth:`stop`."""
        device = self._runner.device
        if (
            device.type == "cuda" and device.index is not None
        ):  # kernels start on a thread's current device, which else is 0
            torch.cuda.set_device(device)
        with torch.inference_mode():
            super().start()

    def turn(self) -> bool:
        """Take all messages and compute a step; or sleep until a message comes or it is time. ``False`` after :meth:`stop`."""
        if self.inbox.closed:
            return False
        for message in self.inbox.drain():
            self._receive(message)
        self.drop_aborted()
        result = self._policy.step()
        if result is None:
            following = self.inbox.get(self.wake_in)
            if following is not None:
                self._receive(following)
            return following is not None or self.wake_in is not None
        while result.failed:  # no local refers to an error: its traceback refers to this frame
            self._fail(*result.failed.popitem())
        for request, token in result.sampled:
            if request.request_id in self._requests:
                self._emit(request, token)
        return True

    def _receive(self, message: IncomingMessage) -> None:
        name = message.request_id
        if not name and message.metadata == FLUSH.metadata:
            self._policy.forget()
        if not name or self.is_aborted(name):
            take_pausing(message, self.paused)
            return
        if message.metadata == READY and name not in self._constrained:
            return
        running = self._requests.setdefault(name, None)
        try:
            if message.metadata == READY:
                self._admit_constrained(self._constrained.pop(name))
                return
            request = self._runner.receive(message)
            if request is None:
                if running is not None:
                    self._check_continuation(running)
                    self._regulate(running)
            elif request.finish_reason is not None:
                self._finish(request)
            else:
                self._check_prompt(request)
                if request.constraint is not None:
                    self._constrained[name] = request
                    ready = IncomingMessage(name, "stream_chunk", metadata=dict(READY))
                    request.constraint.when_ready(partial(self.inbox.put, ready))
                    return
                self._policy.admit(request)
                self._requests[name] = request
        except BaseException as error:
            self._fail(name, error)

    def _admit_constrained(self, request: ARRequest) -> None:
        assert request.constraint is not None
        request.constraint.check()
        self._policy.admit(request)
        self._requests[request.request_id] = request

    def _emit(self, request: ARRequest, token: int) -> None:
        """Stream a new token's messages; finish the request if it was its last."""
        if self.is_aborted(request.request_id):
            return  # dropped in the next turn
        try:
            for message in self._runner.emit(request, token):
                self.put_out(message)
            if request.finish_reason is not None:
                self._finish(request)
            elif not request.output_ids:  # its runner has extended it
                self._check_continuation(request)
                self._regulate(request)
        except BaseException as error:
            self._fail(request.request_id, error)

    def _regulate(self, request: ARRequest) -> None:
        """Let those who send a request's stream wait, or go on."""
        name = request.request_id
        if (held := self._runner.has_enough(request)) != (name in self._holding):
            (self._holding.add if held else self._holding.discard)(name)
            self.hold_input(name, held)

    def _check_prompt(self, request: ARRequest) -> None:
        prompt = len(request.prompt_ids)
        if prompt == 0:
            raise InvalidRequestError("the prompt is empty")
        if prompt >= self._max_context:
            raise InvalidRequestError(f"the prompt has {prompt} tokens; the context holds {self._max_context}")

    def _check_continuation(self, request: ARRequest) -> None:
        """A request whose runner has extended it must leave room for a token; any other has been ended before that."""
        if request.length >= self._max_context:
            raise InvalidRequestError(self._runner.does_not_fit(request, self._max_context))

    def _finish(self, request: ARRequest) -> None:
        result = OutgoingMessage(request.request_id, "result", self._runner.result(request))
        self.forget(request.request_id)
        self.put_out(result)

    def _fail(self, request_id: str, error: BaseException) -> None:
        self.forget(request_id, failed=True)
        self.put_out(OutgoingMessage(request_id, "error", error))

    def forget(self, request_id: str, failed: bool = False) -> None:
        self._policy.remove(request_id, failed)
        self._holding.discard(request_id)
        self._constrained.pop(request_id, None)
        if request_id in self._requests:
            del self._requests[request_id]
            try:
                self._runner.release(request_id)
            except BaseException as error:  # the request has ended either way; the others go on
                what = "releasing request %s failed; some of its state may remain\n%s"
                logger.error(what, request_id, traceback_of(error))


class LoopedScheduler:
    """The scheduler contract, delegated to ``self.loop``: the base of schedulers that compose an :class:`AutoregressiveLoop`."""

    loop: AutoregressiveLoop

    @property
    def inbox(self) -> MessageQueue[IncomingMessage]:
        """The loop's inbox. A tensor parallel stage replaces it by one that its ranks share."""
        return self.loop.inbox

    @inbox.setter
    def inbox(self, inbox: MessageQueue[IncomingMessage]) -> None:
        self.loop.inbox = inbox

    @property
    def outbox(self) -> MessageQueue[OutgoingMessage]:
        """The loop's outbox. A tensor parallel stage replaces it by one that reports failures to its ranks."""
        return self.loop.outbox

    @outbox.setter
    def outbox(self, outbox: MessageQueue[OutgoingMessage]) -> None:
        self.loop.outbox = outbox

    @property
    def around_turn(self) -> Callable[[Callable[[], bool]], bool] | None:
        """See :class:`~omni_core.scheduling.loop.LoopScheduler`."""
        return self.loop.around_turn

    @around_turn.setter
    def around_turn(self, around: Callable[[Callable[[], bool]], bool] | None) -> None:
        self.loop.around_turn = around

    @property
    def hold_input(self) -> Callable[[str, bool], None]:
        """See :class:`~omni_core.scheduling.base.Scheduler`."""
        return self.loop.hold_input

    @hold_input.setter
    def hold_input(self, hold: Callable[[str, bool], None]) -> None:
        self.loop.hold_input = hold

    def start(self) -> None:
        """See :meth:`AutoregressiveLoop.start`."""
        self.loop.start()

    def stop(self) -> None:
        """See :meth:`AutoregressiveLoop.stop`."""
        self.loop.stop()

    def abort(self, request_id: str) -> None:
        """See :meth:`AutoregressiveLoop.abort`."""
        self.loop.abort(request_id)

    def flush_caches(self) -> None:
        """Let the policy forget what it keeps of ended requests, before the next message is taken in. From any thread."""
        self.inbox.put(FLUSH)

    def forget(self) -> None:
        """See :class:`StepPolicy`. By default nothing is kept."""


def run_batch(
    runner: ModelRunner, batch: ForwardBatch, max_context: int, forward: Forward | None = None
) -> list[tuple[ARRequest, int]]:
    """Execute a batch for a policy; return the chosen tokens. If it raises, its requests are restored to what they were before.

    A request that reaches ``max_context`` is finished with ``length``.
    """
    before = [(each, len(each.output_ids), len(each.output_embeds), len(each.logprobs)) for each in batch.requests]
    try:
        sampled = runner.execute(batch, forward)
    except BaseException:
        for request, outputs, embeds, logprobs in before:
            del request.output_ids[outputs:], request.output_embeds[embeds:], request.logprobs[logprobs:]
            request.finish_reason = None
        raise
    for request, _ in sampled:
        if request.finish_reason is None and request.length >= max_context:
            request.finish_reason = "length"
    return sampled
