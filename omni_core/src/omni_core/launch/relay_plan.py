"""The relay of each edge between processes: the one that a stage or the pipeline names, else one that reaches the other process."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attrs import field, frozen

from omni_core.config.placement import PlannedProcess
from omni_core.config.schema import PipelineConfig, RelayConfig
from omni_core.errors import ConfigError, PluginError
from omni_core.hookspecs import RelayComponent, works
from omni_core.machines.addresses import MachineAddresses
from omni_core.plugins import PluginRegistry
from omni_core.protocol.specs import RelaySpec


@frozen
class RelayPlan:
    """The relays of one process: those it sends or is sent by, which of them reaches which endpoint, and its ``inline_bytes``."""

    specs: dict[str, RelaySpec] = field(factory=dict)
    towards: dict[str, str] = field(factory=dict)
    inline_bytes: int | None = None


def plan_relays(
    config: PipelineConfig,
    registry: PluginRegistry,
    leaders: Sequence[PlannedProcess],
    endpoints: Mapping[str, str],
    addresses: MachineAddresses,
) -> dict[str, RelayPlan]:
    """The relays of each process, by its name.

    Raises:
        PluginError: a relay that is named is not installed. ConfigError: one cannot reach where it would have to, or stages of
            one process disagree.
    """
    plans = {process.name: RelayPlan(inline_bytes=_own(process).inline_bytes) for process in leaders}
    used: dict[str, set[str]] = {process.name: set() for process in leaders}
    settings: dict[str, dict[str, Any]] = {}
    for source in leaders:
        own = _own(source)
        if own.settings:
            name = own.backend or config.relay_backend
            if settings.setdefault(name, own.settings) != own.settings:
                raise ConfigError(f"stages have different `relay.settings` for the relay {name!r}; make them equal")
        for target in leaders:
            if target.group != source.group and sends(source, target):
                name = _choose(config, registry, own.backend, source, target)
                plans[source.name].towards[endpoints[target.name]] = name
                used[source.name].add(name)
                used[target.name].add(name)
    in_host_memory = {component.name for component in _components(registry) if component.host_memory}
    for process in leaders:
        for name in sorted(used[process.name]):
            options = _options(process, name in in_host_memory, settings.get(name, {}), addresses)
            plans[process.name].specs[name] = RelaySpec(_resolve(config, registry, name), options)
    return plans


def check_relays(config: PipelineConfig, registry: PluginRegistry) -> None:
    """Check that the relays that ``config`` names are installed, if it has more than one process.

    Raises:
        PluginError: one is not.
    """
    if len({stage.process for stage in config.stages}) > 1:
        own = {stage.relay.backend for stage in config.stages if stage.relay is not None and stage.relay.backend}
        for name in sorted({config.relay_backend, *own}):
            _resolve(config, registry, name)


def sends(source: PlannedProcess, target: PlannedProcess) -> bool:
    """Return whether a stage of ``source`` hands results or chunks to a stage of ``target``."""
    there = {stage.name for stage in target.stages}
    return any(not there.isdisjoint((*stage.next_stages, *stage.stream_to)) for stage in source.stages)


def _own(process: PlannedProcess) -> RelayConfig:
    own = [stage.relay for stage in process.stages if stage.relay is not None]
    if any(each != own[0] for each in own):
        names = ", ".join(stage.name for stage in process.stages if stage.relay is not None)
        where = f"stages {names} share the process {process.group!r}"
        raise ConfigError(f"{where} but have different `relay` settings; make them equal")
    return own[0] if own else RelayConfig()


def _choose(
    config: PipelineConfig, registry: PluginRegistry, wanted: str | None, source: PlannedProcess, target: PlannedProcess
) -> str:
    if source.host == target.host:
        return wanted or config.relay_backend
    reach = [each for each in _components(registry) if each.across_hosts]
    names = [component.name for component in reach]
    name = wanted or config.relay_backend
    if name in names or ":" in name or "." in name:  # an unregistered class declares nothing
        return name
    edge = f"stages {source.stages[-1].name} and {target.stages[0].name} are on different hosts"
    if wanted is not None:
        raise ConfigError(
            f"stages[{source.stages[0].name}].relay.backend: {edge}, which the relay {wanted!r} does not join; "
            f"there are: {', '.join(names) or 'none'}"
        )
    problems = []
    for component in sorted(reach, key=lambda each: each.preference, reverse=True):
        problem = None if component.probe is None else component.probe()
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


def _resolve(config: PipelineConfig, registry: PluginRegistry, name: str) -> str:
    try:
        return registry.resolve_reference("omni_relays", name)
    except PluginError as error:
        where = "relay_backend" if name == config.relay_backend else "relay.backend"
        raise PluginError(
            f"{where}: stages of this pipeline live in different processes, and {str(error).rstrip('.?')}; "
            "install the plugin that provides it, or give every stage the same `process`"
        ) from error


def _options(
    process: PlannedProcess, host_memory: bool, settings: dict[str, Any], addresses: MachineAddresses
) -> dict[str, Any]:
    own = _own(process)
    machine = addresses.of(process.host)
    inferred = f"cuda:{process.gpu}" if process.gpu is not None and not host_memory else "cpu"
    return {
        "slot_size_mb": own.slot_size_mb,
        "credits": own.credits,
        "device": own.device or inferred,
        "rank": own.rank or 0,
        "world_size": own.world_size or 1,
        "namespace": machine.directory.rpartition("/")[2],
        "owner": process.unit,
        "directory": machine.directory,
        "host": machine.address,
        "settings": settings,
    }
