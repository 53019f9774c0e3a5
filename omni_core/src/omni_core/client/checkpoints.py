"""The interface of a pipeline on one checkpoint, read from the checkpoint's files where the component names a function for that."""

from __future__ import annotations

from pathlib import Path

from omni_core.config.loading import expanded
from omni_core.errors import ConfigError, OmniError, message_of
from omni_core.hookspecs import PipelineComponent
from omni_core.interface import Interface
from omni_core.plugins import PluginFault, isolated
from omni_core.references import load

CHECKPOINT_CONFIGS = ("config.json", "model_index.json")
"""The files that say what a checkpoint is: of a model, and of a pipeline of several models."""


def config_of(folder: Path) -> Path | None:
    """Return the file that says what the checkpoint in a folder is, if there is one."""
    return next((folder / name for name in CHECKPOINT_CONFIGS if (folder / name).is_file()), None)


def interface_of(component: PipelineComponent, model: str | None) -> Interface | None:
    """Return what a pipeline offers on a checkpoint; without ``model``, what it declares of any.

    Raises:
        ConfigError: the checkpoint is not here and cannot be fetched, or its interface cannot be read; the message names the
            component and the file.
    """
    if component.interface_from is None or model is None:
        return component.interface
    place = expanded(model)
    if not place.exists():
        if component.config_folder_fn is None:
            what = f"{model} is neither a file nor a folder here, and this pipeline fetches no checkpoints"
            raise ConfigError(f"pipeline {component.name!r}: {what}")
        place = Path(load(component.config_folder_fn)(model))
    try:
        with isolated():
            found: Interface = load(component.interface_from)(str(place))
            if not isinstance(found, Interface):
                raise TypeError(f"it returned {type(found).__name__}, not Interface")
    except PluginFault as fault:
        cause, where = fault.__cause__, config_of(place) or place
        problem = message_of(cause) if isinstance(cause, OmniError) else f"{component.interface_from}: {fault}"
        message = f"pipeline {component.name!r}: its interface cannot be read from {where}: {problem}"
        raise ConfigError(message) from fault
    return found
