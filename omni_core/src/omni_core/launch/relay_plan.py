"""The relay of each edge between processes: the one that a stage or the pipeline names, else one that reaches the other process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from omni_core.config.placement import PlannedProcess
from omni_core.config.schema import PipelineConfig, RelayConfig
from omni_core.errors import ConfigError, PluginError, contained
from omni_core.hookspecs import RelayComponent, works
from omni_core.plugins import PluginRegistry
from omni_core.protocol.specs import RelaySpec


@frozen
class RelayPlan:
    """The relays of one process: those it sends or is sent by, those it may need once a process has moved, and which of them reaches which
    endpoint on the same machine and on another; its ``inline_bytes``.
    """

    specs: dict[str, RelaySpec] = field(factory=dict)
    spare: dict[str, RelaySpec] = field(factory=dict)
    towards: dict[str, str] = field(factory=dict)
    across: dict[str, str] = field(factory=dict)
    inline_bytes: int | None = None


def plan_relays(
    config: PipelineConfig,
    registry: PluginRegistry,
    leaders: Sequence[PlannedProcess],
    endpoints: Mapping[str, str],
    anywhere: bool = False,
) -> dict[str, RelayPlan]:
    """The relays of each process, by its name. Between stages of different ``host`` they join hosts.

    Args:
        anywhere: processes without a ``host`` may be on any machine, and move.

    Raises:
        PluginError: a relay that is named is not installed. ConfigError: one cannot reach where it would have to.
    """
    plans = {process.name: RelayPlan(inline_bytes=own_relay(process).inline_bytes) for process in leaders}
    used: dict[str, set[str]] = {process.name: set() for process in leaders}
    spare: dict[str, set[str]] = {process.name: set() for process in leaders}
    settings: dict[str, dict[str, Any]] = {}
    for source in leaders:
        own = own_relay(source)
        if own.settings:
            settings[own.backend or config.relay_backend] = own.settings
        for target in leaders:
            if target.group != source.group and sends(source, target):
                plan, endpoint = plans[source.name], endpoints[target.name]
                apart = source.host != target.host
                may_part = apart or (anywhere and source.host is None)
                across = _across(config, registry, own.backend, source, target) if may_part else None
                name = across if apart and across else own.backend or config.relay_backend
                plan.towards[endpoint] = name
                used[source.name].add(name)
                used[target.name].add(name)
                if across is not None:
                    plan.across[endpoint] = across
                    spare[source.name].add(across)
                    spare[target.name].add(across)
    in_host_memory = {component.name for component in _components(registry) if component.host_memory}
    for process in leaders:
        for name in sorted(used[process.name] | spare[process.name]):
            options = _options(process, name in in_host_memory, settings.get(name, {}))
            plan = plans[process.name]
            specs = plan.specs if name in used[process.name] else plan.spare
            specs[name] = RelaySpec(relay_reference(config, registry, name), options)
    return plans


def sends(source: PlannedProcess, target: PlannedProcess) -> bool:
    """Return whether a stage of ``source`` hands results or chunks to a stage of ``target``."""
    there = {stage.name for stage in target.stages}
    return any(not there.isdisjoint((*stage.next_stages, *stage.stream_to)) for stage in source.stages)


def own_relay(process: PlannedProcess) -> RelayConfig:
    """Return the relay of a process, by which it sends."""
    return next((stage.relay for stage in process.stages if stage.relay is not None), RelayConfig())


def _across(
    config: PipelineConfig, registry: PluginRegistry, wanted: str | None, source: PlannedProcess, target: PlannedProcess
) -> str:
    """The relay of an edge between machines: what is named, if it joins them, else the best that does."""
    reach = [each for each in _components(registry) if each.across_hosts]
    names = [component.name for component in reach]
    name = wanted or config.relay_backend
    if name in names or ":" in name or "." in name:  # an unregistered class declares nothing
        return name
    may = "are" if source.host != target.host else "may be"
    edge = f"stages {source.stages[-1].name} and {target.stages[0].name} {may} on different hosts"
    if wanted is not None:
        raise ConfigError(
            f"stages[{source.stages[0].name}].relay.backend: {edge}, which the relay {wanted!r} does not join; "
            f"there are: {', '.join(names) or 'none'}"
        )
    problems = []
    for component in sorted(reach, key=lambda each: each.preference, reverse=True):
        failed: str | None = "its probe failed"
        what = f"the probe of the relay {component.name!r}"
        problem = None if component.probe is None else contained(component.probe, failed, what)
        if works(problem):
            return component.name
        problems.append(f"{component.name}: {problem}")
    reasons = f" ({'; '.join(problems)})" if problems else ""
    raise ConfigError(
        f"{edge}, and no relay that can work here joins them{reasons}; "
        "`omni plugins list` shows the relays that are installed"
    )


def _components(registry: PluginRegistry) -> list[RelayComponent]:
    """The installed relays that say more of themselves than their names."""
    return [each for each, _ in registry.components("omni_relays") if isinstance(each, RelayComponent)]


def relay_reference(config: PipelineConfig, registry: PluginRegistry, name: str, stage: str | None = None) -> str:
    """Return the reference of a relay that a config names, for ``stage`` if that does. Raises PluginError: it is not installed."""
    try:
        return registry.resolve_reference("omni_relays", name)
    except PluginError as error:
        own = "relay.backend" if stage is None else f"stages[{stage}].relay.backend"
        where = "relay_backend" if name == config.relay_backend else own
        raise PluginError(
            f"{where}: stages of this pipeline live in different processes, and {str(error).rstrip('.?')}; "
            "install the plugin that provides it, or give every stage the same `process`"
        ) from error


def _options(process: PlannedProcess, host_memory: bool, settings: dict[str, Any]) -> dict[str, Any]:
    """The fields of :class:`RelayOptions` that do not depend on the machine."""
    own = own_relay(process)
    inferred = f"cuda:{process.gpu}" if process.gpu is not None and not host_memory else "cpu"
    return {
        "slot_size_mb": own.slot_size_mb,
        "credits": own.credits,
        "device": own.device or inferred,
        "rank": own.rank or 0,
        "world_size": own.world_size or 1,
        "owner": process.unit,
        "settings": settings,
    }
