"""The pipeline that a person names: by its name, a config file, a checkpoint folder or a hub id, with a model and overrides."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from omni_core.config.loading import expanded, load_config, parse_assignment, read_yaml
from omni_core.config.overrides import Override, ResolvedConfig, apply, parse_flag, parse_overlay
from omni_core.config.schema import PipelineConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import PipelineComponent
from omni_core.interface import Interface
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.references import load

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")


@define
class PipelineSource:
    """A pipeline as it was asked for, on the command line or in :func:`omni_core.open`.

    Attributes:
        name: a registered name, a config file, a checkpoint folder or a hub id; or the config itself.
        model: a checkpoint folder or a hub id.
        options: go to the pipeline's function.
        settings: values for fields of stages and of the pipeline: ``--set`` flags, or a mapping of dotted paths to values.
        overlay: a YAML file with such values, or what it would hold.
        dashes: what comes before the name of an option in messages: ``--`` on the command line.
        notices: lines for the user, filled by :meth:`resolve`.
    """

    name: str | PipelineConfig
    model: str | None = None
    options: Mapping[str, Any] = field(factory=dict)
    settings: tuple[str, ...] | Mapping[str, Any] = ()
    overlay: str | Path | Mapping[str, Any] | None = None
    dashes: str = "--"
    notices: list[str] = field(factory=list)

    def resolve(self, registry: PluginRegistry | None = None) -> ResolvedConfig:
        """Return the config with overrides applied, validated.

        Raises:
            PluginError: no such pipeline. ConfigError: an override or the config is invalid.
        """
        config, levels = self._base(registry), (self._overlay(), self._settings())
        resolved = apply(config, *levels) if config is not self.name or any(levels) else ResolvedConfig(config)
        validate(resolved.config)
        return resolved

    def exists(self) -> bool:
        """Return whether the name is that of a registered pipeline, a config file or a folder."""
        name, is_folder = str(self.name), False
        with suppress(ConfigError):  # ~NAME of no user
            is_folder = expanded(name).is_dir()
        return is_folder or self._is_file or name in load_plugins().names("omni_pipelines")

    def interface(self) -> Interface | None:
        """Return what the pipeline declares, without reading the weights of a checkpoint. Raises as :meth:`resolve`."""
        if isinstance(self.name, PipelineConfig):
            return self.name.interface
        if self._is_file:
            return load_config(Path(self.name)).interface
        return self._component(self.name, load_plugins()).interface

    @property
    def _is_file(self) -> bool:
        return isinstance(self.name, str) and self.name.endswith((".yaml", ".yml", ".json"))

    def _overlay(self) -> list[Override]:
        if self.overlay is None:
            return []
        if isinstance(self.overlay, Mapping):
            return parse_overlay(dict(self.overlay), "config")
        return parse_overlay(read_yaml(self.overlay), str(self.overlay))

    def _settings(self) -> list[Override]:
        if isinstance(self.settings, Mapping):
            return [
                Override(tuple(path.split(".")), value, f"set {path}={value!r}")
                for path, value in self.settings.items()
            ]
        return [parse_flag(text) for text in self.settings]

    def _base(self, registry: PluginRegistry | None) -> PipelineConfig:
        name = self.name
        if isinstance(name, PipelineConfig) or self._is_file:
            kind = "a PipelineConfig" if isinstance(name, PipelineConfig) else "a config file"
            if self.model is not None:
                raise ConfigError(f"{self.dashes}model: {kind} says which model it uses (model_path); change it there")
            for option in self.options:
                fields = f"set its fields by {self.dashes}set or {self.dashes}config"
                raise ConfigError(f"{self.dashes}option {option}: {kind} has no options; {fields}")
            return name if isinstance(name, PipelineConfig) else load_config(Path(name))
        registry = registry or load_plugins()
        component = self._component(name, registry)
        model = self.model
        if name not in registry.names("omni_pipelines"):
            if model is not None:
                raise ConfigError(
                    f"{self.dashes}model: {name} is itself the checkpoint; name a pipeline or remove {self.dashes}model"
                )
            model = name
        if model is None:
            if component.default_model is None:
                raise ConfigError(f"{self.dashes}model: pipeline {name!r} needs one (a folder or a hub id)")
            model, notice = load(component.default_model)()
            self.notices.append(notice)
        config: PipelineConfig = load(component.target)(model, **self.options)
        return config if config.interface is not None else evolve(config, interface=component.interface)

    def _component(self, name: str, registry: PluginRegistry) -> PipelineComponent:
        if name not in registry.names("omni_pipelines"):
            folder = expanded(name)
            if folder.is_dir():
                return _serving(name, folder / "config.json", registry)
            if _HUB_ID.fullmatch(name):
                return _serving(name, _config_of(name, registry), registry)
            if "/" in name:
                raise PluginError(f"{name} is neither a pipeline nor a folder nor a hub id (OWNER/NAME)")
        try:
            component = registry.get("omni_pipelines", name)
        except PluginError as error:
            raise PluginError(f"{error} (`omni pipelines` lists those that are installed)") from None
        assert isinstance(component, PipelineComponent)
        return component


def _config_of(name: str, registry: PluginRegistry) -> Path:
    """Return the ``config.json`` of a checkpoint that is no folder here, from the first pipeline that can find it.

    Raises:
        PluginError: none can.
    """
    components = [each for each, _ in registry.components("omni_pipelines") if isinstance(each, PipelineComponent)]
    problem = "no installed pipeline fetches checkpoints"
    for finder in dict.fromkeys(each.config_folder_fn for each in components if each.config_folder_fn):
        try:
            return Path(load(finder)(name)) / "config.json"
        except ConfigError as error:
            problem = str(error)
    raise PluginError(
        f"{name} is neither a pipeline nor a folder, and as a hub id it cannot be read ({problem}). "
        f"Or name its pipeline: omni run PIPELINE --model {name}"
    )


def _serving(name: str, path: Path, registry: PluginRegistry) -> PipelineComponent:
    """Return the installed pipeline that runs a checkpoint, by the architectures in its ``config.json``."""
    if not path.is_file():
        raise ConfigError(f"{name} is no checkpoint: it has no config.json")
    raw = read_yaml(path)
    values = raw if isinstance(raw, dict) else {}
    listed = values.get("architectures")
    names = [*(listed if isinstance(listed, list) else []), values.get("model_type")]
    wanted = [each for each in names if isinstance(each, str)]
    components = [each for each, _ in registry.components("omni_pipelines") if isinstance(each, PipelineComponent)]
    found = [each for each in components if set(each.architectures) & set(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(f"omni run {each.name} --model {name}" for each in found)
        raise ConfigError(f"{name}: several installed pipelines run {' or '.join(wanted)}; choose one: {choices}")
    known = [f"{each.name} ({', '.join(each.architectures)})" for each in components if each.architectures]
    raise ConfigError(
        f"{path}: no installed pipeline runs {' or '.join(wanted) or 'it (it names no architectures)'}; "
        f"there are: {', '.join(known) or 'none that name architectures'}. Or name one: omni run PIPELINE --model {name}"
    )


def parse_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return ``--option name=value`` flags as keyword arguments."""
    return dict(parse_assignment("--option", text, "name=value") for text in texts)
