"""Uses of components: which stages of the installed pipelines name a component, for ``omni plugins show``."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

from omni_core.api import Component, PipelineConfig, PluginRegistry, StageConfig, load
from omni_core.runtime_api import PluginFault, isolated, normalize

_FIELDS = {
    "factory": "omni_schedulers",
    "scheduler": "omni_schedulers",
    "model_runner": "omni_model_runners",
    "feedback": "omni_feedback_strategies",
    "route_fn": "omni_payload_projections",
    "wait_for_fn": "omni_payload_projections",
    "merge_fn": "omni_payload_projections",
    "stream_done_to_fn": "omni_payload_projections",
}
"""Fields of a stage that name a component, and its hook."""


class Uses:
    """The uses of components in all installed pipelines; their configs are made with their default options.

    Attributes:
        unknown: a line for each pipeline whose config cannot be made without a checkpoint.
    """

    def __init__(self, registry: PluginRegistry) -> None:
        self.unknown: list[str] = []
        self._named: list[tuple[str, str, str]] = []
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text("{}")  # enough of a checkpoint to say which stages there are
            for component, _ in registry.components("omni_pipelines"):
                try:
                    with isolated():
                        config = load(component.target)(folder)
                        self._named += [
                            (f"{component.name}: {where}", hook, name) for where, hook, name in _named(config)
                        ]
                except PluginFault as fault:
                    self.unknown.append(f"It is not known what this pipeline uses, {component.name}: {fault}")

    def of(self, hook: str, component: Component) -> list[str]:
        """Return ``PIPELINE: STAGE`` for each use, by name or by reference."""
        names = {component.name, normalize(component.target)}
        found = [where for where, kind, name in self._named if kind == hook and (name in names or _same(name, names))]
        return list(dict.fromkeys(found))


def _same(name: str, names: set[str]) -> bool:
    return ("." in name or ":" in name) and normalize(name) in names


def _named(config: PipelineConfig) -> Iterator[tuple[str, str, str]]:
    """Yield where, the hook and the name of everything that a config names."""
    yield "all stages", "omni_relays", config.relay_backend
    if config.terminal_stages_fn is not None:
        yield "terminal_stages_fn", "omni_payload_projections", config.terminal_stages_fn
    for stage in config.stages:
        yield from ((stage.name, hook, name) for hook, name in _of_stage(stage))


def _of_stage(stage: StageConfig) -> Iterator[tuple[str, str]]:
    for field, hook in _FIELDS.items():
        name = getattr(stage, field, None)
        if isinstance(name, str):
            yield hook, name
    yield from (("omni_payload_projections", name) for name in stage.project_payload.values())
    if stage.relay is not None and stage.relay.backend is not None:
        yield "omni_relays", stage.relay.backend
