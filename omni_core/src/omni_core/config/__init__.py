"""Config: what a pipeline is, before anything runs.

``schema`` has the classes, ``loading`` reads and writes them strictly, ``overrides`` applies overlays and flags and records the
origin of each value. ``validation`` and ``placement`` check a whole pipeline and say which setting to turn.
"""

from omni_core.config.schema import EndpointsConfig, PipelineConfig, RelayConfig, RestartConfig, StageConfig

__all__ = ["EndpointsConfig", "PipelineConfig", "RelayConfig", "RestartConfig", "StageConfig"]
