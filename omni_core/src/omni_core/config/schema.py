"""The declarative config: what a pipeline is, before anything runs."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from attrs import field, fields, frozen

from omni_core.errors import ConfigError, did_you_mean
from omni_core.interface import Interface


@frozen
class RelayConfig:
    """A stage's override of its relay. Unset fields (``None``) are inferred from the stage's placement.

    Attributes:
        slot_size_mb: MiB of pool memory per credit.
        credits: how many slots the pool holds. The pool is ``slot_size_mb * credits`` MiB and never grows.
        rank, world_size: this stage's place among the relay's peers, for backends that need a topology.
        device: ``"cpu"`` or ``"cuda:N"``: where the transferred tensors lie. By default the stage's device, and the CPU with shm.
        backend: the relay that this stage's process sends by. By default the pipeline's ``relay_backend``, and towards other
            hosts, if that one reaches none, one that does.
        inline_bytes: tensors and arrays of a payload or chunk travel in the control message up to this size in all, and by the
            relay above it. By default 32 KiB; 0 sends every one by the relay.
        settings: what only that relay knows; its documentation lists them.
    """

    slot_size_mb: int = 64
    credits: int = 2
    rank: int | None = None
    world_size: int | None = None
    device: str | None = None
    backend: str | None = None
    inline_bytes: int | None = None
    settings: dict[str, Any] = field(factory=dict)


def _relay_config(value: RelayConfig | Mapping[str, Any] | None) -> RelayConfig | None:
    """``StageConfig.relay`` as its class: in Python, a mapping may be given as in a file. Raises ConfigError."""
    if value is None or isinstance(value, RelayConfig):
        return value
    if not isinstance(value, Mapping):
        raise ConfigError(f"relay: must be a RelayConfig or a mapping of its fields, not a {type(value).__name__}")
    known = [attribute.name for attribute in fields(RelayConfig)]
    for name in value:
        if name not in known:
            raise ConfigError(f"relay.{name}: unknown field{did_you_mean(name, known)}")
    return RelayConfig(**value)


@frozen
class EndpointsConfig:
    """The addresses of control sockets.

    Attributes:
        base_path: a folder for Unix-domain sockets, in which each run makes a private one. By default where temporary files go.
        address: the address (a name or number, without a port) by which other hosts reach this one. Required with ``hosts``.
        key_file: the file with the keys of ``hosts``, made by ``omni hosts key``. Required with ``hosts``.
        accept: ``tcp://HOST:PORT``, where hosts that are not in ``hosts`` join the run (``omni hosts join``). Its host is the default of
            ``address``.
    """

    base_path: str | None = None
    address: str | None = None
    key_file: str | None = None
    accept: str | None = None


@frozen(kw_only=True)
class StageConfig:
    """One logical stage: how it is built, where it runs, where its results go.

    Wherever a dotted path (``package.module.attribute`` or ``package.module:attribute``) is expected, the name of a
    registered component works too: a scheduler's for ``factory``, a projection's for every function.

    A stage has a ``factory``, or it is assembled from named parts: ``scheduler(model_runner(feedback))``.

    A stage either has ``next`` or is ``terminal``; in a composed pipeline it may be both.

    ``next``, ``wait_for`` and ``stream_to`` are what is possible for any request;
    the functions beside them choose out of that for one request.

    Attributes:
        name: what others call this stage; unique in the pipeline.
        factory: what builds the stage's scheduler in its process. A callable that returns a ``Scheduler``, or a function from
            payload to data; or such a function itself, if its only required parameter is called ``payload``.
        factory_args: arguments of the factory, or of the parts: each key belongs to the one part whose signature has it. Every
            callable that accepts them also gets ``model_path``, ``device``, ``gpu_id``, ``gpu_memory``, ``stage_name``,
            ``replica``, ``tp_rank``, ``tp_size`` and ``tp_rendezvous``, unless they are set here.
        model_runner: in place of ``factory``: a callable that returns a ``ModelRunner``; a registered name or a dotted path.
        feedback: the runner's ``FeedbackStrategy``, for runners that take one: a callable that returns it.
        scheduler: the scheduler that drives the runner, such as ``engine`` or ``sglang``. By default the installed one with the
            highest preference.
        next: the stage or stages that get the result.
        terminal: the result goes to the client.
        route_fn: ``(request_id, payload) -> str | list[str]``: those of ``next`` that get this request's result. A request that
            waits for a terminal stage to which they do not lead fails.
        gpu: the GPU's number, as ``CUDA_VISIBLE_DEVICES`` leaves them; a list for ranks and replicas, one per process. ``None``: the CPU.
            ``"auto"``: the pipeline's ``placement_fn`` chooses, and ``tp_size`` with it if that is 1.
        gpu_memory: how much memory of each of its devices the stage may use: a size (``"20GiB"``) or a share (``0.5``). Required
            where several processes share a device; torch's allocator is held to it.
        tp_size: tensor parallel ranks, one process each.
        cpus: the processors that a launcher of shared machines claims for each of its processes; nothing holds a process to them.
        memory: likewise the memory of the machine, a size such as ``"20GiB"``.
        labels: those that its machine must have, with such a launcher. Equal within a process group.
        host: where its processes run: a name in ``hosts``, or of a host that joins; a list for replicas, one per replica, or one per rank
            of each, where ``None`` is this host. By default this host, or with a launcher that uses several machines, any. Equal within a
            process group.
        process: the process group. Stages with equal values share a process. Required, except for a tensor parallel stage, which
            has processes of its own and where it is only the beginning of their names.
        wait_for: every stage that may contribute to this one's input. The stage begins when those that do have sent.
        wait_for_fn: ``(request_id, from_stage, payload) -> list[str] | None``: those of ``wait_for`` that contribute to this request;
            ``None`` while this payload does not tell. Called for each payload until one does.
        merge_fn: ``({stage: payload}) -> payload``: one input out of what the stages of ``wait_for`` sent. Required with ``wait_for``.
        expand_fn: ``(payload) -> {role: payload} | None``: the parts in which the stage computes a request, such as a prompt and a negative
            prompt. Each is computed as a request of its own would be; the result is ``{role: data}``. ``None``: no parts.
        stream_to: the stages that may get stream chunks, beside ``next``.
        chunks_to: those of ``stream_to`` that get chunks without a target, beside the client of a terminal stage. By default all, and of a
            terminal stage none.
        part: of a composed pipeline, the part that it belongs to. Its functions and its scheduler know the stages of that part by the names
            that they have there, without ``PART-``.
        stream_done_to_fn: ``(request_id, payload) -> list[str]``: those of ``stream_to`` that are told that this request's stream is
            complete. By default all.
        project_payload: by stage of ``next``, a function ``(payload) -> payload`` that makes what is sent there: usually less.
        relay: settings of the relay for this stage's process.
        replicas: how many processes (or groups of ranks) run this stage, each with all of its process group's stages. A
            request goes to one of them. ``gpu`` may list one device per replica and rank.
        affinity_key: requests whose ``metadata`` hold equal values under this key go to the same replica while it lives.
        balance: the choice of the replica for other requests: ``turns``, ``least_busy`` (the fewest requests), ``cost`` (the least expected
            work), or ``(request, loads) -> replica`` (:mod:`omni_core.coordinator.replicas`).
        work_fn: ``(request) -> float``: the expected work of a request, in any unit, for ``balance``. By default its characters of text.
        autoscale: bounds and thresholds by which the number of replicas follows the queue, from ``replicas`` on (needs the service
            ``operations``).
        preload: modules that are imported once for all stages that name them, and shared by their processes: large libraries that
            several of them import. A module that starts threads or uses a GPU when it is imported cannot be shared. torch is
            shared without being named, if the stage's distribution requires it or its module imports it.
        env: environment variables of the stage's process, set before it starts; they win over the environment and over ``env_defaults``.
            Equal within a process group. Such a process is a fresh interpreter, which shares no imports.
        startup_timeout: seconds until this stage must be ready.
        compute_timeout: seconds that one compute (a call of the stage's function, a step of its scheduler) may take; then its process
            is ended and restarted, and what it held fails. By default 600.
    """

    name: str
    factory: str | None = None
    factory_args: dict[str, Any] = field(factory=dict)
    model_runner: str | None = None
    feedback: str | None = None
    scheduler: str | None = None
    next: str | list[str] | None = None
    terminal: bool = False
    route_fn: str | None = None
    gpu: int | list[int] | Literal["auto"] | None = None
    gpu_memory: str | float | None = None
    host: str | list[str | None] | None = None
    tp_size: int = 1
    cpus: float | None = None
    memory: str | None = None
    labels: dict[str, str] = field(factory=dict)
    process: str | None = None
    wait_for: list[str] | None = None
    wait_for_fn: str | None = None
    merge_fn: str | None = None
    expand_fn: str | None = None
    stream_to: list[str] = field(factory=list)
    chunks_to: list[str] | None = None
    part: str | None = None
    stream_done_to_fn: str | None = None
    project_payload: dict[str, str] = field(factory=dict)
    relay: RelayConfig | None = field(default=None, converter=_relay_config)
    replicas: int = 1
    affinity_key: str | None = None
    balance: str = "turns"
    work_fn: str | None = None
    autoscale: dict[str, Any] | None = None
    preload: list[str] = field(factory=list)
    env: dict[str, str] = field(factory=dict)
    startup_timeout: float = 600.0
    compute_timeout: float | None = None

    @property
    def next_stages(self) -> list[str]:
        """``next`` as a list."""
        if self.next is None:
            return []
        return [self.next] if isinstance(self.next, str) else list(self.next)

    @property
    def hosts(self) -> list[str]:
        """The names of other hosts in ``host``, each once."""
        named = self.host if isinstance(self.host, list) else [self.host]
        return list(dict.fromkeys(name for name in named if name is not None))


@frozen
class RestartConfig:
    """The policy of restarts after the death of a process.

    Attributes:
        limit: deaths of one process within ``window`` seconds that are followed by a restart, not counted those that a request was found to
            be the cause of; at the next one its stages are
            declared failed: what needs them fails at once. They are tried again after ``window`` seconds, after each trial in vain later,
            and serve again once they start. 0: a process that has died is never started again.
        window: seconds for which a death is remembered.
        backoff: seconds before the second restart within the window, doubled for each further one; the first is at once.
        backoff_limit: the longest such pause in seconds.
    """

    limit: int = 5
    window: float = 60.0
    backoff: float = 0.25
    backoff_limit: float = 8.0


@frozen
class RequestDefaults:
    """The values that a request has where it does not say otherwise. The request wins over
    these, and these win over the model's own defaults.

    Attributes:
        params: as in a request, by group, or by the role of the stage that reads the group; see ``omni pipelines NAME``.
        metadata: as in a request, such as ``{speaker: ethan}``.
        modalities: what a request is answered in, such as ``[text]``.
    """

    params: dict[str, Any] = field(factory=dict)
    metadata: dict[str, Any] = field(factory=dict)
    modalities: list[str] | None = None


@frozen
class RequestLimits:
    """The most that one request may bring; more is refused before it is admitted. ``None``: no limit here.

    Attributes:
        images, audios, videos: parts of that kind in all its messages.
        references: recordings of voices.
        messages: messages of the conversation.
        text_characters: characters of all its texts together.
    """

    images: int | None = None
    audios: int | None = None
    videos: int | None = None
    references: int | None = None
    messages: int | None = None
    text_characters: int | None = None


@frozen
class LauncherConfig:
    """The provider of the machines on which processes run.

    Attributes:
        name: ``local`` (this machine), ``hosts`` (this one, those in ``hosts`` and those that join), or a launcher of a plugin: its
            registered name or a dotted path.
        settings: what only that launcher knows: ``local`` has none, ``hosts`` has ``silence``.
    """

    name: str = "local"
    settings: dict[str, Any] = field(factory=dict)


@frozen(kw_only=True)
class PartConfig:
    """A part of a composed pipeline (:func:`omni_core.config.compose.compose`), which was a pipeline of its own.

    Attributes:
        entry: its entry stage, by its name in the part. It gets what comes from other parts as the input of a request.
        model_path: its checkpoint, which its factories get.
        fetch_fn: its own, called with its ``model_path``.
        placement_fn: its own, called with its stages under the names that they have in it.
        terminal_stages_fn: its own, likewise.
        outputs: modalities that its results for the client have.
        reads_streams: its entry stage's scheduler takes inputs that come as streams.
        tool_format: how its text calls tools.
        params: keys of ``params`` that are called otherwise in the composed pipeline: the part's own to the other.
        metadata: likewise keys of ``metadata``.
    """

    entry: str
    model_path: str
    fetch_fn: str | None = None
    placement_fn: str | None = None
    terminal_stages_fn: str | None = None
    outputs: list[str] = field(factory=list)
    reads_streams: bool = False
    tool_format: str | None = None
    params: dict[str, str] = field(factory=dict)
    metadata: dict[str, str] = field(factory=dict)


@frozen(kw_only=True)
class PipelineConfig:
    """A whole pipeline: its stages and what they share.

    Attributes:
        model_path: a checkpoint's folder or hub id; every factory that takes a ``model_path`` gets it.
        stages: the stages, in the order in which messages and plans list them.
        name: for messages, metrics and traces. By default ``model_path``.
        entry_stage: the stage that gets new requests. By default the first one.
        relay_backend: the relay between processes: a registered name or a dotted path. Not used if no edge leaves its process.
        fused_stages: groups of adjacent stages that share a process whatever their ``process`` says. A group is linear and not
            tensor parallel.
        runtime_overrides: by stage, values that win over its ``factory_args``.
        env_defaults: environment variables of the stage processes, set before a factory is imported. A value that the
            environment has already wins.
        endpoints: where control sockets are made.
        hosts: other hosts by name, and the address where ``omni hosts serve`` listens there, ``tcp://HOST:PORT``.
        terminal_stages_fn: ``(request) -> list[str] | None``: the terminal stages whose results this request is answered with. ``None``
            or no function: all.
        placement_fn: ``(config, machine) -> Placement`` (:mod:`omni_core.config.completion`): chooses, in the parent, what the config
            leaves open: the devices of stages with ``gpu: auto``, budgets, dtypes. It sees the config after all overrides.
        fetch_fn: ``(model_path) -> folder``: downloads the checkpoint, in the parent, before the first process starts.
        config_cls: the name of the class that wrote a saved config. Kept, not used.
        restart: what happens when a process dies.
        retries: how often a request that a dying process held is run again from its beginning, as long as the client has
            seen nothing of its results. Its stages must bear being run twice.
        max_in_flight: requests held at once; further ones are refused with a hint when to retry.
        request_timeout: seconds that a request has which brings no ``timeout`` of its own. By default no limit.
        interface: what the pipeline offers its clients; requests are checked against it. ``None``: their parameters are not checked.
        defaults: what a request has that does not say otherwise; checked at start against ``interface``.
        limits: the most that one request may bring.
        server: options of ``omni serve`` by name, such as ``{port: 9000, limit: {audio_seconds: 60}}``; its flags win over them.
        launcher: what provides machines. By default ``hosts`` if a stage has a ``host``, otherwise ``local``.
        parts: of a composed pipeline, the pipelines that it is made of, by name.
        admission: objectives, such as ``{ttfa: 0.5}``: requests that would miss them wait for their turn or are refused; without it
            every request is admitted up to ``max_in_flight`` (needs the service ``admission``).
    """

    model_path: str
    stages: list[StageConfig]
    name: str | None = None
    entry_stage: str | None = None
    relay_backend: str = "shm"
    fused_stages: list[list[str]] = field(factory=list)
    runtime_overrides: dict[str, dict[str, Any]] = field(factory=dict)
    env_defaults: dict[str, str] = field(factory=dict)
    endpoints: EndpointsConfig = field(factory=EndpointsConfig)
    hosts: dict[str, str] = field(factory=dict)
    terminal_stages_fn: str | None = None
    placement_fn: str | None = None
    fetch_fn: str | None = None
    config_cls: str | None = None
    restart: RestartConfig = field(factory=RestartConfig)
    retries: int = 0
    max_in_flight: int = 256
    request_timeout: float | None = None
    interface: Interface | None = None
    defaults: RequestDefaults = field(factory=RequestDefaults)
    limits: RequestLimits = field(factory=RequestLimits)
    server: dict[str, Any] = field(factory=dict)
    launcher: LauncherConfig | None = None
    admission: dict[str, Any] = field(factory=dict)
    parts: dict[str, PartConfig] = field(factory=dict)

    @property
    def resolved_name(self) -> str:
        return self.name or self.model_path

    @property
    def resolved_launcher(self) -> LauncherConfig:
        """``launcher`` if set, otherwise ``hosts`` or ``local``."""
        has_hosts = any(stage.hosts for stage in self.stages)
        return self.launcher or LauncherConfig("hosts" if has_hosts else "local")

    @property
    def resolved_entry_stage(self) -> str:
        """``entry_stage`` if set, otherwise the first stage's name."""
        return self.entry_stage or self.stages[0].name

    @property
    def terminal_stages(self) -> list[str]:
        return [stage.name for stage in self.stages if stage.terminal]

    def stage(self, name: str) -> StageConfig:
        """The stage of that name. Raises KeyError."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)


FIELD_CLASSES: dict[str, type] = {
    "relay": RelayConfig,
    "restart": RestartConfig,
    "endpoints": EndpointsConfig,
    "defaults": RequestDefaults,
    "limits": RequestLimits,
    "launcher": LauncherConfig,
}
"""Fields that are classes of their own."""
