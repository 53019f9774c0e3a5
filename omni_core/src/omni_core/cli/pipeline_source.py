"""From what a user typed (a pipeline's name or a config file, a model, overrides) to a resolved config."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import define, field

from omni_core.config.loading import load_config, read_yaml
from omni_core.config.overrides import ResolvedConfig, apply, parse_flag, parse_overlay
from omni_core.config.schema import PipelineConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import PipelineComponent
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.references import load


@define
class PipelineSource:
    """What was asked for. ``options`` go to the pipeline's function, ``settings`` are ``--set`` flags."""

    name: str
    model: str | None = None
    options: dict[str, Any] = field(factory=dict)
    settings: tuple[str, ...] = ()
    overlay: str | None = None
    notices: list[str] = field(factory=list)

    def resolve(self, registry: PluginRegistry | None = None) -> ResolvedConfig:
        """The config with overrides applied, validated.

        Raises:
            PluginError: no such pipeline. ConfigError: an override or the config is invalid.
        """
        config = self._base(registry or load_plugins())
        overlay = parse_overlay(read_yaml(self.overlay), self.overlay) if self.overlay else []
        flags = [parse_flag(text) for text in self.settings]
        resolved = apply(config, overlay, flags)
        validate(resolved.config)
        return resolved

    def _base(self, registry: PluginRegistry) -> PipelineConfig:
        if self.name.endswith((".yaml", ".yml", ".json")):
            if self.model is not None:
                raise ConfigError(f"--model: {self.name} says which model it uses (model_path); change it there")
            if self.options:
                name = next(iter(self.options))
                raise ConfigError(
                    f"--option {name}: a config file has no options; change its fields with --set or --config"
                )
            return load_config(Path(self.name))
        try:
            component = registry.get("omni_pipelines", self.name)
        except PluginError as error:
            raise PluginError(f"{error} (`omni pipelines` lists those that are installed)") from None
        assert isinstance(component, PipelineComponent)  # discovery refuses any other
        model = self.model
        if model is None:
            if component.default_model is None:
                raise ConfigError(f"--model: pipeline {self.name!r} needs one (a folder or a hub id)")
            model, notice = load(component.default_model)()
            self.notices.append(notice)
        config: PipelineConfig = load(component.target)(model, **self.options)
        return config


def parse_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """``--option name=value`` flags as keyword arguments."""
    return {flag.path: flag.value for flag in map(parse_flag, texts)}
