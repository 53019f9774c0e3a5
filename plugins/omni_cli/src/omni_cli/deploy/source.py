"""The pipeline that a person names: by its name, a deploy file or preset, a checkpoint folder or a hub id, with layers of overrides."""

from __future__ import annotations

import re
from collections.abc import Iterable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from attrs import define

from omni_cli.deploy.claims import claimant, claimant_of_file
from omni_cli.deploy.declarations import declaration_problems
from omni_cli.deploy.defaults import default_problems
from omni_cli.deploy.files import (
    KEYS,
    SOURCE,
    DeployFile,
    SourceValues,
    environment_layer,
    origins_of,
    preset_names,
    read_deploy,
    source_values,
    whole_values,
)
from omni_cli.deploy.override_layers import Layer, LayeredConfig, Rule, apply, for_every_stage
from omni_cli.deploy.parameters import parameters_of
from omni_cli.deploy.platforms import platform
from omni_core.api import (
    ConfigError,
    Interface,
    PipelineComponent,
    PipelineConfig,
    PluginError,
    PluginRegistry,
    did_you_mean,
    expanded,
    load,
    load_plugins,
)
from omni_core.runtime_api import EVERY_STAGE, Override, PipelineSource, interface_of, is_file, structure

_HUB_ID = re.compile(r"[\w-][\w.-]*/[\w.-]+(@[\w./-]+)?")


@define
class LayeredSource(PipelineSource):
    """A pipeline as it was asked for, with deploy files, presets, the environment, checkpoint folders and hub ids."""

    def resolve(self, registry: PluginRegistry | None = None, rules: Iterable[Rule] = ()) -> LayeredConfig:
        """Return the config with all layers applied, validated, also by ``rules``.

        The environment is a layer only where a config is made or read: a finished one has it already.

        Raises:
            PluginError: no such pipeline. ConfigError: a layer or the config is invalid; every problem is named.
        """
        registry = registry or load_plugins()
        deploy, flags = self.files(registry), self._flags()
        below = self._below(deploy)
        config: PipelineConfig | dict[str, Any]
        origins, outside = dict[str, str](), tuple[str, ...]()
        problems = [*deploy.problems] if deploy is not None else []
        if isinstance(self.name, PipelineConfig):
            self.refuse_source("a PipelineConfig")
            config, variables = self.name, []
        elif deploy is not None and deploy.whole is not None:
            self.refuse_source("a config file")
            config, origins = whole_values(deploy.whole), origins_of(deploy.whole)
            variables = [self._variables([*KEYS, *deploy.stages])]
        else:
            chosen, outside = source_values([*below, self._variables(KEYS), *flags]), SOURCE
            problems += chosen.problems
            try:
                config = self.made(deploy, chosen, registry)
            except (ConfigError, PluginError) as error:
                raise type(error)("\n".join(dict.fromkeys([*problems, *str(error).splitlines()]))) from error.__cause__
            variables = [self._variables([*KEYS, *(stage.name for stage in config.stages)])]
        layers = [each for each in (*below, *variables, *flags) if each.overrides or each.problems]
        rules = (declaration_problems, partial(default_problems, registry=registry), *rules)
        takes = partial(parameters_of, registry=registry)
        resolved = apply(
            config, *layers, parameters=takes, rules=rules, origins=origins, outside=outside, problems=problems
        )
        return resolved if layers or config is not self.name else LayeredConfig(self.name)

    def exists(self) -> bool:
        """Return whether the name is that of a registered pipeline, a deploy file or preset, or a folder."""
        name, is_folder = str(self.name), False
        with suppress(ConfigError):  # ~NAME of no user
            is_folder = expanded(name).is_dir()
        return is_folder or self._is_deploy(load_plugins()) or name in load_plugins().names("omni_pipelines")

    def interface(self) -> Interface | None:
        """Return what the pipeline offers on its model, without reading weights. Raises as :meth:`resolve`."""
        if isinstance(self.name, PipelineConfig):
            return self.name.interface
        registry = load_plugins()
        deploy = self.files(registry)
        if deploy is not None and deploy.whole is not None:
            return structure(whole_values(deploy.whole)).interface
        chosen = source_values([*self._below(deploy), self._variables(KEYS), *self._flags()])
        component = self._chosen(deploy, chosen, registry)
        return interface_of(component, self._model(chosen, registry))

    def component(self, registry: PluginRegistry) -> PipelineComponent:
        """Return the installed pipeline that is meant, of what is no whole config. Raises as :meth:`resolve`."""
        deploy = self.files(registry)
        return self._chosen(deploy, source_values([*self._below(deploy), self._variables(KEYS)]), registry)

    def _below(self, deploy: DeployFile | None) -> list[Layer]:
        """Return the layers of the deploy files."""
        return deploy.layers(self.platform or platform()) if deploy is not None else []

    def _variables(self, names: Iterable[str]) -> Layer:
        """Return the layer of the environment, for the fields and stages of ``names``."""
        return environment_layer(names, None if self.environment else {})

    def files(self, registry: PluginRegistry) -> DeployFile | None:
        """Return the deploy files that are named, with those that they are based on; ``None`` if there are none.

        Raises:
            ConfigError: one cannot be read.
        """
        named = [str(self.name)] if self._is_deploy(registry) else []
        found = [read_deploy(each, registry) for each in (*named, self.overlay) if each is not None]
        for each in found[len(named) :]:
            if each.whole is not None:
                where = each.whole.origin("stages")
                raise ConfigError(f"{where}: stages: must map names to fields; an overlay cannot add or remove stages")
        documents = [document for each in found for document in each.documents]
        return DeployFile(documents, [line for each in found for line in each.problems]) if found else None

    def _is_deploy(self, registry: PluginRegistry) -> bool:
        name = self.name
        return isinstance(name, str) and (is_file(name) or ("/" in name and name in preset_names(registry)))

    def _flags(self) -> list[Layer]:
        every, named = for_every_stage(self.overrides())
        for name, value in self.options.items():
            named.append(Override(("options", name), value, f"{self.dashes}option {name}={value}"))
        if self.model is not None:
            named.append(Override(("model_path",), self.model, f"{self.dashes}model {self.model}"))
        return [Layer(f"{self.dashes}set {EVERY_STAGE}", every), Layer(f"{self.dashes}set", named)]

    def made(self, deploy: DeployFile | None, chosen: SourceValues, registry: PluginRegistry) -> PipelineConfig:
        """Return what the function of the chosen pipeline makes. Raises as :meth:`resolve`."""
        component = self._chosen(deploy, chosen, registry)
        try:
            return self.built(component, self._model(chosen, registry), chosen.options)
        except Exception as error:
            raise chosen.explained(error, component.name) from error

    def _model(self, chosen: SourceValues, registry: PluginRegistry) -> str | None:
        """Return the checkpoint: the name itself, where it is one."""
        name = str(self.name)
        if self._is_deploy(registry) or name in registry.names("omni_pipelines"):
            return chosen.model
        if self.model is not None:
            raise ConfigError(
                f"{self.dashes}model: {name} is itself the checkpoint; name a pipeline or remove {self.dashes}model"
            )
        return name

    def _chosen(self, deploy: DeployFile | None, chosen: SourceValues, registry: PluginRegistry) -> PipelineComponent:
        """Return the pipeline that the name, or the key ``pipeline`` of a deploy file, means."""
        if not self._is_deploy(registry):
            component = self._component(str(self.name), registry)
            if chosen.pipeline not in (None, component.name):
                where = chosen.origins["pipeline"]
                raise ConfigError(
                    f"{where}: pipeline: it is for {chosen.pipeline!r}, and {component.name!r} is asked for"
                )
            return component
        if chosen.pipeline is None and chosen.model is None:
            assert deploy is not None
            missing = f"{deploy.name}: `pipeline` is missing: the name of one (`omni pipelines` lists them)"
            raise ConfigError("\n".join(deploy.problems) or missing)  # a base that cannot be read may have it
        if chosen.pipeline is None:
            return self._component(str(chosen.model), registry)
        if chosen.pipeline not in registry.names("omni_pipelines"):
            hint = did_you_mean(chosen.pipeline, registry.names("omni_pipelines"))
            raise ConfigError(f"{chosen.origins['pipeline']}: no pipeline is called {chosen.pipeline!r}{hint}")
        return self._component(chosen.pipeline, registry)

    def _component(self, name: str, registry: PluginRegistry) -> PipelineComponent:
        if name not in registry.names("omni_pipelines"):
            folder = expanded(name)
            if folder.is_dir():
                return claimant(name, folder, registry)
            if (of_file := claimant_of_file(name, registry)) is not None:
                return of_file
            known = [each for each in preset_names(registry) if each.startswith(f"{name.partition('/')[0]}/")]
            if "/" in name and known:
                raise PluginError(
                    f"{name} is neither a folder nor a preset of that pipeline{did_you_mean(name, known)}"
                )
            if _HUB_ID.fullmatch(name):
                return claimant(name, _fetched(name, registry), registry)
            if "/" in name:
                raise PluginError(f"{name} is neither a pipeline nor a folder nor a hub id (OWNER/NAME)")
        try:
            component = registry.get("omni_pipelines", name)
        except PluginError as error:
            raise PluginError(f"{error} (`omni pipelines` lists those that are installed)") from None
        assert isinstance(component, PipelineComponent)
        return component


def _fetched(name: str, registry: PluginRegistry) -> Path:
    """Return a folder with the config of a checkpoint that is no folder here, from the first pipeline that can find it.

    Raises:
        PluginError: none can.
    """
    components = [each for each, _ in registry.components("omni_pipelines") if isinstance(each, PipelineComponent)]
    problem = "no installed pipeline fetches checkpoints"
    for finder in dict.fromkeys(each.config_folder_fn for each in components if each.config_folder_fn):
        try:
            return Path(load(finder)(name))
        except ConfigError as error:
            problem = str(error)
    raise PluginError(
        f"{name} is neither a pipeline nor a folder, and as a hub id it cannot be read ({problem}). "
        f"Or name its pipeline: omni run PIPELINE --model {name}"
    )
