"""SGLang's scheduler keeps the contract, on the same runner as the engine's conformance test."""

from __future__ import annotations

from typing import Any

from sglang_toy import MODEL
from toy_model import POISON_TOKEN, ToyRunner

from omni_core.model_runner import SamplingParams
from omni_core.scheduling.base import IncomingMessage, Scheduler
from omni_sglang.scheduler import OmniScheduler
from omni_testing import SchedulerConformance


class TestSGLang(SchedulerConformance):
    def make(self) -> Scheduler:
        return OmniScheduler(ToyRunner(MODEL), max_context=4096, kv_blocks=6400)

    def message(self, request_id: str, data: Any) -> IncomingMessage:
        return IncomingMessage(request_id, "new_request", data)

    def good(self, number: int) -> Any:
        return {"prompt": [1 + number, 2, 3 + number], "sampling": SamplingParams(max_new_tokens=12)}

    def bad(self) -> Any:
        return {"prompt": [1, POISON_TOKEN, 2], "sampling": SamplingParams(max_new_tokens=12)}

    def endless(self) -> Any:
        return {"prompt": [5, 6, 7], "sampling": SamplingParams(max_new_tokens=4000)}
