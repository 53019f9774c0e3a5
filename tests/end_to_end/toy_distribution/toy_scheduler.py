"""A scheduler in thirty lines: one request at a time, over the plain cache of the conformance suite."""

from __future__ import annotations

from typing import Any

from omni_core.model_runner import ARRequest, ModelRunner
from omni_testing.runner_driver import Driver
from omni_torch.loop.autoregressive import AutoregressiveLoop, StepResult, run_batch


class OneByOne:
    """The ``Scheduler`` contract without batches."""

    def __init__(self, runner: ModelRunner, max_context: int = 4096) -> None:
        self._runner, self._max_context = runner, max_context
        self._driver = Driver(runner)
        self._loop = AutoregressiveLoop(runner, self, max_context)
        self.inbox, self.outbox = self._loop.inbox, self._loop.outbox
        self.start, self.stop, self.abort = self._loop.start, self._loop.stop, self._loop.abort

    def admit(self, request: ARRequest) -> None:
        self._driver.requests[request.request_id] = request

    def step(self) -> StepResult | None:
        for request in self._driver.requests.values():
            left: Any = request.length - request.computed
            if left > 1 or not request.output_ids or self._runner.can_step(request):
                batch = self._driver.batch([(request, left)])
                sampled = run_batch(self._runner, batch, self._max_context)
                request.computed += left
                return StepResult(sampled)
        return None

    def remove(self, request_id: str, failed: bool) -> None:
        self._driver.requests.pop(request_id, None)
        self._driver._caches.pop(request_id, None)
