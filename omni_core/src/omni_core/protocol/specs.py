"""Launch specs: everything a child process needs, resolved and as plain data, so that it discovers and compiles nothing.

The parent makes one :class:`ProcessSpec` per process group from the config (:mod:`omni_core.launch.prepare`); the child imports
exactly the references that its spec names.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from omni_core.protocol.registry import message, register


@message
class RelaySpec:
    """One relay of a process, as plain data: its class, and the fields of its :class:`RelayOptions`."""

    target: str
    options: dict[str, Any] = field(factory=dict)


@register
@frozen(kw_only=True)
class KernelSpec:
    """A kernel as a launch spec carries it. References are ``package.module:attribute``.

    Attributes:
        name: the component's. device: the kind that it runs on. dtypes: names of those that it takes; empty: all.
        priority: the highest that can work wins. target: the implementation. requires: modules that it needs.
        probe: a :data:`omni_core.hookspecs.Probe`, asked in the process that would use the kernel.
        plugin: the plugin that provides it, and its distribution, for messages.
    """

    name: str
    device: str
    dtypes: list[str]
    priority: int
    target: str
    requires: list[str]
    probe: str | None
    plugin: str = ""


@register
@frozen(kw_only=True)
class StageSpec:
    """One stage of a process. References are ``package.module:attribute``; component names are already resolved.

    A stage has a ``factory``, or a ``model_runner`` and a ``scheduler``, with or without ``feedback``. ``injected`` is passed to every
    one of them that accepts the name, unless ``factory_args`` sets it: ``model_path``, ``device``, ``stage_name``, ``replica``,
    ``tp_rank``, ``tp_size``, ``tp_rendezvous``.
    """

    name: str
    factory: str | None = None
    model_runner: str | None = None
    feedback: str | None = None
    scheduler: str | None = None
    factory_args: dict[str, Any] = field(factory=dict)
    next: list[str] = field(factory=list)
    terminal: bool = False
    route_fn: str | None = None
    wait_for: list[str] = field(factory=list)
    wait_for_fn: str | None = None
    merge_fn: str | None = None
    stream_to: list[str] = field(factory=list)
    stream_from: list[str] = field(factory=list)
    stream_done_to_fn: str | None = None
    project_payload: dict[str, str] = field(factory=dict)
    gpu: int | None = None
    compute_timeout: float | None = None
    injected: dict[str, Any] = field(factory=dict)


@register
@frozen(kw_only=True)
class ProcessSpec:
    """One process group: its stages, its endpoint, and the addresses of all others.

    Attributes:
        name: the process group's name.
        stages: the stages it hosts, in pipeline order.
        endpoint: the address this process pulls control messages from.
        coordinator_endpoint: where results go.
        stage_endpoints: stage name to the endpoints of the processes that host it, one per replica, for every stage of the
            pipeline.
        rank: this process's tensor parallel rank; only rank 0 reads and sends for its stage.
        followers: for rank 0: the endpoints of the other ranks.
        relays: by name, the relays that this process sends or is sent by; empty when no edge of it crosses to another process.
        relay_towards: the endpoint of each process that it sends to, to the name of the relay that is used.
        inline_bytes: out-of-band bytes that a message may carry itself, without a relay; ``None``: the default.
        same_gpu: stage name to the endpoints of other processes where it uses the GPU that this process's stages use.
        gpu_memory: budgets of its stages on its device, ``{"nbytes": int}`` or ``{"share": float}``; empty: no limit.
        kernels: operation to the installed kernels for it.
        expects_tensors: another process sends it payloads of a stage that computes with torch, so torch is imported in the
            background once the process is ready, before the first tensor arrives.
        env: environment defaults, set before any factory is imported; existing values take precedence.
        preload: modules that it shares with others, imported once for all where processes are forked.
        routes: endpoint of each process on another host to the ``tcp://`` address that reaches it.
        keys: public and secret key of the run, where processes live on several hosts.
    """

    name: str
    stages: list[StageSpec]
    endpoint: str
    coordinator_endpoint: str
    stage_endpoints: dict[str, list[str]]
    rank: int = 0
    followers: list[str] = field(factory=list)
    relays: dict[str, RelaySpec] = field(factory=dict)
    relay_towards: dict[str, str] = field(factory=dict)
    inline_bytes: int | None = None
    same_gpu: dict[str, list[str]] = field(factory=dict)
    gpu_memory: list[dict[str, Any]] = field(factory=list)
    kernels: dict[str, list[KernelSpec]] = field(factory=dict)
    expects_tensors: bool = False
    env: dict[str, str] = field(factory=dict)
    preload: list[str] = field(factory=list)
    routes: dict[str, str] = field(factory=dict)
    keys: list[str] = field(factory=list, repr=False)


@register
@frozen(kw_only=True)
class UnitSpec:
    """The processes that start, die and are restarted together: one replica of a process group, of one process or one per rank.

    Attributes:
        name: unique; the process group's name, with ``.N`` for the N-th replica where there are several.
        group: the process group's name. replica: which one of it this is.
        processes: the launch specs; the first is the leader, whose endpoint is the unit's.
        startup_timeout: seconds until every stage must be ready.
        host: the host where it runs, as ``hosts`` of the config calls it; ``None``: this one.
    """

    name: str
    group: str
    replica: int = 0
    processes: list[ProcessSpec]
    startup_timeout: float = 600.0
    host: str | None = None

    @property
    def endpoint(self) -> str:
        return self.processes[0].endpoint

    @property
    def stages(self) -> list[StageSpec]:
        return self.processes[0].stages

    @property
    def stage_names(self) -> list[str]:
        return [stage.name for stage in self.stages]
