"""Pipelines for tests of simulations: functions one after another, and an encoder before an engine on one GPU."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attrs import evolve

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_planner.devices import Accelerator, Rates
from omni_planner.estimate import Device, Estimate, estimate
from omni_torch.placement.work import Ask, DecoderWork, PassWork, PipelineWorks, StageWork

GPU = Accelerator("test", 10 * 2**30, flops=100e12, float32_flops=100e12, bandwidth=1e12, link=100e9)
RATES = Rates(
    flops_share=1.0,
    bandwidth_share=1.0,
    kernel=1e-9,
    step=1e-6,
    row=1e-9,
    message=1e-6,
    latency=1e-6,
    function=1e-6,
    spread=0.0,
)


@pytest.fixture
def gpu() -> Accelerator:
    return GPU


@pytest.fixture
def rates() -> Rates:
    """Rates with which only what a network computes takes time."""
    return RATES


@pytest.fixture
def decoder() -> DecoderWork:
    """A decoder of which a step reads a gigabyte: 1 ms."""
    return DecoderWork(layers=2, hidden_size=64, shared=500_000_000, head=0, cached=256, heads=64, ranks=(1, 2, 4))


@pytest.fixture
def functions() -> Callable[..., tuple[PipelineConfig, Estimate]]:
    """Return a line of functions that each take ``seconds`` for a request, and its estimate."""

    def made(
        *names: str, seconds: float, message: float = 0.0, process: str | None = None, **changes: Any
    ) -> tuple[PipelineConfig, Estimate]:
        stages = [
            StageConfig(
                name=name,
                factory="omni_core.references:load",
                process=process or name,
                next=list(names[number + 1 : number + 2]),
                terminal=name == names[-1],
                **changes,
            )
            for number, name in enumerate(names)
        ]
        config = PipelineConfig(name="line", model_path="", stages=stages, max_in_flight=100_000)
        works = PipelineWorks({}, visits=lambda ask: {name: StageWork() for name in names})
        taken = evolve(RATES, function=seconds, message=message, row=0.0, latency=0.0)
        return config, estimate(config, Device(GPU, taken), {"text": Ask()}, works)

    return made


@pytest.fixture
def line() -> PipelineConfig:
    """An encoder and an engine in processes of their own, on one GPU."""
    stage = StageConfig(name="encode", factory="omni_core.references:load", process="encode", gpu=0, gpu_memory=0.1)
    speak = evolve(stage, name="speak", process="speak", terminal=True, gpu_memory=0.4)
    return PipelineConfig(name="line", model_path="", stages=[evolve(stage, next="speak"), speak], max_in_flight=10_000)


@pytest.fixture
def works(decoder: DecoderWork) -> PipelineWorks:
    """The work of ``line``."""
    return PipelineWorks(
        stages={"encode": PassWork(1000, 1e9), "speak": decoder},
        visits=lambda ask: {"encode": StageWork(ask.text), "speak": StageWork(ask.text, ask.reply)},
    )


@pytest.fixture
def estimated(line: PipelineConfig, works: PipelineWorks) -> Callable[..., Estimate]:
    """Return the estimate of ``line`` for requests of ``reply`` tokens, with rates changed."""

    def made(reply: int = 100, **changed: float) -> Estimate:
        asks = {"text": Ask(text=10, reply=reply)}
        return estimate(line, Device(GPU, evolve(RATES, **changed)), asks, works)

    return made
