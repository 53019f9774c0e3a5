"""The parts of the runtime that plugins provide: one slot for each, what fills it, and how it is found.

A plugin returns a :class:`~omni_core.hookspecs.ServiceComponent` from the hook ``omni_services``; its target is what the slot says here.
Of several that can work, the one with the highest preference is used. Stage processes discover nothing: the slots of
:data:`IN_STAGES` travel as references in their launch specs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar, cast

from attrs import frozen

from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import ServiceComponent, SlotName
from omni_core.plugins import PluginRecord, PluginRegistry, load_plugins
from omni_core.plugins.advice import comes_with
from omni_core.plugins.registry import problem_of
from omni_core.references import load, normalize

if TYPE_CHECKING:
    import asyncio

    import click

    from omni_core.client.chat_request import MediaPolicy, Recording
    from omni_core.client.source import PipelineSource
    from omni_core.config.schema import PipelineConfig
    from omni_core.control.plane import ControlPlane
    from omni_core.coordinator.coordinator import Coordinator
    from omni_core.coordinator.turns import AdmissionPolicy
    from omni_core.launch.running import Running, RunningOperations
    from omni_core.observe.recording import Profiling
    from omni_core.observe.telemetry import Telemetry
    from omni_core.processes.supervisor import Supervisor
    from omni_core.protocol.specs import KernelSpec, ProcessSpec, StageSpec
    from omni_core.scheduling.base import Scheduler
    from omni_core.stage.active_requests import Seal
    from omni_core.stage.outbound import Outbound
    from omni_core.stage.thread import StageThread

T = TypeVar("T")


@frozen
class Slot(Generic[T]):
    """A slot of the runtime. ``T`` is what the target of its service must be."""

    name: SlotName

    def reference(self, registry: PluginRegistry | None = None) -> str | None:
        """Return the reference of the service that is used; ``None``: no plugin provides one that can work here.

        Raises:
            PluginError: two have the same name, or the same preference; the message names both plugins.
        """
        return _used(self.name, registry or load_plugins())

    def load(self, registry: PluginRegistry | None = None) -> T | None:
        """Import the service that is used; ``None``: there is none. Raises PluginError as :meth:`reference`."""
        reference = self.reference(registry)
        return None if reference is None else self.given({self.name: reference})

    def need(self, what: str, registry: PluginRegistry | None = None) -> T:
        """Import the service that is used.

        Args:
            what: what cannot do without it, for the message: ``"profiles need"``.

        Raises:
            PluginError: there is none; the message says what to install.
        """
        registry = registry or load_plugins()
        service = self.load(registry)
        if service is None:
            raise self.missing(what, registry)
        return service

    def given(self, references: Mapping[str, str]) -> T | None:
        """Import the service by the references of a launch spec; ``None``: it has none.

        Raises:
            PluginError: it cannot be imported.
        """
        if self.name not in references:
            return None
        try:
            return cast(T, load(references[self.name]))
        except (ConfigError, ImportError) as error:
            raise PluginError(f"the service {self.name!r} cannot be imported: {error}") from error

    def needed(self, what: str, references: Mapping[str, str]) -> T:
        """Import the service by the references of a launch spec. Raises PluginError as :meth:`need`."""
        service = self.given(references)
        if service is None:
            raise self.missing(what)
        return service

    def missing(self, what: str, registry: PluginRegistry | None = None) -> PluginError:
        """Return the error that ``what`` cannot do without the service. In a stage process, without a registry."""
        advice = comes_with("services", self.name, records=registry.records if registry is not None else ())
        provided = _provided(self.name, registry) if registry is not None else []
        reasons = "".join(f"; {each.name!r}: {problem}" for each, _ in provided if (problem := problem_of(each)))
        which = f"which comes with {advice}" if advice and not reasons else "which no plugin provides"
        return PluginError(f"{what} the service {self.name!r}, {which}{reasons}")


def _provided(slot: str, registry: PluginRegistry) -> list[tuple[ServiceComponent, PluginRecord]]:
    return [
        (component, record)
        for component, record in registry.components("omni_services")
        if isinstance(component, ServiceComponent) and component.slot == slot
    ]


@lru_cache(maxsize=64)  # it is asked for each request with media
def _used(slot: str, registry: PluginRegistry) -> str | None:
    able = [each for each in _provided(slot, registry) if problem_of(each[0]) is None]
    best = sorted(able, key=lambda each: each[0].preference)[-2:]
    if len(best) == 2 and best[0][0].preference == best[1][0].preference:
        owners = " and ".join(f"{service.name!r} of plugin {record.title}" for service, record in best)
        raise PluginError(
            f"the service {slot!r} is provided twice, by {owners}; "
            f"uninstall one, or disable it: OMNI_DISABLE_PLUGINS={' or '.join(record.name for _, record in best)}"
        )
    return normalize(registry.get("omni_services", best[-1][0].name).target) if best else None


class Fitting(Protocol):
    """Fits a config to the machine of this process."""

    def __call__(self, config: PipelineConfig, located: Callable[[str], str]) -> PipelineConfig:
        """Return the config with the devices and budgets that it leaves open. Raises DoesNotFitError, ConfigError."""


class Limits(Protocol):
    """Checks what a request brings."""

    def __call__(self, limits: Mapping[str, int], inputs: Any) -> None:
        """Raise InvalidRequestError if the inputs of a request bring more than the limits allow."""


class MediaReader(Protocol):
    """Brings the media of one request into the form that stages read. Its methods raise InvalidRequestError."""

    async def messages(self, messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Read the content parts of messages."""

    async def values(self, kind: str, given: Any) -> list[dict[str, Any]]:
        """Read one value, or several, of a kind (``image``) as content parts."""

    async def references(self, voices: Sequence[Recording]) -> list[dict[str, Any]]:
        """Read the recordings of a voice."""


class ForkServer(Protocol):
    """Starts the processes of stages as forks of one that has imported what they share."""

    def fork(self, spec: ProcessSpec, descriptors: Sequence[int]) -> asyncio.Future[int]:
        """Fork a process that inherits the descriptors; the future is its pid."""

    def close(self) -> None:
        """End the server. Forks go on."""


class Ranks(Protocol):
    """Keeps the ranks of a tensor parallel stage in step. What it makes has ``takes``, the classes of messages of other ranks that its
    ``take(message)`` handles on the event loop.
    """

    def leader(
        self, stage: str, scheduler: Scheduler, ranks: int, publish: Callable[[Any], None], on_death: Callable[[], None]
    ) -> Any:
        """Make rank 0's side, with ``abort(request_id)``. ``publish`` sends a message to every other rank, from any thread."""

    def follower(
        self,
        spec: StageSpec,
        scheduler: Scheduler,
        rank: int,
        send: Callable[[Any], None],
        on_death: Callable[[], None],
    ) -> StageThread:
        """Make the side of a rank above 0. ``send`` sends a message to rank 0, from any thread."""


class StageProcess(Protocol):
    """Prepares the processes of stages for the library that they compute with."""

    def prepare(self, kernels: Mapping[str, Sequence[KernelSpec]], gpu: int | None, budgets: Sequence[Any]) -> None:
        """Prepare this process, in the thread that builds its stages.

        Args:
            kernels: those of its launch spec, by operation.
            gpu: the number of its stages' GPU, if they have one.
            budgets: of their memory there, each ``{"nbytes": int}`` or ``{"share": float}``.
        """

    def gpu_is_broken(self) -> bool:
        """Return whether this process can use its GPU no more."""


class Profiles(Protocol):
    """Makes both halves of a profile."""

    def process(self, spec: ProcessSpec, outbound: Outbound, parts: Callable[[], Mapping[str, StageThread]]) -> Any:
        """Make the profile of a stage process, whose ``handle(message)`` takes each ProfileMessage on the event loop."""

    def pipeline(
        self,
        config: PipelineConfig,
        machine_of: Callable[[str], int],
        units: Mapping[str, Supervisor],
        coordinator: Coordinator,
        control: ControlPlane,
    ) -> Profiling:
        """Make the profiles of a running pipeline. ``machine_of``: the number of the machine of an endpoint; 0: this one."""


class ShellCompletion(Protocol):
    """Completes what is typed. It may improve click's own completion when it is imported."""

    def complete(self, parameter: str, context: click.Context, begun: str) -> list[Any]:
        """Return click's completion items for ``model``, ``option``, ``setting`` or ``pipeline``."""


class ReplyReader(Protocol):
    """Tells the calls of tools in one reply, which comes in pieces, from its text."""

    def feed(self, text: str) -> tuple[str, Sequence[Any]]:
        """Take a piece; return the text that is sure to belong to no call, and the calls that are complete."""

    def finish(self) -> tuple[str, Sequence[Any]]:
        """Return the rest."""


ADMISSION: Slot[Callable[[PipelineConfig], AdmissionPolicy]] = Slot("admission")
"""Makes what says when the requests of a pipeline with ``admission`` begin. Raises ConfigError: a setting is wrong."""

FITTING: Slot[Fitting] = Slot("fitting")
"""Chooses GPUs and memory budgets, from what the machine has."""

FORK_SERVER: Slot[Callable[[], ForkServer]] = Slot("fork-server")
"""Makes the fork server of a machine. Without it, the processes of stages are fresh interpreters."""

KERNELS: Slot[Callable[[PluginRegistry], dict[str, list[KernelSpec]]]] = Slot("kernels")
"""Returns the installed kernels for launch specs, by operation."""

LIMITS: Slot[Limits] = Slot("limits")
"""Checks ``limits`` of a config."""

MEDIA: Slot[Callable[[MediaPolicy], MediaReader]] = Slot("media")
"""Makes what reads the media of one request."""

MUTATION_SEAL: Slot[Callable[[Any, str], Seal]] = Slot("mutation-seal")
"""Marks a value as a stage, named second, hands it on by reference, for ``OMNI_CHECK_MUTATION=1``."""

OPERATIONS: Slot[Callable[[Running], RunningOperations]] = Slot("operations")
"""Makes the operations that change a running pipeline."""

PROFILES: Slot[Profiles] = Slot("profiles")
"""Records where the time of a running pipeline goes."""

RANKS: Slot[Ranks] = Slot("ranks")
"""Keeps tensor parallel stages in step."""

SHELL_COMPLETION: Slot[ShellCompletion] = Slot("shell-completion")
"""Completes options of commands that take a pipeline."""

SOURCES: Slot[type[PipelineSource]] = Slot("sources")
"""The class of the pipelines that people name. Without it, :class:`~omni_core.client.source.PipelineSource`."""

STAGE_PROCESS: Slot[StageProcess] = Slot("stage-process")
"""Prepares the processes of stages."""

TELEMETRY: Slot[Callable[[Any, Any, str], Telemetry]] = Slot("telemetry")
"""Makes the spans of a pipeline's requests, from the module ``opentelemetry.trace``, a tracer and the pipeline's name."""

TOOL_CALLS: Slot[Callable[[str], ReplyReader]] = Slot("tool-calls")
"""Makes the reader of a reply by the ``tool_format`` of its pipeline. Raises ConfigError: there is no such format."""

IN_STAGES: tuple[Slot[Any], ...] = (MUTATION_SEAL, PROFILES, RANKS, STAGE_PROCESS, TOOL_CALLS)
"""Those that the processes of stages use."""

IMPORTS: SlotName = "imports"
"""One for each pipeline, by its name: where keys of other systems' deploy files go, as a mapping. By the key, the path that it sets here
(``{"codec_chunk_frames": "code2wav.factory_args.chunk"}``), or a sentence that says why there is none. ``"KEY: VALUE"`` (``*``: any
value): why that is the case here anyway. ``pipeline``: the names of this pipeline there, with spaces between them.
``stages.NAME``: our stage for one of theirs, or several with ``+`` between them.
"""
