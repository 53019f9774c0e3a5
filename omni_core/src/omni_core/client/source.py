"""The pipeline that a person names: by its name or a file that describes it whole, with a model, options and values for fields.

A service may know more sources: deploy files, presets, checkpoint folders, hub ids and the environment. Then it is used instead.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from omni_core.client.checkpoints import interface_of
from omni_core.config.loading import is_file, parse_assignment, read_yaml
from omni_core.config.overrides import Override, ResolvedConfig, overridden, parse_flag
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError, OmniError, PluginError, message_of
from omni_core.hookspecs import PipelineComponent
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.references import load
from omni_core.services import SOURCES

logger = logging.getLogger(__name__)

EVERY_STAGE = "*"
"""In place of a stage's name: every stage that has what is set."""

SETTING_VARIABLE = "OMNI_SET__"
"""Begins the name of a variable that sets a value: ``OMNI_SET__DECODER__GPU=1``."""


@define
class PipelineSource:
    """A pipeline as it was asked for, on the command line or in :func:`omni_core.open`.

    Attributes:
        name: a registered name, or a file; or the config itself. Some services take a preset, a checkpoint folder or a hub id too.
        model: a checkpoint folder or a hub id.
        options: go to the pipeline's function.
        settings: values for fields of stages and of the pipeline: ``--set`` flags, or a mapping of dotted paths to values.
        overlay: a deploy file or preset that is laid over ``name``, or what a file would hold.
        dashes: what comes before the name of an option in messages: ``--`` on the command line.
        platform: whose sections of deploy files apply; by default that of this machine.
        environment: variables that set values apply; not to a part of another pipeline, whose own stages they name.
        notices: lines for the user, filled by :meth:`resolve`.
    """

    name: str | PipelineConfig
    model: str | None = None
    options: Mapping[str, Any] = field(factory=dict)
    settings: tuple[str, ...] | Mapping[str, Any] = ()
    overlay: str | Path | Mapping[str, Any] | None = None
    dashes: str = "--"
    platform: str | None = None
    environment: bool = True
    notices: list[str] = field(factory=list)

    def resolve(self, registry: PluginRegistry | None = None) -> ResolvedConfig:
        """Return the config with the settings applied, validated.

        Raises:
            PluginError: no such pipeline, or a source that needs a service. ConfigError: a setting or the config is invalid.
        """
        settings = self.overrides()
        self._refuse_layers(settings)
        if isinstance(self.name, PipelineConfig):
            self.refuse_source("a PipelineConfig")
            return ResolvedConfig(overridden(self.name, settings) if settings else self.name)
        config = self._read(self.name) if is_file(self.name) else self._made(self.name, registry or load_plugins())
        return ResolvedConfig(overridden(config, settings))

    def _refuse_layers(self, settings: Iterable[Override]) -> None:
        """Raise a PluginError if there is more to apply than settings."""
        given = [] if self.overlay is None else [f"{self.dashes}config {self.overlay}"]
        given += [each.origin for each in settings if EVERY_STAGE in each.parts[:2]]
        has_environment = isinstance(self.name, PipelineConfig)  # a finished config has it already
        if self.environment and not has_environment:
            given += [name for name in os.environ if name.startswith(SETTING_VARIABLE)]
        if given:
            raise SOURCES.missing(f"{given[0]}: deploy files and layers need", load_plugins())

    def _read(self, path: str) -> Mapping[str, Any]:
        """Return the fields of a whole pipeline in a file."""
        self.refuse_source("a config file")
        values = read_yaml(path)
        if not isinstance(values, dict) or not isinstance(values.get("stages"), list):
            what = "describes no whole pipeline (with `stages` as a list), and deploy files need"
            raise SOURCES.missing(f"{path} {what}", load_plugins())
        return values

    def _made(self, name: str, registry: PluginRegistry) -> PipelineConfig:
        """Return what the function of a registered pipeline makes."""
        try:
            component = registry.get("omni_pipelines", name)
        except PluginError as error:
            raise SOURCES.missing(f"{error}; presets, checkpoint folders and hub ids need", registry) from None
        assert isinstance(component, PipelineComponent)
        try:
            return self.built(component, self.model, self.options)
        except OmniError:
            raise
        except Exception as error:
            if not self.options:
                raise
            what = f"{self.dashes}option: pipeline {name!r} does not take these options, {self.options}"
            raise ConfigError(f"{what}: {message_of(error, with_type=True)}") from error

    def overrides(self) -> list[Override]:
        """Return the settings, each with its origin."""
        if not isinstance(self.settings, Mapping):
            return [parse_flag(text) for text in self.settings]
        pairs = self.settings.items()
        return [Override(tuple(path.split(".")), value, f"set {path}={value!r}") for path, value in pairs]

    def built(self, component: PipelineComponent, model: str | None, options: Mapping[str, Any]) -> PipelineConfig:
        """Return what a pipeline's function makes; without a ``model``, of its default one."""
        if model is None:
            if component.default_model is None:
                raise ConfigError(f"{self.dashes}model: pipeline {component.name!r} needs one (a folder or a hub id)")
            model, notice = load(component.default_model)()
            self.notices.append(notice)
        config: PipelineConfig = load(component.target)(model, **options)
        return config if config.interface is not None else evolve(config, interface=interface_of(component, model))

    def refuse_source(self, kind: str) -> None:
        """Raise a ConfigError if a model or an option is given beside what has them."""
        if self.model is not None:
            raise ConfigError(f"{self.dashes}model: {kind} says which model it uses (model_path); change it there")
        for option in self.options:
            fields = f"set its fields by {self.dashes}set or {self.dashes}config"
            raise ConfigError(f"{self.dashes}option {option}: {kind} has no options; {fields}")


def source_class() -> type[PipelineSource]:
    """Return the class of sources: that of a service, where one is installed."""
    return SOURCES.load() or PipelineSource


def pipeline_of(
    source: str | PipelineConfig, model: str | None = None, options: Mapping[str, Any] | None = None
) -> PipelineConfig:
    """Return the pipeline that ``omni run SOURCE`` would run, as a part for :func:`~omni_core.config.compose.compose`.

    Variables of the environment are not applied: they are to the whole. What the source has to say to its user is logged.

    Args:
        source: a registered name or a config; where a service for them is installed also a deploy file or preset, a checkpoint's folder
            or file, or a hub id.
        model: the checkpoint of a registered pipeline.
        options: of its function.

    Raises:
        PluginError: no such pipeline. ConfigError: an option or the config is invalid.
    """
    asked = source_class()(source, model, options or {}, environment=False)
    config = asked.resolve().config
    for notice in asked.notices:
        logger.warning("%s: %s", config.resolved_name, notice)
    return config


def parse_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return ``--option name=value`` flags as keyword arguments."""
    pairs = [parse_assignment("--option", text, "name=value") for text in texts]
    if len(dict(pairs)) < len(pairs):
        raise ConfigError(f"--option: one is given twice: {', '.join(texts)}")
    return dict(pairs)
