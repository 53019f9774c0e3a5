"""From a stage's spec to its scheduler: import the factory, inject what it accepts, wrap plain functions."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attrs import evolve

from omni_core.errors import ConfigError, did_you_mean
from omni_core.protocol.specs import StageSpec
from omni_core.references import load
from omni_core.scheduling.base import Scheduler
from omni_core.scheduling.simple import SimpleScheduler


def build_scheduler(spec: StageSpec) -> Scheduler:
    """The scheduler of a stage.

    The factory returns a :class:`Scheduler`, or a function from payload to data, which a :class:`SimpleScheduler` runs.
    A factory whose only required parameter is ``payload`` *is* such a function (a generator function, if it yields), and one whose
    only required parameter is ``payloads`` is a batch function. The ``factory_args`` of batch functions, and of factories that
    return them, may hold ``batch_size`` and ``batch_wait`` (see :meth:`SimpleScheduler.of_batches`).

    Raises:
        ConfigError: ``factory_args`` do not fit the factory, or it returned something else.
    """
    factory = load(spec.factory)
    if not callable(factory):
        raise ConfigError(f"stages[{spec.name}].factory: {spec.factory!r} is not callable")
    batching = {name: value for name, value in spec.factory_args.items() if name in ("batch_size", "batch_wait")}
    batching = {name: value for name, value in batching.items() if name not in _parameters(factory)}
    own = evolve(spec, factory_args={k: v for k, v in spec.factory_args.items() if k not in batching})
    is_function = not own.factory_args and (_takes_only(factory, "payload") or _takes_only(factory, "payloads"))
    product = factory if is_function else factory(**_arguments(factory, own))
    if callable(product) and not isinstance(product, Scheduler):
        return _of_function(product, batching, spec)
    if batching:
        name = next(iter(batching))
        raise ConfigError(f"stages[{spec.name}].factory_args.{name}: {spec.factory!r} returns no batch function")
    if isinstance(product, Scheduler):
        return product
    raise ConfigError(
        f"stages[{spec.name}].factory: {spec.factory!r} returned a {type(product).__name__}; "
        "it must return a scheduler or a function from payload to data"
    )


def _of_function(function: Callable[..., Any], batching: dict[str, Any], spec: StageSpec) -> SimpleScheduler:
    path = f"stages[{spec.name}].factory_args"
    if not _takes_only(function, "payloads"):
        if batching:
            name = next(iter(batching))
            raise ConfigError(
                f"{path}.{name}: {spec.factory!r} takes one payload at a time; a batch function has one parameter, "
                "`payloads`, a list, and returns a list of results"
            )
        return SimpleScheduler(function)
    if batching.get("batch_wait") and spec.injected.get("tp_size", 1) > 1:
        raise ConfigError(f"{path}.batch_wait: not possible with a tp_size above 1: the ranks would batch differently")
    try:
        return SimpleScheduler.of_batches(function, **batching)
    except ConfigError as error:
        raise ConfigError(f"{path}.{error}") from None


def _parameters(factory: Callable[..., Any]) -> dict[str, inspect.Parameter]:
    return dict(inspect.signature(factory).parameters)


def _takes_only(factory: Callable[..., Any], name: str) -> bool:
    """Return whether a callable is a stage function itself: exactly one required parameter, of that name."""
    if inspect.isclass(factory):
        return False
    try:
        parameters = _parameters(factory)
    except ValueError:  # a builtin without a signature
        return False
    required = [
        each
        for each, parameter in parameters.items()
        if parameter.default is parameter.empty
        and parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    ]
    return required == [name]


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
