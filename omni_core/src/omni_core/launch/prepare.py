"""Preparation of a run: from a validated config to the launch specs of its processes.

Everything that needs the plugins is resolved here, in the parent, so that a child discovers nothing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from attrs import evolve, frozen

from omni_core.config.completion import completed
from omni_core.config.compose import whole_name
from omni_core.config.parts import STAGE_PARTS, resolve_part, scheduler_of
from omni_core.config.placement import PlannedProcess, Replica, plan, process_groups
from omni_core.config.schema import PartConfig, PipelineConfig, StageConfig
from omni_core.config.validation import reachable
from omni_core.coordinator.replicas import BALANCES, ReplicatedGroup, expected_work
from omni_core.errors import ConfigError
from omni_core.launch.relay_plan import own_relay, plan_relays, sends
from omni_core.launch.requirements import needs_torch
from omni_core.machines.placing import endpoint_of
from omni_core.plugins import PluginRegistry
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.specs import NetworkSpec, PartSpec, ProcessSpec, StageSpec, UnitSpec
from omni_core.references import attribute_problem, load, reference_problem
from omni_core.services import IN_STAGES, KERNELS, RANKS
from omni_core.stage.parts import Names, part_terminals
from omni_core.stage_logs import stage_environment

logger = logging.getLogger(__name__)

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "GOMP_SPINCOUNT": "10000", "TOKENIZERS_PARALLELISM": "false"}
"""Defaults for every stage process: several processes share a machine, and each starting a thread per core stalls all. Where a stage has
more threads, those of GNU OpenMP spin for 0.3 ms after an operation and then sleep, instead of 10 ms, in which they would take the cores
from the threads of compiled kernels.
"""

_FUNCTIONS = ("route_fn", "wait_for_fn", "merge_fn", "expand_fn", "stream_done_to_fn")


@frozen
class PreparedPipeline:
    """The units to launch, and the facts that the coordinator needs."""

    units: list[UnitSpec]
    terminal_stages_fn: str | None
    parts: dict[str, tuple[PartSpec, str | None]]
    stage_endpoints: dict[str, dict[int, str]]
    replicated: list[ReplicatedGroup]

    def chooses_terminals(self, terminals: Sequence[str]) -> Callable[[OmniRequest], Any] | None:
        """Return what chooses the terminal stages of a request: the config's function, or what the parts of a composed one choose."""
        if self.terminal_stages_fn is not None:
            chosen: Callable[[OmniRequest], Any] = load(self.terminal_stages_fn)
            return chosen
        parts = {name: (part, load(own) if own else None) for name, (part, own) in self.parts.items()}
        return part_terminals(parts, terminals) if parts else None


def prepare(
    config: PipelineConfig,
    registry: PluginRegistry,
    run: str = "omni://run",
    network: NetworkSpec | None = None,
    anywhere: bool = False,
    replicas: Mapping[str, Sequence[Replica]] | None = None,
) -> PreparedPipeline:
    """Resolve ``config``.

    Args:
        run: the endpoint of the coordinator, which begins those of all processes.
        network: the way between machines, if the run may have several.
        anywhere: processes without a ``host`` may be on any machine, and move.
        replicas: by group, its units, where they are not those of a start (see :func:`plan`).

    Raises:
        ConfigError: the config is invalid; PluginError: it names a component that no plugin provides.
    """
    config = completed(config)
    planned = plan(config, replicas)
    services: dict[str, str] = {
        slot.name: reference for slot in IN_STAGES if (reference := slot.reference(registry)) is not None
    }
    if any(process.rank for process in planned) and RANKS.name not in services:
        raise RANKS.missing("tp_size: the ranks of a stage need", registry)
    endpoints = {process.name: endpoint_of(run, process.name) for process in planned}
    leaders = [process for process in planned if process.rank == 0]
    stage_endpoints: dict[str, dict[int, str]] = {}
    for process in leaders:
        for stage in process.stages:
            stage_endpoints.setdefault(stage.name, {})[process.replica] = endpoints[process.name]
    relays = plan_relays(config, registry, leaders, endpoints, anywhere)
    specs = {stage.name: _stage_spec(config, stage, registry) for stage in config.stages}
    with_torch = {
        process.group
        for process in leaders
        for spec in (specs[stage.name] for stage in process.stages)
        if needs_torch(spec.factory or spec.model_runner or "")
    }
    kernel_specs = KERNELS.load(registry)
    kernels = kernel_specs(registry) if kernel_specs is not None else {}
    units = []
    for leader in leaders:
        ranks = [process for process in planned if process.unit == leader.unit]
        processes = [
            ProcessSpec(
                name=process.name,
                stages=[_placed(specs[stage.name], stage, process) for stage in process.stages],
                endpoint=endpoints[process.name],
                coordinator_endpoint=run,
                stage_endpoints=stage_endpoints,
                place=process.place,
                rank=process.rank,
                followers=[endpoints[other.name] for other in ranks[1:]] if process is leader else [],
                relays=relays[leader.name].specs if process is leader else {},
                spare_relays=relays[leader.name].spare if process is leader else {},
                relay_towards=relays[leader.name].towards if process is leader else {},
                relay_across=relays[leader.name].across if process is leader else {},
                inline_bytes=relays[leader.name].inline_bytes,
                same_gpu=_same_gpu(process, leaders, endpoints),
                gpu_memory=_memory(process),
                kernels=kernels,
                expects_tensors=any(
                    sends(other, process) and other.group != process.group and other.group in with_torch
                    for other in leaders
                ),
                env={**ENVIRONMENT, **stage_environment(), **config.env_defaults},
                own_env={name: value for stage in process.stages for name, value in stage.env.items()},
                preload=_preload([(stage, specs[stage.name]) for stage in process.stages]),
                network=network,
                services=services,
            )
            for process in ranks
        ]
        units.append(
            UnitSpec(
                name=leader.unit,
                group=leader.group,
                replica=leader.replica,
                slot=leader.slot,
                processes=processes,
                startup_timeout=max(stage.startup_timeout for stage in leader.stages),
            )
        )
    return PreparedPipeline(
        units=units,
        terminal_stages_fn=_projection(config.terminal_stages_fn, registry),
        parts={
            name: (part_spec(part), _projection(part.terminal_stages_fn, registry))
            for name, part in config.parts.items()
        },
        stage_endpoints=stage_endpoints,
        replicated=[
            replicated_group(group, stages, registry)
            for group, stages in process_groups(config).items()
            if stages[0].replicas > 1 or stages[0].balance != "turns"
        ],
    )


def check_modules(prepared: PreparedPipeline, elsewhere: Collection[str]) -> None:
    """Look for the modules of the stages that run here, before anything starts. Those with a ``PYTHONPATH`` of their own may see others.

    Args:
        elsewhere: stages that run on other machines.

    Raises:
        ConfigError: there is no such module.
    """
    for process in (each for unit in prepared.units for each in unit.processes):
        if "PYTHONPATH" in {**process.env, **process.own_env}:
            continue
        for spec in process.stages:
            fields = {name: getattr(spec, name) for name in (*STAGE_PARTS, *_FUNCTIONS)}
            fields |= {f"project_payload.{to}": each for to, each in spec.project_payload.items()}
            for field, reference in fields.items():
                if reference and spec.name not in elsewhere and (problem := reference_problem(reference)):
                    raise ConfigError(f"stages[{spec.name}].{field}: {reference!r}: {problem}")


def replicated_group(name: str, stages: Sequence[StageConfig], registry: PluginRegistry) -> ReplicatedGroup:
    """Return how the replicas of a process group are chosen.

    Raises:
        ConfigError: its ``balance`` or ``work_fn`` cannot be imported.
    """
    first, work = stages[0], _projection(stages[0].work_fn, registry)
    balance = BALANCES[first.balance] if first.balance in BALANCES else load(first.balance)
    names = [stage.name for stage in stages]
    return ReplicatedGroup(name, names, first.affinity_key, balance, load(work) if work else expected_work)


def _preload(stages: list[tuple[StageConfig, StageSpec]]) -> list[str]:
    """Return the modules to import before a process with these stages is forked, each once: torch first."""
    parts = [part for _, spec in stages for part in (spec.factory, spec.model_runner, spec.feedback) if part]
    torch = ["torch"] if any(map(needs_torch, parts)) else []
    return list(dict.fromkeys([*torch, *(module for stage, _ in stages for module in stage.preload)]))


def _placed(spec: StageSpec, stage: StageConfig, process: PlannedProcess) -> StageSpec:
    """Complete ``spec`` for one replica and rank: its GPU, and what its factory or parts may ask for."""
    gpu = process.gpus.get(stage.name)
    device = "cpu" if gpu is None else f"cuda:{gpu}"
    budget = process.budgets().get(stage.name)
    memory = None if budget is None else budget.share if budget.nbytes is None else budget.nbytes
    place = {"device": device, "replica": process.replica, "tp_rank": process.rank, "tp_size": stage.tp_size}
    place["gpu_memory"] = memory
    relay, here = own_relay(process), {each.name for each in process.stages}
    own = Names(stage.part or "").own
    elsewhere = [own(each) for each in (*stage.next_stages, *stage.stream_to) if each not in here]
    place["payload_bytes"] = dict.fromkeys(elsewhere, relay.slot_size_mb * relay.credits * 2**20)
    return evolve(spec, gpu=gpu, injected={**spec.injected, **place})


def _same_gpu(process: PlannedProcess, others: list[PlannedProcess], endpoints: dict[str, str]) -> dict[str, list[str]]:
    """By stage, the endpoints of other processes where it uses the GPU of ``process``: tensors for it need not leave the device."""
    found: dict[str, list[str]] = {}
    if process.gpu is not None:
        for other in others:
            if other.name != process.name and (other.host, other.gpu) == (process.host, process.gpu):
                for stage in other.gpus:
                    found.setdefault(stage, []).append(endpoints[other.name])
    return found


def _memory(process: PlannedProcess) -> list[dict[str, float | int | None]]:
    """The budgets of a process's stages on its device, as plain data; empty if they are not limited."""
    budgets = [budget for budget in process.budgets().values() if budget is not None]
    return [{"nbytes": budget.nbytes, "share": budget.share} for budget in budgets]


def _stage_spec(config: PipelineConfig, stage: StageConfig, registry: PluginRegistry) -> StageSpec:
    given = {name: getattr(stage, name) for name in STAGE_PARTS} | {"scheduler": scheduler_of(stage, registry)}
    resolved: dict[str, Any] = {part: resolve_part(stage, part, name, registry) for part, name in given.items()}
    resolved |= {name: _projection(getattr(stage, name), registry) for name in _FUNCTIONS}
    projections = {target: _projection(name, registry) or "" for target, name in stage.project_payload.items()}
    for field, reference in (resolved | {f"project_payload.{to}": each for to, each in projections.items()}).items():
        if reference is not None and not stage.hosts and (problem := attribute_problem(reference)):
            raise ConfigError(f"stages[{stage.name}].{field}: {reference!r}: {problem}")
    return StageSpec(
        name=stage.name,
        **resolved,
        factory_args={**stage.factory_args, **config.runtime_overrides.get(stage.name, {})},
        next=stage.next_stages,
        terminal=stage.terminal,
        leads_to=_leads_to(config, stage),
        wait_for=stage.wait_for or [],
        stream_to=stage.stream_to,
        stream_from=_stream_sources(config, stage),
        chunks_to=stage.chunks_to,
        part=stage.part or "",
        enters=_enters(config, stage),
        answers=_answers(config, stage),
        project_payload=projections,
        compute_timeout=stage.compute_timeout,
        injected={
            "model_path": config.parts[stage.part].model_path if stage.part else config.model_path,
            "stage_name": Names(stage.part or "").own(stage.name),
        },
    )


def _leads_to(config: PipelineConfig, stage: StageConfig) -> dict[str, list[str]]:
    """Return the terminal stages that only the results of this one lead to, each with the targets that its route must choose from."""
    edges = {each.name: each.next_stages for each in config.stages}
    without = reachable({**edges, stage.name: []}, config.resolved_entry_stage)
    ends = [] if stage.route_fn is None else [each for each in config.terminal_stages if each not in without]
    found = {end: [each for each in stage.next_stages if end in reachable(edges, each)] for end in ends}
    return {end: targets for end, targets in found.items() if targets}


def _enters(config: PipelineConfig, stage: StageConfig) -> PartSpec | None:
    """Return the view of the part whose entry stage this is."""
    part = config.parts.get(stage.part or "")
    if part is None or stage.part is None or stage.name != whole_name(stage.part, part.entry):
        return None
    formats: dict[str, str] = {}
    for other in config.stages:
        source = config.parts.get(other.part or "")
        if stage.name in other.stream_to and other.part != stage.part and source is not None and source.tool_format:
            formats[other.name] = source.tool_format
    return evolve(part_spec(part), tool_formats=formats)


def _answers(config: PipelineConfig, stage: StageConfig) -> dict[str, list[list[str]]]:
    """Return, by target in another part, the modalities that are answered there or behind it, and those that are answered elsewhere only.

    A target that leads to a terminal stage of a part which declares no modalities is left out.
    """
    edges = {each.name: [*each.next_stages, *each.stream_to] for each in config.stages}
    answering = {each.name: config.parts[each.part].outputs for each in config.stages if each.part and each.terminal}
    found = {}
    for target in edges[stage.name]:
        behind = [answering[name] for name in reachable(edges, target) if name in answering]
        if config.stage(target).part != stage.part and all(behind):
            here = sorted({kind for kinds in behind for kind in kinds})
            elsewhere = {kind for kinds in answering.values() for kind in kinds} - {*here}
            found[target] = [here, sorted(elsewhere)]
    return found


def part_spec(part: PartConfig) -> PartSpec:
    """Return what a stage or the coordinator needs of a part."""
    return PartSpec(outputs=part.outputs, reads_streams=part.reads_streams, params=part.params, metadata=part.metadata)


def _stream_sources(config: PipelineConfig, stage: StageConfig) -> list[str]:
    """Return the stages that stream to this one; ``""`` is the client."""
    takes_input = config.interface is not None and config.interface.input_streams
    client = [""] if takes_input and stage.name == config.resolved_entry_stage else []
    return client + [other.name for other in config.stages if stage.name in other.stream_to]


def _projection(name: str | None, registry: PluginRegistry) -> str | None:
    return None if name is None else registry.resolve_reference("omni_payload_projections", name)
