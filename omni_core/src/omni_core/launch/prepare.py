"""Preparation of a run: from a validated config to the launch specs of its processes.

Everything that needs the plugins is resolved here, in the parent, so that a child discovers nothing.
"""

from __future__ import annotations

import logging
from typing import Any

from attrs import evolve, frozen

from omni_core.config.completion import completed
from omni_core.config.placement import PlannedProcess, plan, process_groups
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.control.curve import CurveKeys
from omni_core.coordinator.replicas import ReplicatedGroup
from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import KernelComponent, SchedulerComponent
from omni_core.launch.relay_plan import check_relays, plan_relays, sends
from omni_core.launch.requirements import needs_torch
from omni_core.machines.addresses import MachineAddresses
from omni_core.plugins import PluginRegistry
from omni_core.plugins.registry import problem_of
from omni_core.protocol.specs import KernelSpec, ProcessSpec, StageSpec, UnitSpec
from omni_core.references import normalize, problem
from omni_core.stage_logs import stage_environment

logger = logging.getLogger(__name__)

ENVIRONMENT = {"OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
"""Defaults for every stage process: several processes share a machine, and each starting a thread per core stalls all."""


_FUNCTIONS = ("route_fn", "wait_for_fn", "merge_fn", "stream_done_to_fn")
_PARTS = ("factory", "model_runner", "feedback", "scheduler")
_REFERENCES = (*_PARTS, *_FUNCTIONS)


@frozen
class PreparedPipeline:
    """The units to launch, and the facts that the coordinator needs."""

    units: list[UnitSpec]
    terminal_stages_fn: str | None
    routes: dict[str, str]
    stage_endpoints: dict[str, list[str]]
    replicated: list[ReplicatedGroup]


def prepare(
    config: PipelineConfig, registry: PluginRegistry, addresses: MachineAddresses, keys: CurveKeys | None = None
) -> PreparedPipeline:
    """Resolve ``config`` for a run on the hosts ``addresses``, which own ``keys`` if there are several.

    Raises:
        ConfigError: the config is invalid; PluginError: it names a component that no plugin provides.
    """
    config = completed(config)
    planned = plan(config)
    endpoints = addresses.endpoints(planned)
    leaders = [process for process in planned if process.rank == 0]
    stage_endpoints: dict[str, list[str]] = {}
    for process in leaders:
        for stage in process.stages:
            stage_endpoints.setdefault(stage.name, []).append(endpoints[process.name])
    relays = plan_relays(config, registry, leaders, endpoints, addresses)
    specs = {stage.name: _stage_spec(config, stage, registry) for stage in config.stages}
    with_torch = {
        process.group
        for process in leaders
        for spec in (specs[stage.name] for stage in process.stages)
        if needs_torch(spec.factory or spec.model_runner or "")
    }
    kernels = kernel_specs(registry)
    units = []
    for leader in leaders:
        ranks = [process for process in planned if process.unit == leader.unit]
        processes = [
            ProcessSpec(
                name=process.name,
                stages=[_placed(specs[stage.name], stage, process) for stage in process.stages],
                endpoint=endpoints[process.name],
                coordinator_endpoint=addresses.coordinator_endpoint,
                stage_endpoints=stage_endpoints,
                rank=process.rank,
                followers=[endpoints[other.name] for other in ranks[1:]] if process is leader else [],
                relays=relays[leader.name].specs if process is leader else {},
                relay_towards=relays[leader.name].towards if process is leader else {},
                inline_bytes=relays[leader.name].inline_bytes,
                same_gpu=_same_gpu(process, leaders, endpoints),
                gpu_memory=_memory(process),
                kernels=kernels,
                expects_tensors=any(
                    sends(other, process) and other.group != process.group and other.group in with_torch
                    for other in leaders
                ),
                env={**ENVIRONMENT, **stage_environment(), **config.env_defaults},
                preload=_preload([(stage, specs[stage.name]) for stage in process.stages]),
                routes=addresses.routes(leader.host, planned),
                keys=[] if keys is None else [keys.public, keys.secret],
            )
            for process in ranks
        ]
        units.append(
            UnitSpec(
                name=leader.unit,
                group=leader.group,
                replica=leader.replica,
                processes=processes,
                startup_timeout=max(stage.startup_timeout for stage in leader.stages),
                host=leader.host,
            )
        )
    return PreparedPipeline(
        units=units,
        terminal_stages_fn=_projection(config.terminal_stages_fn, registry),
        routes=addresses.routes(None, planned),
        stage_endpoints=stage_endpoints,
        replicated=[
            ReplicatedGroup(group, [stage.name for stage in stages], stages[0].affinity_key)
            for group, stages in process_groups(config).items()
            if stages[0].replicas > 1
        ],
    )


def _preload(stages: list[tuple[StageConfig, StageSpec]]) -> list[str]:
    """Return the modules to import before a process with these stages is forked, each once: torch first."""
    parts = [part for _, spec in stages for part in (spec.factory, spec.model_runner, spec.feedback) if part]
    torch = ["torch"] if any(map(needs_torch, parts)) else []
    return list(dict.fromkeys([*torch, *(module for stage, _ in stages for module in stage.preload)]))


def check_components(config: PipelineConfig, registry: PluginRegistry) -> None:
    """Check that every component that ``config`` names is installed and is where it is said to be. None is imported.

    The modules of a stage on another host are that host's, and not looked for here.

    Raises:
        ConfigError: a reference leads nowhere; every such field is named. PluginError: no plugin provides a name.
    """
    check_relays(config, registry)
    wrong = []
    for stage in config.stages:
        spec = _stage_spec(config, stage, registry)
        references = {name: getattr(spec, name) for name in _REFERENCES if stage.host is None}
        references |= {f"project_payload.{to}": each for to, each in spec.project_payload.items() if stage.host is None}
        found = {name: problem(each) for name, each in references.items() if each is not None}
        wrong += [f"stages[{stage.name}].{name}: {references[name]!r}: {why}" for name, why in found.items() if why]
    terminals = _projection(config.terminal_stages_fn, registry)
    if terminals is not None and (why := problem(terminals)):
        wrong.append(f"terminal_stages_fn: {terminals!r}: {why}")
    if wrong:
        raise ConfigError("\n".join(wrong))


def _placed(spec: StageSpec, stage: StageConfig, process: PlannedProcess) -> StageSpec:
    """Complete ``spec`` for one replica and rank: its GPU, and what its factory or parts may ask for."""
    gpu = process.gpus.get(stage.name)
    device = "cpu" if gpu is None else f"cuda:{gpu}"
    budget = process.budgets().get(stage.name)
    memory = None if budget is None else budget.share if budget.nbytes is None else budget.nbytes
    place = {"device": device, "replica": process.replica, "tp_rank": process.rank, "tp_size": stage.tp_size}
    place["gpu_memory"] = memory
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
    given = {name: getattr(stage, name) for name in _PARTS} | {"scheduler": _scheduler(stage, registry)}
    resolved: dict[str, Any] = {part: _part(stage, part, name, registry) for part, name in given.items()}
    resolved |= {name: _projection(getattr(stage, name), registry) for name in _FUNCTIONS}
    return StageSpec(
        name=stage.name,
        **resolved,
        factory_args={**stage.factory_args, **config.runtime_overrides.get(stage.name, {})},
        next=stage.next_stages,
        terminal=stage.terminal,
        wait_for=stage.wait_for or [],
        stream_to=stage.stream_to,
        stream_from=[other.name for other in config.stages if stage.name in other.stream_to],
        project_payload={target: _projection(name, registry) or "" for target, name in stage.project_payload.items()},
        compute_timeout=stage.compute_timeout,
        injected={"model_path": config.model_path, "stage_name": stage.name},
    )


def kernel_specs(registry: PluginRegistry) -> dict[str, list[KernelSpec]]:
    """The installed kernels by operation. Their probes are asked in the processes that run them, maybe on another host.

    One that cannot be used is left out with a warning: there is always the reference.
    """
    found: dict[str, list[KernelSpec]] = {}
    for name in registry.names("omni_kernels"):
        try:
            component = registry.get("omni_kernels", name)
            if not isinstance(component, KernelComponent):
                raise PluginError(f"the kernel {name!r} is a {type(component).__name__}; it must be a KernelComponent")
            record = next(each for each in registry.components("omni_kernels") if each[0] is component)[1]
            plugin = f"{record.name} ({record.distribution})"
            found.setdefault(component.operation, []).append(_kernel(component, plugin))
        except PluginError as error:
            logger.warning("a kernel is not used: %s", error)
    return found


def _kernel(component: KernelComponent, plugin: str) -> KernelSpec:
    probe = component.probe
    reference = None if probe is None else f"{probe.__module__}:{getattr(probe, '__qualname__', '<unnamed>')}"
    if reference is not None and "<" in reference:
        raise PluginError(
            f"the probe of {component.name!r} is {reference}, which other processes cannot import; make it a function of a module"
        )
    return KernelSpec(
        name=component.name,
        device=component.device,
        dtypes=list(component.dtypes),
        priority=component.priority,
        target=normalize(component.target),
        requires=list(component.requires),
        probe=reference,
        plugin=plugin,
    )


def _part(stage: StageConfig, part: str, name: str | None, registry: PluginRegistry) -> str | None:
    """Resolve a part of a stage, if it has it.

    Raises:
        PluginError: no plugin provides a part of that name, or it is a scheduler that drives no model runner.
    """
    if name is None:
        return None
    hook = {"feedback": "omni_feedback_strategies", "model_runner": "omni_model_runners"}.get(part, "omni_schedulers")
    path = f"stages[{stage.name}].{part}"
    try:
        reference = registry.resolve_reference(hook, name)
    except PluginError as error:
        raise PluginError(f"{path}: {error}") from error
    if part == "scheduler" and name in registry.names(hook):
        component = registry.get(hook, name)
        if isinstance(component, SchedulerComponent) and not component.runs_model_runners:
            raise PluginError(f"{path}: {name!r} drives no model runner; {_drivers(registry)}")
    return reference


def _scheduler(stage: StageConfig, registry: PluginRegistry) -> str | None:
    """Return the scheduler of a stage of parts: its own, or the installed one with the highest preference.

    Raises:
        PluginError: none is installed that can work here.
    """
    if stage.model_runner is None or stage.scheduler is not None:
        return stage.scheduler
    found = [each for each in _model_schedulers(registry) if problem_of(each) is None]
    if not found:
        reasons = "".join(f"; {each.name!r}: {problem_of(each)}" for each in _model_schedulers(registry))
        suspects = "".join(f"; {each}" for each in registry.suspects())
        raise PluginError(
            f"stages[{stage.name}].scheduler: no scheduler that can drive {stage.model_runner!r} is installed: "
            f"pip install omni-engine (or omni-sglang){reasons}{suspects}"
        )
    return max(found, key=lambda each: (each.preference, each.name)).name


def _model_schedulers(registry: PluginRegistry) -> list[SchedulerComponent]:
    installed = [component for component, _ in registry.components("omni_schedulers")]
    return [each for each in installed if isinstance(each, SchedulerComponent) and each.runs_model_runners]


def _drivers(registry: PluginRegistry) -> str:
    names = ", ".join(sorted(each.name for each in _model_schedulers(registry)))
    return f"those that do: {names}" if names else "none is installed that does: pip install omni-engine"


def _projection(name: str | None, registry: PluginRegistry) -> str | None:
    return None if name is None else registry.resolve_reference("omni_payload_projections", name)
