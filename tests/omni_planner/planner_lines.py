"""Pipelines of functions one after another, and profiles of them, for tests of simulations."""

from __future__ import annotations

from collections.abc import Sequence

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.coordinator.replicas import Load
from omni_core.protocol.messages import OmniRequest
from omni_planner.profile import CLIENT, Hardware, PipelineProfile, StageProfile, Visit


def pipeline(*names: str, process: str | None = None, **changes: object) -> PipelineConfig:
    stages = [
        StageConfig(
            name=name,
            factory="omni_core.references:load",
            process=process or name,
            next=list(names[number + 1 : number + 2]),
            terminal=name == names[-1],
            **changes,  # type: ignore[arg-type]
        )
        for number, name in enumerate(names)
    ]
    return PipelineConfig(name="line", model_path="", stages=stages, max_in_flight=100_000)


def profile(*names: str, seconds: float, cores: int = 1, message: float = 0.0) -> PipelineProfile:
    """A line of functions that each take as long for every request."""
    made = PipelineProfile("line", Hardware("test", cores), message=message)
    sample = {}
    for number, name in enumerate(names):
        stage = made.stages[name] = StageProfile("function")
        stage.cost("text").observe({"turns": 1.0, "requests": 1.0}, seconds)
        before, after = [CLIENT, *names][number], [*names, CLIENT][number + 1]
        sample[name] = Visit([before], [after])
    made.kinds["text"] = [sample]
    return made


def longest(request: OmniRequest, loads: Sequence[Load]) -> int:
    """A ``balance`` of a user's that reads the request."""
    return loads[len(request.inputs["messages"]) % 2].replica


def last_of(request: OmniRequest, loads: Sequence[Load]) -> int:
    """A ``balance`` of a user's: the last replica that serves."""
    return loads[-1].replica
