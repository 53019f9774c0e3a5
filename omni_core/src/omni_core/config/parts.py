"""The components that the stages of a config name, without importing any of them."""

from __future__ import annotations

from omni_core.config.schema import StageConfig
from omni_core.errors import PluginError
from omni_core.hookspecs import SchedulerComponent
from omni_core.plugins import PluginRegistry
from omni_core.plugins.advice import comes_with
from omni_core.plugins.registry import problem_of

STAGE_PARTS = ("factory", "model_runner", "feedback", "scheduler")


def resolve_part(stage: StageConfig, part: str, name: str | None, registry: PluginRegistry) -> str | None:
    """Resolve a part of a stage, if it has it.

    Raises:
        PluginError: no plugin provides a part of that name, or it is a scheduler that drives no model runner.
    """
    if name is None:
        return None
    hook = {"feedback": "omni_feedback_strategies", "model_runner": "omni_model_runners"}.get(part, "omni_schedulers")
    path = f"stages[{stage.name}].{part}"
    try:
        reference = registry.resolve_reference(hook, name)
    except PluginError as error:
        raise PluginError(f"{path}: {error}") from error
    if part == "scheduler" and name in registry.names(hook):
        component = registry.get(hook, name)
        if isinstance(component, SchedulerComponent) and not component.runs_model_runners:
            raise PluginError(f"{path}: {name!r} drives no model runner; {_drivers(registry)}")
    return reference


def scheduler_of(stage: StageConfig, registry: PluginRegistry) -> str | None:
    """Return the scheduler of a stage of parts: its own, or the installed one with the highest preference.

    Raises:
        PluginError: none is installed that can work here.
    """
    if stage.model_runner is None or stage.scheduler is not None:
        return stage.scheduler
    found = [each for each in _model_schedulers(registry) if problem_of(each) is None]
    if not found:
        reasons = "".join(f"; {each.name!r}: {problem_of(each)}" for each in _model_schedulers(registry))
        suspects = "".join(f"; {each}" for each in registry.suspects("omni_schedulers"))
        raise PluginError(
            f"stages[{stage.name}].scheduler: no scheduler that can drive {stage.model_runner!r} is installed; one comes with "
            f"{comes_with('schedulers', 'engine', 'sglang', records=registry.records)}{reasons}{suspects}"
        )
    return max(found, key=lambda each: (each.preference, each.name)).name


def _model_schedulers(registry: PluginRegistry) -> list[SchedulerComponent]:
    installed = [component for component, _ in registry.components("omni_schedulers")]
    return [each for each in installed if isinstance(each, SchedulerComponent) and each.runs_model_runners]


def _drivers(registry: PluginRegistry) -> str:
    names = ", ".join(sorted(each.name for each in _model_schedulers(registry)))
    return f"those that do: {names}" if names else f"one comes with {comes_with('schedulers', 'engine')}"
