"""Every scheduler of this workspace keeps the contract."""

from __future__ import annotations

import time
from typing import Any

from stepping import Counting

from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.base import Scheduler
from omni_core.scheduling.simple import SimpleScheduler
from omni_testing import SchedulerConformance, StepSchedulerConformance


def compute(payload: StagePayload) -> Any:
    if "fail" in payload.data:
        raise ValueError("a bad request")
    time.sleep(payload.data.get("sleep", 0.0))
    return {"double": 2 * payload.data["n"]}


class TestSimple(SchedulerConformance):
    def make(self) -> Scheduler:
        return SimpleScheduler(compute)

    def good(self, number: int) -> Any:
        return {"n": number}

    def bad(self) -> Any:
        return {"fail": True}

    def endless(self) -> Any:
        return {"n": 0, "sleep": 1.0}


class TestBatched(TestSimple):
    def make(self) -> Scheduler:
        return SimpleScheduler(compute, lambda batch: [compute(each) for each in batch], max_batch_size=4)


class TestSteps(StepSchedulerConformance):
    def make(self) -> Scheduler:
        return Counting(max_batch_size=4)

    def good(self, number: int) -> Any:
        return {"goal": 2 + number}

    def bad(self) -> Any:
        return {"fail": True}

    def long(self) -> Any:
        return {"goal": 1000, "sleep": 0.005}

    def bad_at_a_step(self) -> Any:
        return {"goal": 3, "wall": 1}
