"""From a stage's spec to its scheduler: call its factory, or compose ``scheduler(runner(feedback))`` from named parts.

Every argument is checked against the signatures before anything is called, because the first call may read weights for minutes.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from attrs import evolve, frozen

from omni_core.errors import ConfigError, did_you_mean
from omni_core.protocol.specs import StageSpec
from omni_core.references import load
from omni_core.scheduling.base import MessageQueue, Scheduler
from omni_core.scheduling.simple import SimpleScheduler

CONTEXT_ARGUMENTS = (
    *("model_path", "device", "gpu_id", "gpu_memory", "payload_bytes", "stage_name", "replica"),
    *("tp_rank", "tp_size", "tp_rendezvous"),
)
"""The arguments that every callable of a stage is given if it accepts them; ``factory_args`` may replace their values."""

BATCHING_ARGUMENTS = ("batch_size", "batch_wait")
"""Keys of ``factory_args`` that set how a batch function is called."""

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def build_scheduler(spec: StageSpec) -> Scheduler:
    """Build the scheduler of a stage.

    The factory returns a :class:`Scheduler`, or a function from payload to data, which a :class:`SimpleScheduler` runs.
    A factory whose only required parameter is ``payload`` *is* such a function (a generator function, if it yields), and one whose
    only required parameter is ``payloads`` is a batch function. The ``factory_args`` of batch functions, and of factories that
    return them, may hold ``batch_size`` and ``batch_wait`` (see :meth:`SimpleScheduler.of_batches`).

    Raises:
        ConfigError: ``factory_args`` do not fit, or what was called returned something else than it should.
    """
    if spec.model_runner is not None:
        return _assemble(spec)
    factory = _Callable.load(spec, "factory")
    given = spec.factory_args
    batching = {name: given[name] for name in BATCHING_ARGUMENTS if name in given and name not in factory.named}
    own = evolve(spec, factory_args={name: value for name, value in given.items() if name not in batching})
    is_function = not own.factory_args and _required(factory.target) in (["payload"], ["payloads"])
    product = factory.target if is_function else factory.target(**_factory_arguments(factory, own))
    if callable(product) and not isinstance(product, Scheduler):
        return _of_function(product, batching, spec)
    if batching:
        path = f"stages[{spec.name}].factory_args.{next(iter(batching))}"
        raise ConfigError(f"{path}: {spec.factory!r} returns no batch function")
    if isinstance(product, Scheduler):
        return _with_queues(product, factory)
    raise ConfigError(
        f"{factory.path}: {factory.reference!r} returned a {type(product).__name__}; "
        "it must return a scheduler or a function from payload to data"
    )


def _of_function(function: Callable[..., Any], batching: dict[str, Any], spec: StageSpec) -> SimpleScheduler:
    path = f"stages[{spec.name}].factory_args"
    if _required(function) != ["payloads"]:
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


def _required(factory: Callable[..., Any]) -> list[str]:
    """The required parameters of a function; of a class, none, as it is no stage function itself."""
    try:
        parameters = {} if inspect.isclass(factory) else inspect.signature(factory).parameters
    except ValueError:  # a builtin without a signature
        return []
    return [name for name, each in parameters.items() if each.default is each.empty and each.kind not in _VARIADIC]


def assemble(model_runner: str, scheduler: str, feedback: str | None = None, **arguments: Any) -> Scheduler:
    """Build a stage of parts outside a pipeline, from dotted references and the arguments of all parts."""
    spec = StageSpec(name="stage", model_runner=model_runner, feedback=feedback, scheduler=scheduler)
    return build_scheduler(evolve(spec, factory_args=arguments))


@frozen
class _Callable:
    """A callable that a stage's spec names, and its parameters by name.

    Attributes:
        kind: the spec's field that names it.
        path: that field, for messages.
    """

    kind: str
    path: str
    reference: str
    target: Callable[..., Any]
    parameters: dict[str, inspect.Parameter]

    @classmethod
    def load(cls, spec: StageSpec, kind: str) -> _Callable:
        """Import it and read its signature."""
        path, reference = f"stages[{spec.name}].{kind}", getattr(spec, kind)
        target = load(reference)
        if not callable(target):
            raise ConfigError(f"{path}: {reference!r} is not callable")
        return cls(kind, path, reference, target, dict(inspect.signature(target).parameters))

    @property
    def named(self) -> list[str]:
        """The parameters that can be given by name."""
        return [name for name, parameter in self.parameters.items() if parameter.kind not in _VARIADIC]

    @property
    def required(self) -> list[str]:
        return [name for name in self.named if self.parameters[name].default is inspect.Parameter.empty]

    @property
    def takes_any(self) -> bool:
        return any(parameter.kind is parameter.VAR_KEYWORD for parameter in self.parameters.values())

    def check_rank(self, spec: StageSpec) -> None:
        """Raise ConfigError if the stage has several ranks and this callable cannot be one of them."""
        if spec.injected.get("tp_size", 1) > 1 and "tp_rank" not in self.named and not self.takes_any:
            raise ConfigError(
                f"stages[{spec.name}].tp_size: {self.reference!r} takes no `tp_rank`, so it cannot be one rank of several"
            )

    def injected(self, spec: StageSpec) -> dict[str, Any]:
        """Return what it accepts of the stage's context; ``factory_args`` replace values of the context."""
        given = {"gpu_id": spec.gpu, **spec.injected, **spec.factory_args}
        return {name: given[name] for name in CONTEXT_ARGUMENTS if name in self.named and name in given}

    def check_complete(self, spec: StageSpec, arguments: dict[str, Any]) -> None:
        missing = [name for name in self.required if name not in arguments]
        if missing:
            raise ConfigError(f"stages[{spec.name}].factory_args.{missing[0]}: {self.reference!r} needs it")


def _factory_arguments(factory: _Callable, spec: StageSpec) -> dict[str, Any]:
    unknown = [name for name in spec.factory_args if name not in factory.named]
    if unknown and not factory.takes_any:
        raise ConfigError(
            f"stages[{spec.name}].factory_args.{unknown[0]}: {factory.reference!r} has no such parameter"
            f"{did_you_mean(unknown[0], factory.named, listing='it takes')}"
        )
    factory.check_rank(spec)
    arguments = {**factory.injected(spec), **spec.factory_args}
    factory.check_complete(spec, arguments)
    return arguments


def _assemble(spec: StageSpec) -> Scheduler:
    """Compose ``scheduler(runner(feedback))``."""
    parts = [_Callable.load(spec, kind) for kind in ("feedback", "model_runner", "scheduler") if getattr(spec, kind)]
    *feedback, runner, scheduler = parts
    _check_joints(runner, scheduler, has_feedback=bool(feedback))
    runner.check_rank(spec)
    arguments = _shared_out(spec, parts)
    inner = {"feedback": feedback[0].target(**arguments["feedback"])} if feedback else {}
    product = scheduler.target(runner=runner.target(**inner, **arguments["model_runner"]), **arguments["scheduler"])
    if not isinstance(product, Scheduler):
        kind = type(product).__name__
        raise ConfigError(f"{scheduler.path}: {scheduler.reference!r} returned a {kind}, no scheduler")
    return _with_queues(product, scheduler)


def _with_queues(product: Scheduler, maker: _Callable) -> Scheduler:
    """Check the queues of a scheduler: nothing polls, so a queue that wakes no event loop would leave its requests waiting for ever."""
    for name in ("inbox", "outbox"):
        if not isinstance(queue := getattr(product, name), MessageQueue):
            raise ConfigError(
                f"{maker.path}: {maker.reference!r} returned a scheduler whose `{name}` is a {type(queue).__name__}; "
                "make it a MessageQueue (omni_core.api)"
            )
    return product


_JOINTS = {"model_runner": "feedback", "scheduler": "runner"}
"""The parameter of a part that takes the part before it."""


def _check_joints(runner: _Callable, scheduler: _Callable, *, has_feedback: bool) -> None:
    if "runner" not in scheduler.named:
        raise ConfigError(f"{scheduler.path}: {scheduler.reference!r} takes no `runner`, so it drives no model runner")
    path = f"{runner.path.rpartition('.')[0]}.feedback"
    if has_feedback and "feedback" not in runner.named:
        raise ConfigError(f"{path}: {runner.reference!r} takes no `feedback`; it runs no feedback loop")
    if not has_feedback and "feedback" in runner.required:
        raise ConfigError(f"{path}: required, because {runner.reference!r} runs a feedback loop")


def _shared_out(spec: StageSpec, parts: list[_Callable]) -> dict[str, dict[str, Any]]:
    """Return each part's arguments. A key belongs to the one part whose signature has it; a part takes none by ``**kwargs``.

    Raises:
        ConfigError: a key that no part or more than one part takes, or a part that lacks one.
    """
    options = {
        part.kind: [name for name in part.named if name != _JOINTS.get(part.kind) and name not in CONTEXT_ARGUMENTS]
        for part in parts
    }
    arguments = {part.kind: part.injected(spec) for part in parts}
    for name, value in spec.factory_args.items():
        path = f"stages[{spec.name}].factory_args.{name}"
        owners = [part for part in parts if name in options[part.kind]]
        if len(owners) > 1:
            both = " and ".join(f"{part.kind} {part.reference!r}" for part in owners)
            raise ConfigError(f"{path}: ambiguous: {both} take it")
        if owners:
            arguments[owners[0].kind][name] = value
        elif not any(name in given for given in arguments.values()):
            every = [f"{part.kind} {part.reference!r}" for part in parts]
            known = [option for part in parts for option in options[part.kind]]
            raise ConfigError(f"{path}: no part has such a parameter ({', '.join(every)}){did_you_mean(name, known)}")
    for part in parts:
        joint = {_JOINTS[part.kind]: None} if part.kind in _JOINTS else {}
        part.check_complete(spec, arguments[part.kind] | joint)
    return arguments
