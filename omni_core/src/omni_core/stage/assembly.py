"""From a stage's spec to its scheduler: import the factory, inject what it accepts, wrap plain functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from omni_core.errors import ConfigError, did_you_mean
from omni_core.protocol.specs import StageSpec
from omni_core.references import load
from omni_core.scheduling.base import Scheduler
from omni_core.scheduling.simple import SimpleScheduler


def build_scheduler(spec: StageSpec) -> Scheduler:
    """The scheduler of a stage.

    The factory returns a :class:`Scheduler`, or a function from payload to data, which a :class:`SimpleScheduler` runs.
    A factory whose only required parameter is the payload *is* such a function.

    Raises:
        ConfigError: ``factory_args`` do not fit the factory, or it returned something else.
    """
    factory = load(spec.factory)
    if not callable(factory):
        raise ConfigError(f"stages[{spec.name}].factory: {spec.factory!r} is not callable")
    if not spec.factory_args and _is_compute(factory):
        return SimpleScheduler(factory)
    product = factory(**_arguments(factory, spec))
    if isinstance(product, Scheduler):
        return product
    if callable(product):
        return SimpleScheduler(product)
    raise ConfigError(
        f"stages[{spec.name}].factory: {spec.factory!r} returned a {type(product).__name__}; "
        "it must return a scheduler or a function from payload to data"
    )


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(factory).parameters)


def _is_compute(factory: Callable[..., Any]) -> bool:
    """Whether a callable is a stage function itself: exactly one required parameter, called ``payload``."""
    if inspect.isclass(factory):
        return False
    required = [
        name
        for name, parameter in _parameters(factory).items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return required == ["payload"]


def _arguments(factory: Callable[..., Any], spec: StageSpec) -> dict[str, Any]:
    parameters = _parameters(factory)
    takes_any = any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values())
    unknown = [name for name in spec.factory_args if name not in parameters]
    if unknown and not takes_any:
        hint = did_you_mean(unknown[0], parameters, listing="it takes")
        raise ConfigError(
            f"stages[{spec.name}].factory_args.{unknown[0]}: {spec.factory!r} has no such parameter{hint}"
        )
    if spec.injected.get("tp_size", 1) > 1 and "tp_rank" not in parameters and not takes_any:
        raise ConfigError(
            f"stages[{spec.name}].tp_size: {spec.factory!r} takes no `tp_rank`, so it cannot be one rank of several"
        )
    if "scheduler" in spec.injected and "scheduler" not in parameters:
        raise ConfigError(f"stages[{spec.name}].scheduler: {spec.factory!r} takes no `scheduler`; it brings its own")
    arguments = {name: value for name, value in spec.injected.items() if name in parameters}
    arguments.update(spec.factory_args)
    missing = [
        name
        for name, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in arguments
    ]
    if missing:
        raise ConfigError(f"stages[{spec.name}].factory_args.{missing[0]}: {spec.factory!r} needs it")
    return arguments
