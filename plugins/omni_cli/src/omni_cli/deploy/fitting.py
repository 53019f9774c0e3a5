"""Fits a config to the GPUs of a machine: the devices and budgets that a ``placement_fn`` chooses, and the check of all of them."""

from __future__ import annotations

from collections.abc import Callable

from attrs import evolve

from omni_cli.deploy.budgets import check
from omni_cli.deploy.devices import detect
from omni_cli.deploy.override_layers import LayeredConfig
from omni_core.api import ConfigError, Machine, OmniError, PipelineConfig, Placement, load
from omni_core.runtime_api import message_of, plan, validate


class NamedInFileError(ConfigError):
    """A file names code that a command which runs nothing would have to run."""


def check_placement(resolved: LayeredConfig) -> None:
    """Check that no file names the ``placement_fn``, for commands that run nothing else that a file names.

    Raises:
        NamedInFileError: one does.
    """
    where, named = resolved.in_file("placement_fn"), resolved.config.placement_fn
    if where is not None and named is not None:
        raise NamedInFileError(
            f"{where}: placement_fn: is code that the file names, and not called here; to call it: --set placement_fn={named}"
        )


def gpus_of(config: PipelineConfig) -> list[int] | None:
    """Return the bytes of each GPU of this machine; ``None`` if they are not known, or the config's launcher has other machines."""
    return detect() if config.resolved_launcher.name in ("local", "hosts") else None


def placed(config: PipelineConfig, machine: Machine) -> Placement:
    """Return a valid config with the devices and budgets that its ``placement_fn`` chooses.

    Raises:
        DoesNotFitError: the pipeline does not fit. ConfigError: what the function chose is invalid.
    """
    if config.placement_fn is None:
        return Placement(config)
    try:
        placement: Placement = load(config.placement_fn)(config, machine)
    except OmniError:
        raise
    except Exception as error:  # a plugin's function, given values that it does not expect
        raise ConfigError(f"placement_fn: {config.placement_fn} failed: {message_of(error, with_type=True)}") from error
    placement = evolve(placement, config=evolve(placement.config, placement_fn=None))
    validate(placement.config)
    return placement


def fitted(config: PipelineConfig, located: Callable[[str], str]) -> PipelineConfig:
    """Return a valid config placed on this machine and checked against its GPUs. Raises as :func:`placed`, with ``located`` problems."""
    gpus = gpus_of(config)
    try:
        config = placed(config, Machine(gpus)).config
        check([process for process in plan(config) if process.host is None and process.gpus], gpus)
    except ConfigError as error:
        raise type(error)(located(str(error))) from error
    return config
