"""The scheduler's contract on an engine that has to queue, take turns, share and preempt. Conformance with default
settings is tested in tests/omni_testing.
"""

from __future__ import annotations

from typing import Any

from toy_model import POISON_TOKEN, ToyModel, ToyRunner

from omni_core.model_runner import SamplingParams
from omni_core.scheduling.base import IncomingMessage, Scheduler
from omni_testing import SchedulerConformance
from omni_torch.engine.scheduler import EngineScheduler

MODEL = ToyModel()


class TestNarrowEngine(SchedulerConformance):
    """Small steps and a small cache: requests wait, take turns, share and are preempted."""

    def make(self) -> Scheduler:
        return EngineScheduler(
            ToyRunner(MODEL),
            max_context=4096,
            kv_blocks=4010,
            block_size=1,
            max_running=3,
            max_batch_tokens=4,
            chunk_size=2,
        )

    def message(self, request_id: str, data: Any) -> IncomingMessage:
        return IncomingMessage(request_id, "new_request", data)

    def good(self, number: int) -> Any:
        return {"prompt": [1 + number, 2, 3 + number], "sampling": SamplingParams(max_new_tokens=12)}

    def bad(self) -> Any:
        return {"prompt": [1, POISON_TOKEN, 2], "sampling": SamplingParams(max_new_tokens=12)}

    def endless(self) -> Any:
        return {"prompt": [5, 6, 7], "sampling": SamplingParams(max_new_tokens=4000)}
