"""Conformance suites for plugin authors: one class to subclass per contract.

::

    from omni_testing import RelayConformance

    class TestMyRelay(RelayConformance):
        relay = "my_relay.relay:MyRelay"

Each suite is imported when it is asked for: only :class:`ModelRunnerConformance` and :class:`FeedbackConformance` need torch,
and :class:`ServingConformance` omni-serve.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_testing.checkpoints import CheckpointConformance
    from omni_testing.feedback import FeedbackConformance
    from omni_testing.launcher import LauncherConformance
    from omni_testing.model_runner import ModelRunnerConformance
    from omni_testing.part import PartConformance
    from omni_testing.pipeline import PipelineConformance, PipelineStructureConformance
    from omni_testing.plugin import PluginConformance
    from omni_testing.presets import PresetConformance
    from omni_testing.projection import ProjectionConformance
    from omni_testing.relay import RelayConformance
    from omni_testing.scheduler import SchedulerConformance
    from omni_testing.serving import ServingConformance
    from omni_testing.step_scheduler import StepSchedulerConformance
    from omni_testing.streamed_input import StreamedInputConformance

__all__ = [
    "CheckpointConformance",
    "FeedbackConformance",
    "LauncherConformance",
    "ModelRunnerConformance",
    "PartConformance",
    "PipelineConformance",
    "PipelineStructureConformance",
    "PluginConformance",
    "PresetConformance",
    "ProjectionConformance",
    "RelayConformance",
    "SchedulerConformance",
    "ServingConformance",
    "StepSchedulerConformance",
    "StreamedInputConformance",
]

_MODULES = {
    "CheckpointConformance": "checkpoints",
    "FeedbackConformance": "feedback",
    "LauncherConformance": "launcher",
    "ModelRunnerConformance": "model_runner",
    "PartConformance": "part",
    "PipelineConformance": "pipeline",
    "PipelineStructureConformance": "pipeline",
    "PluginConformance": "plugin",
    "PresetConformance": "presets",
    "ProjectionConformance": "projection",
    "RelayConformance": "relay",
    "SchedulerConformance": "scheduler",
    "ServingConformance": "serving",
    "StepSchedulerConformance": "step_scheduler",
    "StreamedInputConformance": "streamed_input",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        import pytest
    except ModuleNotFoundError:
        raise ImportError("the conformance suites need pytest: pip install omni-testing") from None
    module = f"{__name__}.{_MODULES[name]}"
    pytest.register_assert_rewrite(module)  # so that a failing suite shows both sides of its comparison
    return getattr(importlib.import_module(module), name)
