"""The defaults that a config gives to requests, checked one by one: what is wrong is named as it was written, by role or by group."""

from __future__ import annotations

from collections.abc import Iterator

from omni_core.api import InvalidRequestError, PipelineConfig, PluginRegistry, did_you_mean
from omni_core.runtime_api import affinity_keys, default_params, group_named, with_parts


def default_problems(config: PipelineConfig, registry: PluginRegistry) -> Iterator[str]:
    """Yield a line for each default that a request could not have."""
    if config.interface is None:
        return
    interface, given = with_parts(config.interface, config.stages, registry), config.defaults
    for key, value in given.params.items():
        group = group_named(interface, key)
        if group != key and group in given.params:
            yield f"defaults.params.{key}: given twice, by role and as {group}; use one of the two names in all layers"
        for part in [{name: each} for name, each in value.items()] if isinstance(value, dict) else [value]:
            try:
                interface.check_params({group: part})
            except InvalidRequestError as error:
                yield f"defaults.{error}".replace(f"params.{group}", f"params.{key}", 1)
    try:
        default_params(config, interface)
    except InvalidRequestError as error:
        if "given twice" in str(error):
            role = next((key for key in given.params if f"params.{group_named(interface, key)}." in str(error)), None)
            yield f"defaults.{error}".replace(f"params.{group_named(interface, str(role))}.", f"params.{role}.", 1)
    for key, value in given.metadata.items():
        try:
            interface.check_metadata({key: value}, affinity_keys(config))
        except InvalidRequestError as error:
            yield f"defaults.{error}"
    for name in given.modalities or ():
        if interface.outputs and name not in interface.outputs:
            yield f"defaults.modalities: {name!r} is not offered{did_you_mean(name, interface.outputs)}"
