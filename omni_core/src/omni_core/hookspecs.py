"""The plugin contract on one page: every hook, the components that it returns, and when it is called.

A plugin is a distribution with an entry point in the group ``omni`` that names a *light* module: importing it imports
neither torch nor transformers and takes under 20 ms. The module holds functions marked ``@hookimpl`` that return
*components*: names with dotted references, resolved only in the process that uses them::

    # pyproject.toml
    [project.entry-points.omni]
    my-relay = "my_relay.plugin [relays-1]"   # the API level of each kind of hook that the plugin works with

    # my_relay/plugin.py
    from omni_core.api import Component, hookimpl

    @hookimpl
    def omni_relays():
        return [Component("mine", "my_relay.relay:MyRelay", "what it is")]

Every hook is called without arguments, once in a process that looks for plugins: ``omni``, or a program that opens a pipeline.
Stage processes call none: they get the references that they need, already resolved. Each plugin is called by itself: one that
fails takes none of the others with it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import pluggy
from attrs import field, frozen

from omni_core.component_checks import Probe as Probe
from omni_core.component_checks import ProbeWarning as ProbeWarning
from omni_core.component_checks import SlotName as SlotName
from omni_core.component_checks import check_fields
from omni_core.component_checks import works as works
from omni_core.interface import Interface, Parameter

hookimpl = pluggy.HookimplMarker("omni")
"""Marks a function of a plugin's module as the implementation of the hook of its name."""

F = TypeVar("F", bound=Callable[[], Any])


Reference = str
"""``"package.module:attribute"``: imported only where it is used."""


@frozen
class Component:
    """One named thing that a plugin provides.

    Attributes:
        name: how configs and commands ask for it; unique per hook over all installed plugins.
        target: ``"package.module:attribute"``, imported only in the process that uses the component.
        summary: one line for ``omni plugins list``.
        requires: importable module names that the target needs beyond its distribution's hard dependencies.
        probe: says whether it can work here; called by ``omni plugins check`` and ``omni doctor``, never at start-up.
        conformance: ``"package.module:Class"``, a subclass of a conformance suite that says how to build and ask the
            component in a test; imported by ``omni plugins check --full`` and by tests, never otherwise.

    Raises:
        TypeError: a field has a value of another type. ConfigError: a reference is not of that form.
    """

    name: str
    target: Reference
    summary: str
    requires: tuple[str, ...] = ()
    probe: Probe | None = None
    conformance: Reference | None = field(default=None, kw_only=True)

    def __attrs_post_init__(self) -> None:
        check_fields(self, self.name)
        if not self.name:
            raise TypeError(f"{type(self).__name__}: name must not be empty")


@frozen
class RelayComponent(Component):
    """A relay.

    Attributes:
        across_hosts: true if it joins processes of different hosts. The core asks such a relay where the pipeline's own does not.
        preference: of several that can work, the one with the highest is used.
        host_memory: true if its bytes always pass through host memory: it is built with the device ``"cpu"`` unless the stage's
            ``relay.device`` says otherwise. False: with the device that the stage computes on.
    """

    across_hosts: bool = field(default=False, kw_only=True)
    preference: int = field(default=0, kw_only=True)
    host_memory: bool = field(default=False, kw_only=True)


@frozen
class SchedulerComponent(Component):
    """A scheduler.

    Attributes:
        runs_model_runners: true if it can drive a stage of parts: its target is called with ``runner``, a
            :class:`omni_core.model_runner.ModelRunner`, and options of its own.
        preference: a stage of parts that names no scheduler gets the one with the highest preference that can work here.
    """

    runs_model_runners: bool = field(default=False, kw_only=True)
    preference: int = field(default=0, kw_only=True)


@frozen
class PartComponent(Component):
    """A part of a stage, a model runner or a feedback strategy, that reads parameters of its own from requests.

    Attributes:
        parameters: names in the group of ``params`` of the stage's role, beyond those that the pipeline declares.
        metadata: keys of a request's ``metadata``, likewise.
    """

    parameters: tuple[Parameter, ...] = field(default=(), kw_only=True)
    metadata: tuple[Parameter, ...] = field(default=(), kw_only=True)


@frozen
class KernelComponent(Component):
    """An implementation of a named operation, for a device and some dtypes; the highest ``priority`` that probes well wins.

    Attributes:
        operation: the operation's name.
        device: the kind of device that it runs on.
        dtypes: the names of the dtypes that it takes; empty: all.
        priority: of several that fit, the one with the highest is used.
        reference: the operation that it implements; its ``compare(component)`` is what ``omni plugins check`` runs. ``probe`` is also
            asked, by its name, in each process that would run the kernel, so it must be a function of a module.
    """

    operation: str = field(kw_only=True)
    device: str = field(default="cuda", kw_only=True)
    dtypes: tuple[str, ...] = field(default=(), kw_only=True)
    priority: int = field(default=0, kw_only=True)
    reference: Reference | None = field(default=None, kw_only=True)


@frozen
class PipelineComponent(Component):
    """A pipeline: ``target`` is a callable ``(model_path: str, **options) -> PipelineConfig``.

    Attributes:
        options: one line of help per keyword option of the target.
        default_model: what to use when no ``--model`` is given: a callable reference
            ``() -> tuple[path, notice]`` that may make a model and says in ``notice`` what it is.
        architectures: the ``architectures`` (or the ``model_type``) in the ``config.json`` of the checkpoints for which this pipeline is
            the one to run, or the ``_class_name`` in their ``model_index.json``: ``omni run FOLDER`` finds it by them.
        fallback: ``(folder) -> str | None``: claims a checkpoint whose architecture is in no installed pipeline's ``architectures``, nor in
            those of a known distribution that could be installed. ``None``: it can run the one in this folder; a text says why not. It
            reads the config alone, and imports neither torch nor transformers.
        files: ends of the names of files each of which is a checkpoint that it runs: ``omni run FILE`` finds it by them.
        interface: what it offers: request parameters, modalities, voices. The config gets it where the target sets none.
        interface_from: ``(path) -> Interface``: what it offers on one checkpoint, read from the config in its folder (of a hub id only that
            file may be there), or from the file that was named as the model. It is used in place of ``interface`` where the model is
            known; like that it may import neither torch nor transformers.
        config_folder_fn: ``(model) -> folder``: fetches the ``config.json`` of a checkpoint that is no folder here (a hub id), so that
            ``omni run MODEL`` finds the pipeline; called in the parent.
        presets: the folder of deploy files that its distribution has as package data, ``"my_model:presets"``: ``NAME.yaml`` in it is the
            preset ``PIPELINE/NAME``. Its first line is a comment that ``omni pipelines PIPELINE`` shows.
    """

    options: dict[str, str] = field(factory=dict, kw_only=True)
    default_model: Reference | None = field(default=None, kw_only=True)
    architectures: tuple[str, ...] = field(default=(), kw_only=True)
    fallback: Reference | None = field(default=None, kw_only=True)
    files: tuple[str, ...] = field(default=(), kw_only=True)
    interface: Interface | None = field(default=None, kw_only=True)
    interface_from: Reference | None = field(default=None, kw_only=True)
    config_folder_fn: Reference | None = field(default=None, kw_only=True)
    presets: Reference | None = field(default=None, kw_only=True)


@frozen
class ServiceComponent(Component):
    """A part of the runtime itself.

    Attributes:
        slot: what it is, one of :data:`SlotName`.
        preference: of several of a slot that can work, the one with the highest is used.
    """

    slot: SlotName = field(kw_only=True)
    preference: int = field(default=0, kw_only=True)


@frozen
class CommandComponent(Component):
    """A command.

    Attributes:
        section: the heading under which ``omni --help`` lists it, such as ``Run``; of a group's command without effect.
    """

    section: str = field(default="Others", kw_only=True)


@frozen
class Hook:
    """One hook of this page.

    Attributes:
        name: the function that a plugin defines, such as ``omni_relays``.
        kind: the word that messages use for one of its components, such as ``relay``.
        level: the API level that this core offers: the hook, its components, and what their targets must be and are given. It grows
            by one when that contract changes in a way that a plugin notices.
        component: the class that its components must be instances of.
        specification: the documented function.
    """

    name: str
    kind: str
    level: int
    component: type[Component]
    specification: Callable[[], Any]

    @property
    def plural(self) -> str:
        """The kind as entry points write it: ``model-runners`` for ``omni_model_runners``."""
        return self.name.removeprefix("omni_").replace("_", "-")


HOOKS: dict[str, Hook] = {}
"""Every hook of this page by name."""


def hookspec(kind: str, level: int, component: type[Component] = Component) -> Callable[[F], F]:
    """Make the decorated function the specification of a hook: of a kind of components that a plugin defines.

    The module that its entry point names imports the function, whose docstring says what a component's target is. Other plugins implement
    the hook as they do those of this page; ``load_plugins().components(NAME)`` and ``.get(NAME, component)`` find what they provide.
    Example::

        @hookspec(kind="voice detector", level=1)
        def omni_voice_detectors() -> list[Component]:
            return []

    Raises:
        TypeError: the name does not begin with ``omni_``, the level is no positive number, or ``component`` no component.
    """

    def mark(specification: F) -> F:
        name = specification.__name__
        if not name.startswith("omni_") or level < 1 or not issubclass(component, Component):
            raise TypeError(
                f"hookspec {name}: the name must begin with omni_, the level be 1 or more, and the class a Component"
            )
        vars(specification)["omni_spec"] = Hook(name, kind, level, component, specification)
        return specification

    return mark


def hook(kind: str, level: int, component: type[Component] = Component) -> Callable[[F], F]:
    """Make the decorated function the specification of a hook of this page."""

    def register(specification: F) -> F:
        marked = hookspec(kind, level, component)(specification)
        HOOKS[marked.__name__] = vars(marked)["omni_spec"]
        return marked

    return register


@hook(kind="relay", level=1)
def omni_relays() -> list[Component]:
    """Relay backends. Target: a :class:`omni_core.relay.base.Relay` subclass taking a ``RelayOptions``.

    Asked for by ``relay_backend``; the target is imported in every process that sends to or receives from another. Example::

        @hookimpl
        def omni_relays():
            return [RelayComponent("mine", "my_relay.relay:MyRelay", "pooled host memory", probe=probe)]
    """
    return []


@hook(kind="scheduler", level=1)
def omni_schedulers() -> list[Component]:
    """Schedulers. Target: a callable that returns a :class:`omni_core.scheduling.base.Scheduler`.

    Asked for by a stage's ``factory``; the target is imported and called with ``factory_args`` in the stage's process. One that drives
    model runners is a :class:`SchedulerComponent` and is asked for by ``scheduler``. Example::

        @hookimpl
        def omni_schedulers():
            return [SchedulerComponent("mine", "my_engine.scheduler:Mine", "batches", runs_model_runners=True)]
    """
    return []


@hook(kind="model runner", level=1)
def omni_model_runners() -> list[Component]:
    """Model runners. Target: a callable that returns a :class:`omni_core.model_runner.ModelRunner`, such as a class method that
    reads a checkpoint.

    Asked for by a stage's ``model_runner``, in the stage's process. The target takes those of its ``factory_args`` that it has
    parameters for, and ``feedback`` where it runs a feedback loop. Example::

        @hookimpl
        def omni_model_runners():
            return [Component("my-decoder", "my_model.runner:DecoderRunner", "decoder with image embeddings")]
    """
    return []


@hook(kind="feedback strategy", level=1)
def omni_feedback_strategies() -> list[Component]:
    """The model-specific part of a feedback loop. Target: a callable that returns a
    :class:`omni_core.model_runner.FeedbackStrategy`.

    Asked for by a stage's ``feedback``, in the stage's process; the strategy is passed to the stage's model runner. Example::

        @hookimpl
        def omni_feedback_strategies():
            return [Component("my-speech", "my_model.speech:CodebookFeedback", "15 residual codes per frame")]
    """
    return []


@hook(kind="projection", level=1)
def omni_payload_projections() -> list[Component]:
    """Projections, merges and routes by name. Target: a function as ``StageConfig`` describes for the field that uses it.

    Asked for by ``project_payload``, ``merge_fn``, ``expand_fn``, ``route_fn``, ``wait_for_fn`` and ``stream_done_to_fn``, in the stage's
    process, and by ``terminal_stages_fn``, in the parent. Example::

        @hookimpl
        def omni_payload_projections():
            return [Component("my-model.to-encoder", "my_model.routing:to_encoder", "keeps pixel values only")]
    """
    return []


@hook(kind="pipeline", level=1, component=PipelineComponent)
def omni_pipelines() -> list[PipelineComponent]:
    """Pipelines by name. Target: a callable ``(model_path: str, **options) -> PipelineConfig``.

    Called by every command that takes a pipeline. It imports neither torch nor transformers. Example::

        @hookimpl
        def omni_pipelines():
            return [PipelineComponent("echo", "my_echo.pipeline:pipeline", "says it back")]
    """
    return []


@hook(kind="kernel", level=1, component=KernelComponent)
def omni_kernels() -> list[KernelComponent]:
    """Kernels per operation, device and dtype. Target: a callable with the operation's reference signature.

    Called in place of the reference by every process that it fits; ``omni plugins check`` compares them. Example::

        @hookimpl
        def omni_kernels():
            return [KernelComponent("my-norm", "my_kernels.norm:rms_norm", "fused", operation="rms_norm", probe=probe)]
    """
    return []


@hook(kind="launcher", level=2)
def omni_launchers() -> list[Component]:
    """Launchers: they find machines for a pipeline's processes. Target: a :class:`omni_core.machines.Launcher` subclass taking
    :class:`omni_core.machines.LauncherOptions`.

    Asked for by ``launcher.name`` of a config; the target is imported in the runner's process only. Example::

        @hookimpl
        def omni_launchers():
            return [Component("cluster", "my_cluster.launcher:ClusterLauncher", "machines of my cluster", probe=probe)]
    """
    return []


@hook(kind="command", level=1)
def omni_commands() -> list[Component]:
    """Commands under ``omni``. Target: a ``click.Command``; imported only when the command is used.

    ``omni --help`` lists names and summaries, of a ``CommandComponent`` under its ``section``. A name of two words is a command of a
    group: ``config explain``. Example::

        @hookimpl
        def omni_commands():
            return [CommandComponent("greet", "my_tool.commands:greet", "says hello", section="Run")]
    """
    return []


@hook(kind="service", level=1, component=ServiceComponent)
def omni_services() -> list[ServiceComponent]:
    """Parts of the runtime itself. Target: what :mod:`omni_core.services` says of the component's ``slot``.

    Imported where the runtime uses the part. Where a slot is empty, it does without, or says what to install. Example::

        @hookimpl
        def omni_services():
            return [ServiceComponent("my-spans", "my_tracing.spans:Spans", "spans of requests", slot="telemetry", preference=1)]
    """
    return []
