"""Engines that run in threads of their own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import pytest
from asking import MODEL
from engine_harness import Driven
from toy_model import ToyRunner

from omni_torch.engine.scheduler import EngineScheduler


@pytest.fixture
def drive() -> Iterator[Callable[[EngineScheduler], Driven]]:
    """Start a scheduler, which must end in time after the test."""
    with ExitStack() as opened:

        def start(scheduler: EngineScheduler) -> Driven:
            driven = Driven(scheduler)
            opened.callback(driven.close)
            return driven

        yield start


@pytest.fixture
def engine(drive: Callable[[EngineScheduler], Driven]) -> Callable[..., Driven]:
    """Start an engine with blocks of four positions."""

    def start(runner: Any = None, **options: Any) -> Driven:
        options = {"max_context": 512, "kv_blocks": 200, "block_size": 4, **options}
        return drive(EngineScheduler(runner or ToyRunner(MODEL), **options))

    return start
