"""The declarative config: what a pipeline is, before anything runs (seed 000's reference tables, field by field)."""

from __future__ import annotations

from typing import Any

from attrs import field, frozen


@frozen
class RelayConfig:
    """A stage's override of its relay. Unset fields (``None``) are inferred from the stage's placement.

    Attributes:
        slot_size_mb: MiB of pool memory per credit.
        credits: how many slots the pool holds.
        rank, world_size: this stage's place among the relay's peers, for backends that need a topology.
        device: ``"cpu"`` or ``"cuda:N"``.
    """

    slot_size_mb: int = 64
    credits: int = 2
    rank: int | None = None
    world_size: int | None = None
    device: str | None = None


@frozen
class EndpointsConfig:
    """Where control sockets are made. ``base_path`` is a folder for Unix-domain sockets; ``None``: a private temporary one."""

    base_path: str | None = None


@frozen(kw_only=True)
class StageConfig:
    """One logical stage: how it is built, where it runs, where its results go. See seed 000, "StageConfig Reference".

    Wherever a dotted path (``package.module.attribute`` or ``package.module:attribute``) is expected, the name of a
    registered component works too.

    Beyond the seed's fields:

    Attributes:
        replicas: how many processes (or groups of ranks) run this stage, each with all of its process group's stages. A
            request goes to one of them, in turn. ``gpu`` may list one device per replica and rank.
        affinity_key: requests whose ``metadata`` hold equal values under this key go to the same replica while it lives.
        startup_timeout: seconds until this stage must be ready.
        gpu_memory: how much memory of each of its devices the stage may use: a size (``"20GiB"``) or a share (``0.5``). Required
            where several processes share a device; torch's allocator is held to it.
    """

    name: str
    factory: str
    factory_args: dict[str, Any] = field(factory=dict)
    next: str | list[str] | None = None
    terminal: bool = False
    route_fn: str | None = None
    gpu: int | list[int] | None = None
    gpu_memory: str | float | None = None
    tp_size: int = 1
    process: str | None = None
    wait_for: list[str] | None = None
    wait_for_fn: str | None = None
    merge_fn: str | None = None
    stream_to: list[str] = field(factory=list)
    stream_done_to_fn: str | None = None
    project_payload: dict[str, str] = field(factory=dict)
    relay: RelayConfig | None = None
    replicas: int = 1
    affinity_key: str | None = None
    startup_timeout: float = 600.0

    @property
    def next_stages(self) -> list[str]:
        """``next`` as a list."""
        if self.next is None:
            return []
        return [self.next] if isinstance(self.next, str) else list(self.next)


@frozen
class RestartConfig:
    """What happens when a process of the pipeline dies.

    Attributes:
        limit: deaths of one process within ``window`` seconds that are followed by a restart; at the next one its stages are
            declared failed.
        backoff: seconds before the second restart within the window, doubled for each further one; the first is at once.
        backoff_limit: the longest such pause in seconds.
    """

    limit: int = 5
    window: float = 60.0
    backoff: float = 0.25
    backoff_limit: float = 8.0


@frozen(kw_only=True)
class PipelineConfig:
    """A whole pipeline: its stages and what they share. See seed 000, "PipelineConfig Reference".

    Beyond the seed's fields:

    Attributes:
        restart: what happens when a process dies.
        retries: how often a request that a dying process held is run again from its beginning, as long as the client has
            seen nothing of its results. Its stages must bear being run twice.
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
    terminal_stages_fn: str | None = None
    config_cls: str | None = None
    restart: RestartConfig = field(factory=RestartConfig)
    retries: int = 0

    @property
    def resolved_name(self) -> str:
        return self.name or self.model_path

    @property
    def resolved_entry_stage(self) -> str:
        """``entry_stage`` if set, otherwise the first stage's name."""
        return self.entry_stage or self.stages[0].name

    @property
    def terminal_stages(self) -> list[str]:
        return [stage.name for stage in self.stages if stage.terminal]

    @property
    def gpu_placement(self) -> dict[str, int | list[int]]:
        return {stage.name: stage.gpu for stage in self.stages if stage.gpu is not None}

    def stage(self, name: str) -> StageConfig:
        """The stage of that name. Raises KeyError."""
        for stage in self.stages:
            if stage.name == name:
                return stage
        raise KeyError(name)
