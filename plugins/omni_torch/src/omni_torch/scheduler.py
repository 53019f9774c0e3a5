"""The base of autoregressive schedulers: a :class:`ModelRunner`'s requests from their first message to their end.

A subclass decides which requests compute how many positions, and where their keys and values are; the base owns the loop, the
messages, containment and aborts.
"""

from __future__ import annotations

import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from inspect import signature
from typing import Any

import torch

from omni_core.errors import ConfigError, InvalidRequestError, did_you_mean
from omni_core.model_runner.types import ARRequest, ForwardBatch
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage
from omni_torch.model_runner import ModelRunner

logger = logging.getLogger(__name__)

_WAKE = IncomingMessage("", "stream_done")


def check_options(scheduler: Callable[..., Any], options: Iterable[str]) -> None:
    """For a factory that hands options on: whether ``scheduler`` takes them. Before weights are read, which takes long.

    Raises:
        ConfigError: it takes no such option; the message names the nearest one.
    """
    _runner, *parameters = signature(scheduler).parameters.values()
    known = [each.name for each in parameters]
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return
    for name in options:
        if name not in known:
            raise ConfigError(
                f"factory_args.{name}: {scheduler.__name__} has no such option{did_you_mean(name, known)}"
            )


class AutoregressiveScheduler(ABC):
    """The ``Scheduler`` contract in one thread, asleep whenever nothing can be computed.

    Args:
        runner: the model and what its requests are.
        max_context: positions that one request may reach; more prompt is an error, more output ends it with ``length``.
    """

    def __init__(self, runner: ModelRunner, max_context: int) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()
        self._runner = runner
        self._max_context = max_context
        self._known: set[str] = set()
        self._aborted: set[str] = set()
        self._lock = threading.Lock()

    # --- what a subclass says ----------------------------------------------------------------------------------------
    @abstractmethod
    def _admit(self, request: ARRequest) -> None:
        """Take in a request whose prompt is neither empty nor longer than the context.

        Raises:
            InvalidRequestError: it will never fit.
        """

    @abstractmethod
    def _advance(self) -> bool:
        """Compute a step, if there is one: :meth:`_run` it, and :meth:`_hand_out` every token.

        Returns ``False`` if nothing can be computed before another message comes. What is raised for a request alone must
        end in :meth:`_fail`.
        """

    @abstractmethod
    def _remove(self, request_id: str, failed: bool) -> None:
        """Drop what is there of a request, if anything is."""

    def _go_on(self, request: ARRequest) -> None:  # noqa: B027 - optional hook
        """A token was handed out that was not the request's last."""

    # --- the scheduler contract --------------------------------------------------------------------------------------
    def start(self) -> None:
        if self._runner.device.type == "cuda":  # kernels start on the current device, and each thread has its own
            torch.cuda.set_device(self._runner.device)
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

    # --- the loop ----------------------------------------------------------------------------------------------------
    def _serve_once(self) -> bool:
        """One turn: take messages in and compute a step; or sleep until a message comes. ``False`` at the end."""
        if self.inbox.closed:
            return False
        for message in self.inbox.drain():
            self._take(message)
        self._drop_aborted()
        if self._advance():
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
                self._check(request)
                self._admit(request)
        except BaseException as error:
            self._fail(message.request_id, error)

    def _check(self, request: ARRequest) -> None:
        prompt = len(request.prompt_ids)
        if prompt == 0:
            raise InvalidRequestError("the prompt is empty")
        if prompt >= self._max_context:
            raise InvalidRequestError(f"the prompt has {prompt} tokens; the context holds {self._max_context}")

    def _run(self, batch: ForwardBatch) -> list[tuple[ARRequest, int]]:
        """Execute a batch: the chosen tokens. If it raises, the batch's requests are what they were before."""
        before = [(request, len(request.output_ids), len(request.output_embeds)) for request in batch.requests]
        try:
            sampled = self._runner.execute(batch)
        except BaseException:
            for request, outputs, embeds in before:
                del request.output_ids[outputs:], request.output_embeds[embeds:]
                request.finish_reason = None
            raise
        for request, _ in sampled:
            if request.finish_reason is None and request.length >= self._max_context:
                request.finish_reason = "length"
        return sampled

    def _hand_out(self, request: ARRequest, token: int) -> None:
        """Stream a new token's messages; finish the request if it was its last."""
        with self._lock:
            if request.request_id in self._aborted:
                return  # dropped at the next turn; nobody reads what it says
        try:
            for message in self._runner.emit(request, token):
                self.outbox.put(message)
            if request.finish_reason is not None:
                self._finish(request)
            else:
                self._go_on(request)
        except BaseException as error:
            self._fail(request.request_id, error)

    # --- ends --------------------------------------------------------------------------------------------------------
    def _finish(self, request: ARRequest) -> None:
        result = OutgoingMessage(request.request_id, "result", self._runner.result(request))
        self._forget(request.request_id)
        self.outbox.put(result)

    def _fail(self, request_id: str, error: BaseException) -> None:
        self._forget(request_id, failed=True)
        with self._lock:
            if request_id in self._aborted:
                return
        self.outbox.put(OutgoingMessage(request_id, "error", error))

    def _drop_aborted(self) -> None:
        with self._lock:
            aborted, self._aborted = self._aborted, set()
        for request_id in aborted:
            self._forget(request_id)

    def _forget(self, request_id: str, *, failed: bool = False) -> None:
        self._remove(request_id, failed)
        if request_id in self._known:
            self._known.discard(request_id)
            try:
                self._runner.release(request_id)
            except BaseException:  # the request has ended either way; the others go on
                logger.exception("releasing request %s failed; some of its state may remain", request_id)
