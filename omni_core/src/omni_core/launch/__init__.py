"""Turns a config into running processes.

:func:`~omni_core.launch.prepare.prepare` resolves a validated config to launch specs, with the relay of each edge chosen by
:mod:`omni_core.launch.relay_plan`. :class:`~omni_core.launch.runner.MultiProcessPipelineRunner` launches them and connects coordinator,
supervision and control plane; :class:`~omni_core.launch.observation.Observation` shows what they do. Nothing is imported here.
"""
