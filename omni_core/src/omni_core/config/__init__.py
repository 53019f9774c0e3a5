"""The declarative config of a pipeline: its stages, how each is built, and where it runs, before anything is started.

``schema`` has the classes, ``loading`` reads and writes them strictly, and ``overrides`` applies overlays and flags and records the
origin of each value. ``validation`` and ``placement`` check a whole pipeline and name the setting to change.
"""

from omni_core.config.schema import EndpointsConfig, PipelineConfig, RelayConfig, RestartConfig, StageConfig

__all__ = ["EndpointsConfig", "PipelineConfig", "RelayConfig", "RestartConfig", "StageConfig"]
