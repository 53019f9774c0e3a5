"""The pipeline that a command line names: by its name, a config file or a checkpoint folder, with a model and overrides."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attrs import define, evolve, field

from omni_core.config.loading import load_config, parse_assignment, read_yaml
from omni_core.config.overrides import ResolvedConfig, apply, parse_flag, parse_overlay
from omni_core.config.schema import PipelineConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import PipelineComponent
from omni_core.interface import Interface
from omni_core.plugins import PluginRegistry, load_plugins
from omni_core.references import load


@define
class PipelineSource:
    """A pipeline as it was asked for. ``options`` go to the pipeline's function, ``settings`` are ``--set`` flags."""

    name: str
    model: str | None = None
    options: dict[str, Any] = field(factory=dict)
    settings: tuple[str, ...] = ()
    overlay: str | None = None
    notices: list[str] = field(factory=list)

    def resolve(self, registry: PluginRegistry | None = None) -> ResolvedConfig:
        """Return the config with overrides applied, validated.

        Raises:
            PluginError: no such pipeline. ConfigError: an override or the config is invalid.
        """
        config = self._base(registry or load_plugins())
        overlay = parse_overlay(read_yaml(self.overlay), self.overlay) if self.overlay else []
        flags = [parse_flag(text) for text in self.settings]
        resolved = apply(config, overlay, flags)
        validate(resolved.config)
        return resolved

    def exists(self) -> bool:
        """Return whether the name is that of a registered pipeline, a config file or a folder."""
        return self._is_file or self.name in load_plugins().names("omni_pipelines") or Path(self.name).is_dir()

    def interface(self) -> Interface | None:
        """Return what the pipeline declares, without reading a checkpoint. Raises as :meth:`resolve`."""
        if self._is_file:
            return load_config(Path(self.name)).interface
        return self._component(load_plugins()).interface

    @property
    def _is_file(self) -> bool:
        return self.name.endswith((".yaml", ".yml", ".json"))

    def _base(self, registry: PluginRegistry) -> PipelineConfig:
        if self._is_file:
            if self.model is not None:
                raise ConfigError(f"--model: {self.name} says which model it uses (model_path); change it there")
            if self.options:
                name = next(iter(self.options))
                raise ConfigError(f"--option {name}: a config file has no options; set its fields by --set or --config")
            return load_config(Path(self.name))
        component = self._component(registry)
        model = self.model
        if self.name not in registry.names("omni_pipelines"):
            if model is not None:
                raise ConfigError(f"--model: {self.name} is itself the checkpoint; name a pipeline or remove --model")
            model = self.name
        if model is None:
            if component.default_model is None:
                raise ConfigError(f"--model: pipeline {self.name!r} needs one (a folder or a hub id)")
            model, notice = load(component.default_model)()
            self.notices.append(notice)
        config: PipelineConfig = load(component.target)(model, **self.options)
        return config if config.interface is not None else evolve(config, interface=component.interface)

    def _component(self, registry: PluginRegistry) -> PipelineComponent:
        if self.name not in registry.names("omni_pipelines") and Path(self.name).expanduser().is_dir():
            return _serving(Path(self.name).expanduser(), registry)
        if "/" in self.name:
            raise PluginError(
                f"{self.name} is neither a pipeline nor a folder; a hub id needs its pipeline: omni run PIPELINE --model {self.name}"
            )
        try:
            component = registry.get("omni_pipelines", self.name)
        except PluginError as error:
            raise PluginError(f"{error} (`omni pipelines` lists those that are installed)") from None
        assert isinstance(component, PipelineComponent)
        return component


def _serving(folder: Path, registry: PluginRegistry) -> PipelineComponent:
    """Return the installed pipeline that runs the checkpoint in ``folder``, by the architectures in its ``config.json``."""
    path = folder / "config.json"
    if not path.is_file():
        raise ConfigError(f"{folder} is no checkpoint: it has no config.json")
    raw = read_yaml(path)
    values = raw if isinstance(raw, dict) else {}
    listed = values.get("architectures")
    names = [*(listed if isinstance(listed, list) else []), values.get("model_type")]
    wanted = [name for name in names if isinstance(name, str)]
    components = [each for each, _ in registry.components("omni_pipelines") if isinstance(each, PipelineComponent)]
    found = [each for each in components if set(each.architectures) & set(wanted)]
    if len(found) == 1:
        return found[0]
    if found:
        choices = " or ".join(f"omni run {each.name} --model {folder}" for each in found)
        raise ConfigError(f"{folder}: several installed pipelines run {' or '.join(wanted)}; choose one: {choices}")
    known = [f"{each.name} ({', '.join(each.architectures)})" for each in components if each.architectures]
    raise ConfigError(
        f"{path}: no installed pipeline runs {' or '.join(wanted) or 'it (it names no architectures)'}; "
        f"there are: {', '.join(known) or 'none that name architectures'}. Or name one: omni run PIPELINE --model {folder}"
    )


def parse_options(texts: tuple[str, ...]) -> dict[str, Any]:
    """Return ``--option name=value`` flags as keyword arguments."""
    return dict(parse_assignment("--option", text, "name=value") for text in texts)
