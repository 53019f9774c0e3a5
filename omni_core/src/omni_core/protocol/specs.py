"""Launch specs: everything a child process needs, resolved and as plain data, so that it discovers and compiles nothing.

The parent makes one :class:`ProcessSpec` per process group from the config (:mod:`omni_core.launch.prepare`); the child imports
exactly the references that its spec names.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from omni_core.protocol.process_messages import PeerJoinedMessage
from omni_core.protocol.registry import message, register


@message
class RelaySpec:
    """One relay of a process, as plain data: its class, and the fields of its :class:`RelayOptions`."""

    target: str
    options: dict[str, Any] = field(factory=dict)


@message
class NetworkSpec:
    """The way of a process to other machines: a callable that makes a :class:`omni_core.control.network.Network`, and its options."""

    target: str
    options: dict[str, Any] = field(factory=dict, repr=False)


@register
@frozen(kw_only=True)
class KernelSpec:
    """A kernel as a launch spec carries it. References are ``package.module:attribute``.

    Attributes:
        name: the component's.
        device: the kind that it runs on.
        dtypes: names of those that it takes; empty: all.
        priority: the highest that can work wins.
        target: the implementation.
        requires: modules that it needs.
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
class PartSpec:
    """The view that a part of a composed pipeline has of requests: see :class:`omni_core.config.schema.PartConfig`.

    ``tool_formats``, in its entry stage: by stage of another part that streams to it, how its text calls tools.
    """

    outputs: list[str] = field(factory=list)
    reads_streams: bool = False
    tool_formats: dict[str, str] = field(factory=dict)
    params: dict[str, str] = field(factory=dict)
    metadata: dict[str, str] = field(factory=dict)


@register
@frozen(kw_only=True)
class StageSpec:
    """One stage of a process. References are ``package.module:attribute``; component names are already resolved.

    A stage has a ``factory``, or a ``model_runner`` and a ``scheduler``, with or without ``feedback``. ``injected`` is passed to every
    one of them that accepts the name, unless ``factory_args`` sets it: ``model_path``, ``device``, ``payload_bytes`` (by target in
    another process, the most that a payload for it can have), ``stage_name``, ``replica``, ``tp_rank``, ``tp_size``, ``tp_rendezvous``;
    so is ``gpu``, as ``gpu_id``.
    ``leads_to``, of a stage with a ``route_fn``: by terminal stage that only its results lead to, those of ``next`` that lead there.
    Of ``stream_from``, ``""`` is the client: the stage takes inputs that come as streams. ``part`` is that of a composed pipeline;
    ``enters`` is set in its entry stage. ``answers``: by target in another part, the modalities that are answered there or behind it, and
    those that are answered elsewhere only; a target without is needed by every request.
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
    leads_to: dict[str, list[str]] = field(factory=dict)
    wait_for: list[str] = field(factory=list)
    wait_for_fn: str | None = None
    merge_fn: str | None = None
    expand_fn: str | None = None
    stream_to: list[str] = field(factory=list)
    stream_from: list[str] = field(factory=list)
    stream_done_to_fn: str | None = None
    chunks_to: list[str] | None = None
    part: str = ""
    enters: PartSpec | None = None
    answers: dict[str, list[list[str]]] = field(factory=dict)
    project_payload: dict[str, str] = field(factory=dict)
    gpu: int | None = None
    compute_timeout: float | None = None
    injected: dict[str, Any] = field(factory=dict)


@register
@frozen(kw_only=True)
class ProcessSpec:
    """One process: its stages, its name in the control plane, and the names of all others.

    A spec is made for the run; what depends on the machine is set at each launch (:mod:`omni_core.machines.placing`): ``addresses``, the
    rest of the relays' options, and what a grant adds to ``environment``.

    Attributes:
        name: unique in the pipeline.
        stages: the stages it hosts, in pipeline order.
        endpoint: its name in the control plane, ``omni://RUN/NAME``.
        coordinator_endpoint: that of the coordinator, which gets results.
        stage_endpoints: stage name to the endpoints of the processes that host it, by the number of the replica, for every stage of the
            pipeline.
        addresses: endpoint to address, as this process's machine reaches it: its own, the coordinator's, and those that are known when
            it is launched.
        place: what its machine is asked for by (:class:`~omni_core.machines.launcher.Need`).
        rank: this process's tensor parallel rank; only rank 0 reads and sends for its stage.
        followers: for rank 0: the endpoints of the other ranks.
        relays: by name, the relays that this process sends or is sent by; empty when no edge of it crosses to another process.
        spare_relays: those that it needs only if it, or a process that it exchanges payloads with, is on another machine than the config
            says; built when the first such link is made.
        relay_towards: the endpoint of each process that it sends to, to the name of the relay that is used on one machine.
        relay_across: the same between machines.
        inline_bytes: out-of-band bytes that a message may carry itself, without a relay; ``None``: the default.
        same_gpu: stage name to the endpoints of other processes where it uses the GPU that this process's stages use.
        gpu_memory: budgets of its stages on its device, ``{"nbytes": int}`` or ``{"share": float}``; empty: no limit.
        kernels: operation to the installed kernels for it.
        expects_tensors: another process sends it payloads of a stage that computes with torch, so torch is imported in the
            background once the process is ready, before the first tensor arrives.
        env: environment defaults, set before any factory is imported; existing values take precedence.
        own_env: environment variables that take precedence over existing values.
        preload: modules that it shares with others, imported once for all where processes are forked.
        network: the way to other machines, if the run may have several.
        services: by slot, the references of those that it uses (:data:`omni_core.services.IN_STAGES`).
    """

    name: str
    stages: list[StageSpec]
    endpoint: str
    coordinator_endpoint: str
    stage_endpoints: dict[str, dict[int, str]]
    addresses: dict[str, str] = field(factory=dict)
    place: str = ""
    rank: int = 0
    followers: list[str] = field(factory=list)
    relays: dict[str, RelaySpec] = field(factory=dict)
    spare_relays: dict[str, RelaySpec] = field(factory=dict)
    relay_towards: dict[str, str] = field(factory=dict)
    relay_across: dict[str, str] = field(factory=dict)
    inline_bytes: int | None = None
    same_gpu: dict[str, list[str]] = field(factory=dict)
    gpu_memory: list[dict[str, Any]] = field(factory=list)
    kernels: dict[str, list[KernelSpec]] = field(factory=dict)
    expects_tensors: bool = False
    env: dict[str, str] = field(factory=dict)
    own_env: dict[str, str] = field(factory=dict)
    preload: list[str] = field(factory=list)
    network: NetworkSpec | None = None
    services: dict[str, str] = field(factory=dict)

    def add_peer(self, peer: PeerJoinedMessage) -> None:
        """Take in the process of a new unit; its address is told when it is ready."""
        for stage in peer.stages:
            self.stage_endpoints[stage][peer.replica] = peer.endpoint
        for relays, name in ((self.relay_towards, peer.relay), (self.relay_across, peer.across)):
            if name is not None:
                relays[peer.endpoint] = name
        for stage in peer.same_gpu:
            if peer.endpoint not in self.same_gpu.setdefault(stage, []):
                self.same_gpu[stage].append(peer.endpoint)

    def drop_peer(self, endpoint: str) -> None:
        """Forget the process of a unit that has ended for good."""
        for replicas in self.stage_endpoints.values():
            for number in [number for number, each in replicas.items() if each == endpoint]:
                del replicas[number]
        self.relay_towards.pop(endpoint, None)
        self.relay_across.pop(endpoint, None)
        self.addresses.pop(endpoint, None)
        for endpoints in self.same_gpu.values():
            if endpoint in endpoints:
                endpoints.remove(endpoint)


@register
@frozen(kw_only=True)
class UnitSpec:
    """The processes that start, die and are restarted together: one replica of a process group, of one process or one per rank.

    Attributes:
        name: unique; the process group's name, with ``.N`` for the N-th replica where there are several.
        group: the process group's name.
        replica: the number of this one in the group.
        slot: its place in the config's lists.
        processes: the launch specs; the first is the leader, whose endpoint is the unit's.
        startup_timeout: seconds until every stage must be ready.
    """

    name: str
    group: str
    replica: int = 0
    slot: int = 0
    processes: list[ProcessSpec]
    startup_timeout: float = 600.0

    @property
    def endpoint(self) -> str:
        return self.processes[0].endpoint

    @property
    def places(self) -> list[str]:
        """Return what its machines are asked for by, each once: one, unless ranks are on several hosts."""
        return list(dict.fromkeys(process.place or self.name for process in self.processes))

    @property
    def stages(self) -> list[StageSpec]:
        return self.processes[0].stages

    @property
    def stage_names(self) -> list[str]:
        return [stage.name for stage in self.stages]
