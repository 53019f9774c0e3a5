"""The plugin contract on one page: every hook, its types, when it is called.

A plugin is a distribution with an entry point in the group ``omni`` that names a *light* module: importing it imports
neither torch nor transformers and takes under 20 ms. The module holds functions marked ``@hookimpl`` that return
*components*: names with dotted references, resolved only in the process that uses them::

    # pyproject.toml                              # my_relay/plugin.py
    [project.entry-points.omni]                   from omni_core.hookspecs import Component, hookimpl
    my-relay = "my_relay.plugin"                  supports = (1, 1)   # the API levels this plugin works with

                                                  @hookimpl
                                                  def omni_relays():
                                                      return [Component("mine", "my_relay.relay:MyRelay", "what it is")]

Every hook is called without arguments, once in a process that looks for plugins: ``omni``, or a program that opens a pipeline.
Stage processes call none: they get the references that they need, already resolved. A plugin implements the hooks for which it
has something.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pluggy
from attrs import field, frozen

from omni_core.interface import Interface

hookspec = pluggy.HookspecMarker("omni")
hookimpl = pluggy.HookimplMarker("omni")


class Remark(str):
    """A probe's answer for a component that can work on this machine, but not as well as on others: what is missing."""

    __slots__ = ()


Probe = Callable[[], str | None]
"""Says cheaply whether a component can work on this machine: ``None`` or a :class:`Remark` if so, else the reason why not."""


def works(answer: str | None) -> bool:
    """Whether a probe's answer means that the component can work here."""
    return answer is None or isinstance(answer, Remark)


@frozen
class Component:
    """One named thing that a plugin provides.

    Attributes:
        name: how configs and commands ask for it; unique per hook over all installed plugins.
        target: ``"package.module:attribute"``, imported only in the process that uses the component.
        summary: one line for ``omni plugins list``.
        requires: importable module names that the target needs beyond its distribution's hard dependencies.
        probe: whether it can work here; called by ``omni plugins check`` and ``omni doctor``, never at start-up.
        conformance: ``"package.module:Class"``, a subclass of a suite of ``omni_testing`` that says how to build and ask the
            component in a test; imported by ``omni plugins check --full`` and by tests, never otherwise.
    """

    name: str
    target: str
    summary: str
    requires: tuple[str, ...] = ()
    probe: Probe | None = None
    conformance: str | None = field(default=None, kw_only=True)


@frozen
class RelayComponent(Component):
    """A relay.

    Attributes:
        across_hosts: whether it joins processes of different hosts. The core asks such a relay where the pipeline's own does not.
        preference: among several of those that can work, the one with the highest is taken.
    """

    across_hosts: bool = field(default=False, kw_only=True)
    preference: int = field(default=0, kw_only=True)


@frozen
class KernelComponent(Component):
    """An implementation of a named operation, for a device and some dtypes; the highest ``priority`` that probes well wins.

    Attributes:
        operation: the operation's name.
        device: the kind of device that it runs on.
        dtypes: the names of the dtypes that it takes; empty: all.
        priority: which of several wins: the highest.
        reference: ``"package.module:attribute"``, the :class:`omni_torch.kernels.Operation` that it implements;
            ``omni plugins check`` compares the two. ``probe`` is also asked, by its name, in each process that would run the
            kernel, so it must be a function of a module.
    """

    operation: str = field(kw_only=True)
    device: str = field(default="cuda", kw_only=True)
    dtypes: tuple[str, ...] = field(default=(), kw_only=True)
    priority: int = field(default=0, kw_only=True)
    reference: str | None = field(default=None, kw_only=True)


@frozen
class PipelineComponent(Component):
    """A pipeline: ``target`` is a callable ``(model_path: str, **options) -> PipelineConfig``.

    Attributes:
        options: one line of help per keyword option of the target.
        default_model: what to use when no ``--model`` is given: a callable reference
            ``() -> tuple[path, notice]`` that may make a model and says in ``notice`` what it is.
        architectures: the ``architectures`` (or the ``model_type``) in the ``config.json`` of the checkpoints for which this pipeline is
            the one to run: ``omni run FOLDER`` finds it by them.
        interface: what it offers: request parameters, modalities, voices. The config gets it where the target sets none.
    """

    options: dict[str, str] = field(factory=dict, kw_only=True)
    default_model: str | None = field(default=None, kw_only=True)
    architectures: tuple[str, ...] = field(default=(), kw_only=True)
    interface: Interface | None = field(default=None, kw_only=True)


@hookspec
def omni_relays() -> list[Component]:  # type: ignore[empty-body]
    """Relay backends. Target: a :class:`omni_core.relay.base.Relay` subclass taking a ``RelayOptions``.

    Asked for by ``relay_backend``; the target is imported in every process that sends to or receives from another. Example::

        @hookimpl
        def omni_relays():
            return [Component("shm", "omni_relay_shm.relay:ShmRelay", "pooled host shared memory", probe=probe)]
    """


@hookspec
def omni_schedulers() -> list[Component]:  # type: ignore[empty-body]
    """Schedulers. Target: a callable that returns a :class:`omni_core.scheduling.base.Scheduler`.

    Asked for by a stage's ``factory``; the target is imported and called with ``factory_args`` in the stage's process. Example::

        @hookimpl
        def omni_schedulers():
            return [Component("engine", "omni_engine.scheduler:EngineScheduler", "continuous batching over paged KV")]
    """


@hookspec
def omni_model_runners() -> list[Component]:  # type: ignore[empty-body]
    """Model runners. Target: a :class:`omni_torch.model_runner.ModelRunner` subclass.

    Listed and checked. The factory of a stage makes its runner; the core asks for none by name. Example::

        @hookimpl
        def omni_model_runners():
            return [Component("my-decoder", "my_model.runner:DecoderRunner", "decoder with image embeddings")]
    """


@hookspec
def omni_feedback_strategies() -> list[Component]:  # type: ignore[empty-body]
    """What is model-specific in a feedback loop. Target: a :class:`omni_torch.feedback.FeedbackStrategy`.

    Listed and checked. Whoever makes a runner gives it its strategy; the core asks for none by name. Example::

        @hookimpl
        def omni_feedback_strategies():
            return [Component("my-speech", "my_model.speech:CodebookFeedback", "15 residual codes per frame")]
    """


@hookspec
def omni_payload_projections() -> list[Component]:  # type: ignore[empty-body]
    """Projections, merges and routes by name. Target: a function as ``StageConfig`` describes for the field that uses it.

    Asked for by ``project_payload``, ``merge_fn``, ``route_fn``, ``wait_for_fn`` and ``stream_done_to_fn``, in the stage's process, and
    by ``terminal_stages_fn``, in the parent. Example::

        @hookimpl
        def omni_payload_projections():
            return [Component("my-model.to-encoder", "my_model.routing:to_encoder", "keeps pixel values only")]
    """


@hookspec
def omni_pipelines() -> list[PipelineComponent]:  # type: ignore[empty-body]
    """Pipelines by name. Target: a callable ``(model_path: str, **options) -> PipelineConfig``.

    Asked for by ``omni run NAME`` and every other command that takes a pipeline, which import and call the target. It is light:
    it imports neither torch nor transformers. Example::

        @hookimpl
        def omni_pipelines():
            return [PipelineComponent("echo", "my_echo.pipeline:pipeline", "says it back")]
    """


@hookspec
def omni_kernels() -> list[KernelComponent]:  # type: ignore[empty-body]
    """Kernels per operation, device and dtype. Target: a callable with the operation's reference signature.

    Sent to every process of a pipeline, which calls the one that fits in place of the reference
    (``omni_torch.kernels``); compared with it by ``omni plugins check``. Example::

        @hookimpl
        def omni_kernels():
            return [
                KernelComponent(
                    "triton-rms-norm",
                    "my_kernels.norm:rms_norm",
                    "fused",
                    operation="rms_norm",
                    reference="omni_torch.operations:rms_norm",
                    probe=probe,
                )
            ]
    """


@hookspec
def omni_launchers() -> list[Component]:  # type: ignore[empty-body]
    """Ways to start a pipeline's processes elsewhere than on this host. Target: a ``ProcessLauncher``.

    Listed and checked; the runner of this version starts every process itself. Example::

        @hookimpl
        def omni_launchers():
            return [Component("ray", "omni_ray.launcher:RayLauncher", "processes as Ray actors")]
    """


@hookspec
def omni_commands() -> list[Component]:  # type: ignore[empty-body]
    """Commands under ``omni``. Target: a ``click.Command``; imported only when the command is used.

    ``omni --help`` lists names and summaries. A command of the core cannot be replaced. Example::

        @hookimpl
        def omni_commands():
            return [Component("greet", "my_tool.commands:greet", "says hello")]
    """


HOOKS: dict[str, str] = {
    "omni_relays": "relay",
    "omni_schedulers": "scheduler",
    "omni_model_runners": "model runner",
    "omni_feedback_strategies": "feedback strategy",
    "omni_payload_projections": "projection",
    "omni_pipelines": "pipeline",
    "omni_kernels": "kernel",
    "omni_launchers": "launcher",
    "omni_commands": "command",
}
"""Hook name to the word that messages use for one of its components."""


API_LEVELS: dict[str, int] = {
    "omni_relays": 1,
    "omni_schedulers": 1,
    "omni_model_runners": 1,
    "omni_feedback_strategies": 1,
    "omni_payload_projections": 1,
    "omni_pipelines": 1,
    "omni_kernels": 1,
    "omni_launchers": 1,
    "omni_commands": 1,
}
"""Hook name to the level of its contract: the hook, its components, and what their targets must be and are given.

A level grows by one when that contract changes in a way that a plugin notices. A plugin's module declares what it works with:
``supports = (1, 2)`` for all its hooks, or ``supports = {"relays": (1, 2), "commands": (1, 1)}``; it is read before the import.
"""


def kind_of(hook: str) -> str:
    """The plural that ``supports`` uses for a hook: ``relays`` for ``omni_relays``."""
    return hook.removeprefix("omni_")


def hooks() -> dict[str, Any]:
    """Every hookspec of this page by name."""
    return {name: globals()[name] for name in HOOKS}
