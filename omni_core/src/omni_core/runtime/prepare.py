"""Runtime prep: from a validated config to the launch specs of its processes (seed 000, "Runtime Prep and Runner").

Everything that needs the plugins is resolved here, in the parent, so that a child discovers nothing.
"""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any

from attrs import evolve, frozen

from omni_core.config.schema import PipelineConfig, RelayConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, PluginError
from omni_core.plugins import PluginRegistry
from omni_core.runtime.placement import ReplicatedGroup
from omni_core.runtime.spec import ProcessSpec, StageSpec, UnitSpec

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Defaults for every stage process: several processes share a machine, and each starting a thread per core stalls all."""


@frozen
class PreparedPipeline:
    """What the runner needs: the units to launch, and what the coordinator has to know."""

    name: str
    units: list[UnitSpec]
    entry_stage: str
    terminal_stages: list[str]
    terminal_stages_fn: str | None
    coordinator_endpoint: str
    stage_endpoints: dict[str, list[str]]
    replicated: list[ReplicatedGroup]


def prepare(config: PipelineConfig, registry: PluginRegistry, directory: Path) -> PreparedPipeline:
    """Resolve ``config`` for a run whose sockets live in ``directory``.

    Raises:
        ConfigError: the config is invalid; PluginError: it names a component that no plugin provides.
    """
    validate(config)
    groups = _process_groups(config)
    endpoints = _endpoints(groups, directory)
    coordinator_endpoint = f"ipc://{directory}/coordinator.sock"
    stage_endpoints = {
        stage.name: [ranks[0] for ranks in endpoints[group]] for group, stages in groups.items() for stage in stages
    }
    crossing = _crossing_processes(config, {stage.name: group for group, stages in groups.items() for stage in stages})
    relay = _resolve_relay(config, registry) if crossing else None
    units = []
    for group, stages in groups.items():
        specs = [_stage_spec(config, stage, registry) for stage in stages]
        for replica, ranks in enumerate(endpoints[group]):
            name = group if len(endpoints[group]) == 1 else f"{group}.{replica}"
            options = _relay_options(config, name, stages, directory) if group in crossing else {}
            processes = [
                ProcessSpec(
                    name=name if len(ranks) == 1 else f"{name}_tp{rank}",
                    stages=[_placed(spec, stage, replica, rank) for spec, stage in zip(specs, stages, strict=True)],
                    endpoint=endpoint,
                    coordinator_endpoint=coordinator_endpoint,
                    stage_endpoints=stage_endpoints,
                    rank=rank,
                    followers=ranks[1:] if rank == 0 else [],
                    relay=relay if group in crossing and rank == 0 else None,
                    relay_options=options if rank == 0 else {},
                    env={**ENVIRONMENT, **config.env_defaults},
                )
                for rank, endpoint in enumerate(ranks)
            ]
            patience = max(stage.startup_timeout for stage in stages)
            units.append(
                UnitSpec(name=name, group=group, replica=replica, processes=processes, startup_timeout=patience)
            )
    return PreparedPipeline(
        name=config.resolved_name,
        units=units,
        entry_stage=config.resolved_entry_stage,
        terminal_stages=config.terminal_stages,
        terminal_stages_fn=_reference(config.terminal_stages_fn, registry),
        coordinator_endpoint=coordinator_endpoint,
        stage_endpoints=stage_endpoints,
        replicated=[
            ReplicatedGroup(group, [stage.name for stage in stages], stages[0].affinity_key)
            for group, stages in groups.items()
            if stages[0].replicas > 1
        ],
    )


def _endpoints(groups: dict[str, list[StageConfig]], directory: Path) -> dict[str, list[list[str]]]:
    """The control socket of every process: by group, then by replica, then by rank."""
    numbers = count()
    return {
        group: [
            [f"ipc://{directory}/{next(numbers)}.sock" for _ in range(stages[0].tp_size)]
            for _ in range(stages[0].replicas)
        ]
        for group, stages in groups.items()
    }


def _placed(spec: StageSpec, stage: StageConfig, replica: int, rank: int) -> StageSpec:
    """``spec`` for one replica and rank: its GPU, and what its factory may ask for."""
    gpu = stage.gpu[replica * stage.tp_size + rank] if isinstance(stage.gpu, list) else stage.gpu
    place = {"gpu_id": gpu, "replica": replica, "tp_rank": rank, "tp_size": stage.tp_size}
    return evolve(spec, gpu=gpu, injected={**spec.injected, **place})


def _process_groups(config: PipelineConfig) -> dict[str, list[StageConfig]]:
    """Stages by process group, in pipeline order; fusing stages merges the groups that hold them."""
    group_of = {stage.name: stage.process or stage.name for stage in config.stages}
    for fused in config.fused_stages:
        kept, *merged = dict.fromkeys(group_of[name] for name in fused)
        group_of = {name: kept if group in merged else group for name, group in group_of.items()}
    groups: dict[str, list[StageConfig]] = {}
    for stage in config.stages:
        groups.setdefault(group_of[stage.name], []).append(stage)
    return groups


def _crossing_processes(config: PipelineConfig, group_of: dict[str, str]) -> set[str]:
    """The process groups that send to or receive from another one."""
    edges = [(stage.name, target) for stage in config.stages for target in {*stage.next_stages, *stage.stream_to}]
    pairs = [(group_of[source], group_of[target]) for source, target in edges]
    return {group for pair in pairs if pair[0] != pair[1] for group in pair}


def _resolve_relay(config: PipelineConfig, registry: PluginRegistry) -> str:
    try:
        return registry.resolve_reference("omni_relays", config.relay_backend)
    except PluginError as error:
        raise PluginError(
            f"relay_backend: stages of this pipeline live in different processes, and {error}. "
            f"Install the plugin (for example: pip install omni-relay-{config.relay_backend}), "
            "or give every stage the same `process`"
        ) from error


def _relay_options(config: PipelineConfig, group: str, stages: list[StageConfig], directory: Path) -> dict[str, Any]:
    own = [stage.relay for stage in stages if stage.relay is not None]
    if any(each != own[0] for each in own):
        names = ", ".join(stage.name for stage in stages if stage.relay is not None)
        raise ConfigError(
            f"stages {names} share the process {group!r} but have different `relay` settings; make them equal"
        )
    chosen = own[0] if own else RelayConfig()
    devices = [stage.gpu[0] if isinstance(stage.gpu, list) else stage.gpu for stage in stages]
    gpus = [device for device in devices if device is not None]
    # shm copies through host memory whatever the stage computes on (seed 000, "relay device").
    inferred = f"cuda:{gpus[0]}" if gpus and config.relay_backend != "shm" else "cpu"
    return {
        "slot_size_mb": chosen.slot_size_mb,
        "credits": chosen.credits,
        "device": chosen.device or inferred,
        "rank": chosen.rank or 0,
        "world_size": chosen.world_size or 1,
        "namespace": directory.name,
        "owner": group,
        "directory": str(directory),
    }


def _stage_spec(config: PipelineConfig, stage: StageConfig, registry: PluginRegistry) -> StageSpec:
    return StageSpec(
        name=stage.name,
        factory=registry.resolve_reference("omni_schedulers", stage.factory),
        factory_args={**stage.factory_args, **config.runtime_overrides.get(stage.name, {})},
        next=stage.next_stages,
        terminal=stage.terminal,
        route_fn=_reference(stage.route_fn, registry),
        wait_for=stage.wait_for or [],
        wait_for_fn=_reference(stage.wait_for_fn, registry),
        merge_fn=_reference(stage.merge_fn, registry),
        stream_to=stage.stream_to,
        stream_from=[other.name for other in config.stages if stage.name in other.stream_to],
        stream_done_to_fn=_reference(stage.stream_done_to_fn, registry),
        project_payload={target: _required(name, registry) for target, name in stage.project_payload.items()},
        injected={"model_path": config.model_path, "stage_name": stage.name},
    )


def _required(name: str, registry: PluginRegistry) -> str:
    return registry.resolve_reference("omni_payload_projections", name)


def _reference(name: str | None, registry: PluginRegistry) -> str | None:
    return None if name is None else _required(name, registry)
