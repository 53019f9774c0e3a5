"""Turns a config into running processes.

:func:`~omni_core.launch.prepare.prepare` resolves a validated config to launch specs, with the relay of each edge chosen by
:mod:`omni_core.launch.relay_plan`. :class:`~omni_core.launch.runner.MultiProcessPipelineRunner` launches them and connects coordinator,
supervision and control plane; :class:`~omni_core.launch.observation.Observation` shows what they do.
"""

from omni_core.launch.prepare import PreparedPipeline, prepare
from omni_core.launch.runner import MultiProcessPipelineRunner

__all__ = ["MultiProcessPipelineRunner", "PreparedPipeline", "prepare"]
