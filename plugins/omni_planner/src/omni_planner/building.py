"""The simulated stage of a stage's config: by what kind it was measured as, with the settings that it would have."""

from __future__ import annotations

import inspect
import math

from omni_core.config.schema import StageConfig
from omni_core.errors import ConfigError
from omni_core.references import load
from omni_planner.engine_stage import EngineStage
from omni_planner.profile import PipelineProfile
from omni_planner.stages import FunctionStage, Settings, SimulatedStage, StreamStage
from omni_planner.variation import varied
from omni_planner.vocoder_stage import VocoderStage


def simulated(stage: StageConfig, profile: PipelineProfile, number: int = 0) -> SimulatedStage | None:
    """Make a replica of a stage; ``None``: no measured request came by. ``number``: of the replica.

    Raises:
        ConfigError: the chunks of a vocoder are not known.
    """
    measured = profile.stages.get(stage.name)
    if measured is None:
        return None
    drift = profile.drift**2  # of the error of a fit, what is the machine's
    errors = {kind: math.sqrt(max(0.0, cost.relative_error() ** 2 - drift)) for kind, cost in measured.costs.items()}
    costing = varied(measured.costing(stage), errors, f"{stage.name}.{number}")
    settings = {**settings_of(stage), **measured.settings(stage)}
    if measured.kind == "function":
        return FunctionStage(stage.name, measured, costing, settings)
    if measured.kind == "stream":
        return StreamStage(stage.name, measured, costing)
    if measured.kind == "engine":
        heard = _output_seconds(stage) if settings.get("policy") else None
        return EngineStage(stage.name, measured, costing, settings, heard)
    missing = [name for name in ("initial_chunk", "chunk") if name not in settings]
    if missing:
        raise ConfigError(f"stages[{stage.name}].factory_args: its chunks are not known; set {' and '.join(missing)}")
    return VocoderStage(stage.name, measured, costing, settings)


def settings_of(stage: StageConfig) -> Settings:
    """Return a stage's ``factory_args`` over its factory's defaults."""
    defaults: Settings = {}
    if stage.factory is not None:
        parameters = inspect.signature(load(stage.factory)).parameters.values()
        defaults = {each.name: each.default for each in parameters if each.default is not each.empty}
    return {**defaults, **stage.factory_args}


def _output_seconds(stage: StageConfig) -> float | None:
    """Return ``output_seconds`` of the class of a stage's model runner, as far as its reference names one."""
    if stage.model_runner is None or ":" not in stage.model_runner:
        return None
    module, _, names = stage.model_runner.partition(":")
    found: float | None = getattr(load(f"{module}:{names.partition('.')[0]}"), "output_seconds", None)
    return found
