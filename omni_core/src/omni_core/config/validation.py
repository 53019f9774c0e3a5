"""Static validation: the rules that a pipeline keeps, checked before anything runs. All problems are reported at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from itertools import pairwise
from math import inf
from typing import Any

from attrs import asdict

from omni_core.config.addresses import split_address
from omni_core.config.placement import (
    AUTO,
    TOO_MANY,
    Budget,
    has_too_many,
    parse_bytes,
    process_groups,
    process_names,
    unit_names,
)
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, did_you_mean


def validate(config: PipelineConfig) -> None:
    """Check a whole pipeline.

    Raises:
        ConfigError: one line per problem, each naming its full path.
    """
    found = config_problems(config)
    if found:
        raise ConfigError("\n".join(found))


def config_problems(config: PipelineConfig) -> list[str]:
    """Return a line for each problem of :func:`validate`."""
    if not config.stages:
        return ["stages: a pipeline needs at least one stage"]
    return list(dict.fromkeys(problem for rule in _RULES for problem in rule(config)))


def reachable(edges: Mapping[str, list[str]], name: str) -> set[str]:
    """The stages to which something in stage ``name`` may come, with this one."""
    found, frontier = {name}, [name]
    while frontier:
        new = set(edges.get(frontier.pop(), ())) - found
        found |= new
        frontier += new
    return found


def _names(config: PipelineConfig) -> list[str]:
    return [stage.name for stage in config.stages]


def _each_stage(config: PipelineConfig) -> Iterator[tuple[str, StageConfig]]:
    for stage in config.stages:
        yield f"stages[{stage.name}]", stage


def _unique_names(config: PipelineConfig) -> Iterator[str]:
    names = _names(config)
    for name in sorted({name for name in names if names.count(name) > 1}):
        yield f"stages[{name}].name: {names.count(name)} stages have this name"
    for path, stage in _each_stage(config):
        if not stage.name:
            yield f"{path}.name: must not be empty"


def _known_targets(config: PipelineConfig) -> Iterator[str]:
    names = _names(config)
    for path, stage in _each_stage(config):
        targets = {
            "next": stage.next_stages,
            "wait_for": stage.wait_for or [],
            "stream_to": stage.stream_to,
            "chunks_to": stage.chunks_to or [],
            "project_payload": list(stage.project_payload),
        }
        for field_name, values in targets.items():
            for value in values:
                if value not in names:
                    yield f"{path}.{field_name}: no stage is called {value!r}{did_you_mean(value, names)}"
                elif value == stage.name:
                    yield f"{path}.{field_name}: a stage cannot name itself"
    if config.entry_stage is not None and config.entry_stage not in names:
        yield f"entry_stage: no stage is called {config.entry_stage!r}{did_you_mean(config.entry_stage, names)}"
    for name in config.runtime_overrides:
        if name not in names:
            yield f"runtime_overrides.{name}: no stage is called that{did_you_mean(name, names)}"


def _routing(config: PipelineConfig) -> Iterator[str]:
    for path, stage in _each_stage(config):
        if stage.part is not None and stage.part not in config.parts:
            yield f"{path}.part: no part is called {stage.part!r}{did_you_mean(stage.part, config.parts)}"
        if set(stage.chunks_to or ()) - set(stage.stream_to):
            yield f"{path}.chunks_to: only stages named in `stream_to` receive chunks"
        if bool(stage.next_stages) == stage.terminal and not (stage.terminal and stage.part):
            yield f"{path}: set exactly one of `next` and `terminal: true`"
        if stage.route_fn and stage.terminal and not stage.part:
            yield f"{path}.route_fn: not valid on a terminal stage"
        if stage.stream_done_to_fn and not stage.stream_to:
            yield f"{path}.stream_done_to_fn: needs `stream_to`, of which it returns a subset"
        if stage.project_payload.keys() - set(stage.next_stages):
            extra = sorted(stage.project_payload.keys() - set(stage.next_stages))[0]
            yield f"{path}.project_payload.{extra}: only stages named in `next` receive a payload"
    if not config.terminal_stages:
        yield "stages: no stage is terminal; set `terminal: true` on the one whose results the client gets"


def _parts(config: PipelineConfig) -> Iterator[str]:
    for path, stage in _each_stage(config):
        if not stage.factory and not stage.model_runner:
            yield f"{path}: set `factory`, or `model_runner` and the parts beside it"
        if stage.factory and stage.model_runner:
            yield f"{path}: set `factory` or `model_runner`, not both"
        for name in ("feedback", "scheduler"):
            if getattr(stage, name) and not stage.model_runner:
                yield f"{path}.{name}: needs `model_runner`; a `factory` brings its own {name}"


def _fan_in(config: PipelineConfig) -> Iterator[str]:
    senders = {name: {s.name for s in config.stages if name in s.next_stages} for name in _names(config)}
    for path, stage in _each_stage(config):
        if stage.wait_for and not stage.merge_fn:
            yield f"{path}.merge_fn: required because `wait_for` is set"
        sources = [each.name for each in config.stages if stage.name in each.stream_to and each.part == stage.part]
        if stage.expand_fn and sources:
            yield f"{path}.expand_fn: not possible in a stage that others stream to ({', '.join(sources)}): a chunk belongs to no part"
        if not stage.wait_for:
            for field_name in ("merge_fn", "wait_for_fn"):
                if getattr(stage, field_name):
                    yield f"{path}.{field_name}: has no effect without `wait_for`"
            continue
        for source in stage.wait_for:
            if source in senders and source not in senders[stage.name]:
                yield f"{path}.wait_for: {source!r} does not send here; add {stage.name!r} to stages[{source}].next"
        for source in sorted(senders[stage.name] - set(stage.wait_for)):
            yield f"{path}.wait_for: {source!r} sends here too and must be named"


def _placement(config: PipelineConfig) -> Iterator[str]:
    for path, stage in _each_stage(config):
        for name in ("tp_size", "replicas"):
            if getattr(stage, name) < 1:
                yield f"{path}.{name}: must be at least 1, is {getattr(stage, name)}"
        if has_too_many(stage):
            yield f"{path}: {TOO_MANY}"
        for name in ("startup_timeout", "compute_timeout", "cpus"):
            if (number := getattr(stage, name)) is not None and number <= 0:
                yield f"{path}.{name}: must be positive, is {number:g}"
        if isinstance(stage.gpu, list) and len(stage.gpu) != stage.tp_size * stage.replicas:
            wanted = "tp_size" if stage.replicas == 1 else "replicas * tp_size"
            yield f"{path}.{wanted}: is {stage.tp_size * stage.replicas}, but `gpu` lists {len(stage.gpu)} devices"
        if isinstance(stage.host, list) and len(stage.host) not in (stage.replicas, stage.replicas * stage.tp_size):
            yield f"{path}.replicas: is {stage.replicas}, tp_size {stage.tp_size}, but `host` lists {len(stage.host)} hosts"
        if stage.tp_size > 1 and isinstance(stage.gpu, int):
            yield f"{path}.gpu: a tensor parallel stage needs a list of {stage.tp_size} devices"
        if isinstance(stage.gpu, bool) or any(gpu < 0 for gpu in _gpus(stage)):
            yield f"{path}.gpu: must be a device number from 0 on, or auto, is {stage.gpu!r}"
        elif stage.gpu == AUTO and config.placement_fn is None:
            yield f"{path}.gpu: this pipeline has no `placement_fn` that could choose a device; give its number"
        for name, parsed in (("gpu_memory", Budget.parse), ("memory", parse_bytes)):
            try:
                if getattr(stage, name) is not None:
                    parsed(getattr(stage, name))
            except ConfigError as error:
                yield f"{path}.{name}: {error}"
        for name in ("cpus", "memory", "labels") if (by := config.resolved_launcher.name) in ("local", "hosts") else ():
            if getattr(stage, name):
                yield f"{path}.{name}: the launcher {by!r} places nothing by it; remove it, or choose one that does"
        if stage.tp_size == 1 and not stage.process:
            yield f"{path}.process: required; stages with the same value share an OS process"
    for group, stages in _groups(config).items():
        if len(stages) > 1 and any(stage.tp_size > 1 for stage in stages):
            yield f"process {group!r}: a tensor parallel stage owns its processes; no other stage may share the name"
        for name, unset in (
            *(("replicas", ""), ("affinity_key", "none"), ("balance", ""), ("work_fn", "none")),
            *(("autoscale", "none"), ("host", "this one"), ("env", "none"), ("labels", "none")),
        ):
            if any(getattr(stage, name) != getattr(stages[0], name) for stage in stages):
                named = ", ".join(f"stages[{stage.name}].{name}: {getattr(stage, name) or unset}" for stage in stages)
                yield f"process {group!r}: its stages have different `{name}` ({named}); make them equal"
        for name, most in (("gpu", "a process may use one at most"), ("relay", "make them equal")):
            given = [(stage.name, getattr(stage, name)) for stage in stages if getattr(stage, name) not in (None, AUTO)]
            if any(value != given[0][1] for _, value in given):
                named = ", ".join(f"stages[{stage}].{name}: {value}" for stage, value in given)
                yield f"process {group!r}: its stages have different `{name}` ({named}); {most}"


def _process_names(config: PipelineConfig) -> Iterator[str]:
    """Processes are addressed by their names, of which those of replicas and ranks are derived."""
    owners: dict[str, tuple[str, str]] = {}
    for group, stages in _groups(config).items():
        if has_too_many(stages[0]):
            continue
        named = ", ".join(f"stages[{stage.name}]" for stage in stages)
        ranks = max(stages[0].tp_size, 1)
        for unit in unit_names(group, max(stages[0].replicas, 1)):
            for name in dict.fromkeys([unit, *process_names(unit, ranks)]):
                other, others = owners.setdefault(name, (group, named))
                if other != group:
                    yield (
                        f"process {name!r}: two processes would have this name, one of {others} (process {other!r}) and "
                        f"one of {named} (process {group!r}), as replicas are named PROCESS.0, PROCESS.1, ... and tensor "
                        "parallel ranks PROCESS_tp0, PROCESS_tp1, ...; give one of them another `process`"
                    )


def _groups(config: PipelineConfig) -> dict[str, list[StageConfig]]:
    """The stages of each process; empty where ``fused_stages`` name unknown ones."""
    known = {stage.name for stage in config.stages}
    return process_groups(config) if all(known.issuperset(fused) for fused in config.fused_stages) else {}


def _hosts(config: PipelineConfig) -> Iterator[str]:
    endpoints = config.endpoints
    addresses = {f"hosts.{name}": address for name, address in config.hosts.items()}
    for path, address in (addresses | ({"endpoints.accept": endpoints.accept} if endpoints.accept else {})).items():
        try:
            split_address(address)
        except ConfigError as error:
            yield f"{path}: {error}"
    if config.resolved_launcher.name != "hosts":
        if endpoints.accept is not None:
            yield "endpoints.accept: no stage has a `host`, so no host can join; set `host` on the stages that are to run elsewhere"
        return
    for path, name in [(path, name) for path, stage in _each_stage(config) for name in stage.hosts]:
        if name not in config.hosts and endpoints.accept is None:
            hint = did_you_mean(name, config.hosts) if config.hosts else ""
            hint = hint or "; add its address to `hosts`, or let it join (endpoints.accept)"
            yield f"{path}.host: no host is called {name!r}{hint}"
    why = "required by the `host` of stages: " + ", ".join(
        f"{path}.host" for path, each in _each_stage(config) if each.host
    )
    if endpoints.address is None and endpoints.accept is None:
        yield f"endpoints.address: {why}; the address by which other hosts reach this one"
    if endpoints.key_file is None:
        yield f"endpoints.key_file: {why}; make one with: omni hosts key FILE"


def _gpus(stage: StageConfig) -> list[int]:
    if isinstance(stage.gpu, list):
        return stage.gpu
    return [stage.gpu] if isinstance(stage.gpu, int) else []


def _fusion(config: PipelineConfig) -> Iterator[str]:
    names = _names(config)
    for index, fused in enumerate(config.fused_stages):
        path = f"fused_stages[{index}]"
        unknown = [name for name in fused if name not in names]
        yield from (f"{path}: no stage is called {name!r}{did_you_mean(name, names)}" for name in unknown)
        if unknown:
            continue
        if len(fused) < 2:
            yield f"{path}: fuse at least two stages"
            continue
        start = names.index(fused[0])
        if names[start : start + len(fused)] != fused:
            yield f"{path}: {fused} are not adjacent in `stages`, in this order"
        stages = [config.stage(name) for name in fused]
        for stage, following in pairwise(stages):
            if stage.next_stages != [following.name]:
                yield f"{path}: {stage.name!r} must route to {following.name!r} only"
            if following.wait_for:
                yield f"{path}: {following.name!r} has a fan-in; a fused group is linear"
            elsewhere = [target for target in stage.stream_to if target != following.name]
            if elsewhere:
                yield f"{path}: {stage.name!r} streams to {elsewhere[0]!r}; it may reach {following.name!r} only"
        if any(stage.tp_size > 1 for stage in stages):
            yield f"{path}: tensor parallel stages cannot be fused"


def _graph(config: PipelineConfig) -> Iterator[str]:
    names = _names(config)
    edges = {
        stage.name: [name for name in (*stage.next_stages, *stage.stream_to) if name in names]
        for stage in config.stages
    }
    reached = reachable(edges, config.resolved_entry_stage)
    for name in names:
        if name not in reached:
            path = f"stages[{name}]" if config.entry_stage is None else "entry_stage"
            yield f"{path}: no path leads from the entry stage {config.resolved_entry_stage!r} to {name!r}"
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        yield f"stages: {' -> '.join(reversed(error.args[1]))} is a cycle"


def _relays(config: PipelineConfig) -> Iterator[str]:
    settings: dict[str, tuple[str, dict[str, Any]]] = {}
    for path, stage in _each_stage(config):
        for name in ("slot_size_mb", "credits") if stage.relay is not None else ():
            if getattr(stage.relay, name) < 1:
                yield f"{path}.relay.{name}: must be at least 1, is {getattr(stage.relay, name)}"
        if stage.relay is not None and stage.relay.inline_bytes is not None and stage.relay.inline_bytes < 0:
            yield f"{path}.relay.inline_bytes: must not be negative, is {stage.relay.inline_bytes}"
        if stage.relay is not None and stage.relay.settings:
            name = stage.relay.backend or config.relay_backend
            first, known = settings.setdefault(name, (path, stage.relay.settings))
            if known != stage.relay.settings:
                yield f"{path}.relay.settings: the relay {name!r} has others in {first}.relay.settings; make them equal"


def _restart(config: PipelineConfig) -> Iterator[str]:
    if config.retries < 0:
        yield f"retries: must not be negative, is {config.retries}"
    if config.max_in_flight < 1:
        yield f"max_in_flight: must be at least 1, is {config.max_in_flight}"
    if config.request_timeout is not None and not 0 < config.request_timeout < inf:
        yield f"request_timeout: must be greater than 0 and finite, is {config.request_timeout:g}"
    for name in ("limit", "window", "backoff", "backoff_limit"):
        if getattr(config.restart, name) < 0:
            yield f"restart.{name}: must not be negative, is {getattr(config.restart, name):g}"


def _limits(config: PipelineConfig) -> Iterator[str]:
    for name, most in asdict(config.limits).items():
        if most is not None and most < 0:
            yield f"limits.{name}: must not be negative, is {most}"


def _environment(config: PipelineConfig) -> Iterator[str]:
    found = {"env_defaults": config.env_defaults} | {f"{path}.env": stage.env for path, stage in _each_stage(config)}
    for path, variables in found.items():
        for name, value in variables.items():
            if not name or "=" in name or "\0" in name + value:
                yield f"{path}.{name}: no environment variable can have this name or value: {name!r}, {value!r}"


def _launcher(config: PipelineConfig) -> Iterator[str]:
    if config.launcher is None:
        return
    name, afar = config.launcher.name, [stage for stage in config.stages if stage.hosts]
    for key in config.launcher.settings if name == "local" else ():
        yield f"launcher.settings.{key}: the launcher 'local' has no settings"
    if name == "local" and afar:
        yield f"launcher.name: local, but stages[{afar[0].name}].host is {afar[0].host!r}; write hosts"
    if name == "hosts" and not afar:
        yield "launcher.name: hosts, but no stage has a `host`"


_RULES: list[Callable[[PipelineConfig], Iterator[str]]] = [
    *(_unique_names, _known_targets, _parts, _routing, _fan_in, _placement, _process_names),
    *(_hosts, _relays, _fusion, _graph, _restart, _limits, _environment, _launcher),
]
