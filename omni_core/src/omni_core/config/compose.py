"""Composition: a pipeline made of the stages of others. Pure: configs in, a config out.

``compose({"asr": asr, "llm": llm, "tts": tts}, [Edge("asr", "llm", "my.words:to_prompt"), Edge("llm", "tts", stream=True, keep=True)])``
has the stages ``asr-...``, ``llm-...`` and ``tts-...``. A part is not changed: its functions and schedulers see the names, the request and
the parameters that they would see alone (:mod:`omni_core.stage.parts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import attrs
from attrs import evolve, frozen

from omni_core.config.completion import Machine, Placement
from omni_core.config.joined_interface import Renames, joined_interface
from omni_core.config.schema import PartConfig, PipelineConfig, RelayConfig, RequestDefaults, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, did_you_mean
from omni_core.references import load

T = TypeVar("T")

_OF_THE_WHOLE = (
    "endpoints",
    "restart",
    "retries",
    "request_timeout",
    "server",
    "launcher",
    "admission",
    "hosts",
)
"""Fields of a pipeline that a part cannot have for itself."""

_USUAL = PipelineConfig(model_path="", stages=[])

_EDGES = (
    "name",
    "next",
    "terminal",
    "wait_for",
    "stream_to",
    "chunks_to",
    "project_payload",
    "process",
    "part",
    "affinity_key",
)
"""Fields of a stage that composition changes."""


@frozen
class Edge:
    """A way from a part to another: a result of a terminal stage of ``source`` is the input of a request to ``target``.

    Attributes:
        source: the part, or ``PART.STAGE`` where it has several terminal stages.
        target: the part; its entry stage gets it. Several edges to one part are alternatives: the first result counts. One that is inputs
            without a message (``messages: []``) opens a request whose input an edge with ``stream`` brings.
        project: ``(payload) -> inputs``, what the ``inputs`` of a request to ``target`` would be. By default the result itself.
        stream: the chunks that the stage makes are the target's input, as they come, instead of its result.
        keep: the client gets the results of the source too.
    """

    source: str
    target: str
    project: str | None = None
    stream: bool = False
    keep: bool = False


def compose(parts: Mapping[str, PipelineConfig], edges: Sequence[Edge], **fields: Any) -> PipelineConfig:
    """Return a pipeline of the stages of others. The first part gets the requests.

    Args:
        parts: by name: lower-case letters, digits and ``_``.
        edges: how they are joined. Terminal stages that no edge leaves, or that an edge keeps, answer the client.
        fields: of the composed pipeline, such as ``name``, ``retries`` or ``admission``.

    Raises:
        ConfigError: a name is unknown or wrong, a part has settings that only the whole can have, or the result is not valid.
    """
    if not parts:
        raise ConfigError("compose: there are no parts")
    for name, config in parts.items():
        _check_part(name, config, fields)
    leaving = _leaving(parts, edges)
    first = next(iter(parts))
    visible = {
        name: [stage.name for stage in config.stages if stage.terminal and _is_visible(leaving.get((name, stage.name)))]
        for name, config in parts.items()
    }
    interface, renames = joined_interface(parts, visible)
    stages = [
        _joined(name, stage, config, leaving.get((name, stage.name), []), parts, renames[name])
        for name, config in parts.items()
        for stage in config.stages
    ]
    joined: dict[str, Any] = {
        "model_path": parts[first].model_path,
        "name": "+".join(config.resolved_name for config in parts.values()),
        "entry_stage": whole_name(first, parts[first].resolved_entry_stage),
        "relay_backend": parts[first].relay_backend,
        "limits": parts[first].limits,
        "max_in_flight": min(config.max_in_flight for config in parts.values()),
        "env_defaults": _merged("env_defaults", {name: config.env_defaults for name, config in parts.items()}),
        "fused_stages": [
            [whole_name(name, stage) for stage in fused]
            for name, config in parts.items()
            for fused in config.fused_stages
        ],
        "runtime_overrides": {
            whole_name(name, stage): values
            for name, config in parts.items()
            for stage, values in config.runtime_overrides.items()
        },
        "defaults": _defaults(parts, renames),
        "placement_fn": f"{__name__}:place" if any(config.placement_fn for config in parts.values()) else None,
    }
    made = PipelineConfig(
        **{**joined, **fields},
        stages=stages,
        interface=interface,
        parts={name: _part(config, visible[name], renames[name]) for name, config in parts.items()},
    )
    validate(made)
    return made


def whole_name(part: str, stage: str) -> str:
    """Return the name that a stage of a part has in the composed pipeline."""
    return f"{part}-{stage}"


def _is_visible(edges: Sequence[Edge] | None) -> bool:
    return not edges or any(edge.keep for edge in edges)


def _check_part(name: str, config: PipelineConfig, fields: Mapping[str, Any]) -> None:
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise ConfigError(f"parts[{name}]: a part's name is made of lower-case letters, digits and _")
    if config.parts:
        raise ConfigError(f"parts[{name}]: is composed itself; compose all of its parts at once")
    for field in _OF_THE_WHOLE:
        if field not in fields and getattr(config, field) != getattr(_USUAL, field):
            raise ConfigError(f"parts[{name}].{field}: belongs to the whole pipeline; give it to compose({field}=...)")


def _leaving(parts: Mapping[str, PipelineConfig], edges: Sequence[Edge]) -> dict[tuple[str, str], list[Edge]]:
    """Return the edges by the part and the terminal stage that they leave."""
    found: dict[tuple[str, str], list[Edge]] = {}
    for edge in edges:
        where = f"edge {edge.source} to {edge.target}"
        source, _, stage = edge.source.partition(".")
        for part in (source, edge.target):
            if part not in parts:
                raise ConfigError(f"{where}: no part is called {part!r}{did_you_mean(part, parts)}")
        terminals = parts[source].terminal_stages
        if not stage and len(terminals) != 1:
            raise ConfigError(f"{where}: {source} has several terminal stages; write one as {source}.{terminals[0]}")
        stage = stage or terminals[0]
        if stage not in terminals:
            raise ConfigError(
                f"{where}: {source} has no terminal stage called {stage!r}{did_you_mean(stage, terminals)}"
            )
        interface = parts[edge.target].interface
        if edge.stream and (interface is None or not interface.input_streams):
            raise ConfigError(
                f"{where}: {edge.target} takes no input as a stream (its interface has no `input_streams`)"
            )
        if edge.stream and edge.project:
            raise ConfigError(f"{where}: chunks are not projected; leave out `project`, or `stream`")
        found.setdefault((source, stage), []).append(edge)
    return found


def _joined(
    part: str,
    stage: StageConfig,
    config: PipelineConfig,
    edges: Sequence[Edge],
    parts: Mapping[str, PipelineConfig],
    renames: Renames,
) -> StageConfig:
    """Return a stage of a part as one of the whole."""

    def whole(name: str) -> str:
        return whole_name(part, name)

    entries = {edge.target: whole_name(edge.target, parts[edge.target].resolved_entry_stage) for edge in edges}
    following = [*map(whole, stage.next_stages), *dict.fromkeys(entries.values())]
    projections = {whole(name): function for name, function in stage.project_payload.items()}
    projections |= {entries[edge.target]: edge.project for edge in edges if edge.project}
    streams = [entries[edge.target] for edge in edges if edge.stream]
    key = stage.affinity_key
    return evolve(
        stage,
        name=whole(stage.name),
        part=part,
        process=None if stage.process is None else whole(stage.process),
        next=following or None,
        terminal=stage.terminal and _is_visible(edges),
        wait_for=None if stage.wait_for is None else [whole(name) for name in stage.wait_for],
        stream_to=[*map(whole, stage.stream_to), *streams],
        chunks_to=streams if edges else None if stage.chunks_to is None else [whole(name) for name in stage.chunks_to],
        project_payload=projections,
        relay=_relay(stage, config, next(iter(parts.values())).relay_backend),
        affinity_key=None if key is None else renames.metadata.get(key, key),
    )


def _relay(stage: StageConfig, config: PipelineConfig, usual: str) -> RelayConfig | None:
    """Return the relay settings of a stage in a whole whose ``relay_backend`` is ``usual``."""
    beside = [other.relay for other in config.stages if other.process == stage.process and other.relay is not None]
    if config.relay_backend == usual or (stage.relay is None and beside):  # those of its process say it
        return stage.relay
    relay = stage.relay or RelayConfig()
    return relay if relay.backend is not None else evolve(relay, backend=config.relay_backend)


def _part(config: PipelineConfig, visible: Sequence[str], renames: Renames) -> PartConfig:
    interface = config.interface
    return PartConfig(
        entry=config.resolved_entry_stage,
        model_path=config.model_path,
        fetch_fn=config.fetch_fn,
        placement_fn=config.placement_fn,
        terminal_stages_fn=config.terminal_stages_fn,
        outputs=list(interface.outputs) if interface is not None and visible else [],
        reads_streams=bool(interface is not None and interface.input_streams),
        tool_format=interface.tool_format if interface is not None else None,
        params=renames.params,
        metadata=renames.metadata,
    )


def _defaults(parts: Mapping[str, PipelineConfig], renames: Mapping[str, Renames]) -> RequestDefaults:
    params, metadata = {}, {}
    for name, config in parts.items():
        other = renames[name]
        params[name] = {other.params.get(key, key): value for key, value in config.defaults.params.items()}
        metadata[name] = {other.metadata.get(key, key): value for key, value in config.defaults.metadata.items()}
    return RequestDefaults(_merged("defaults.params", params), _merged("defaults.metadata", metadata))


def _merged(field: str, by_part: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """Return the values of all parts.

    Raises:
        ConfigError: two parts have different ones.
    """
    merged: dict[str, T] = {}
    for part, values in by_part.items():
        for name, value in values.items():
            if merged.setdefault(name, value) != value:
                raise ConfigError(
                    f"parts[{part}].{field}.{name}: is {value!r}, and {merged[name]!r} in another part; make them equal"
                )
    return merged


def place(config: PipelineConfig, machine: Machine) -> Placement:
    """Return a composed pipeline placed by its parts: the ``placement_fn`` of each, called with the part as it is alone."""
    notes: dict[str, str] = {}
    stages = {stage.name: stage for stage in config.stages}
    for part, settings in config.parts.items():
        if settings.placement_fn is None:
            continue
        choose: Callable[[PipelineConfig, Machine], Placement] = load(settings.placement_fn)
        chosen = choose(_alone(config, part, settings), machine)
        notes |= {whole_name(part, name): note for name, note in chosen.notes.items()}
        for stage in chosen.config.stages:
            name = whole_name(part, stage.name)
            values = {
                each.name: getattr(stage, each.name) for each in attrs.fields(StageConfig) if each.name not in _EDGES
            }
            stages[name] = evolve(stages[name], **values)
    parts = {name: evolve(each, placement_fn=None) for name, each in config.parts.items()}
    return Placement(evolve(config, stages=list(stages.values()), parts=parts, placement_fn=None), notes)


def _alone(config: PipelineConfig, part: str, settings: PartConfig) -> PipelineConfig:
    """Return the stages of a part as the pipeline that they were, as far as a placement asks for it."""
    prefix = whole_name(part, "")

    def own(names: Sequence[str]) -> list[str]:
        return [name.removeprefix(prefix) for name in names if name.startswith(prefix)]

    stages = [
        evolve(
            stage,
            name=stage.name.removeprefix(prefix),
            part=None,
            process=None if stage.process is None else stage.process.removeprefix(prefix),
            next=own(stage.next_stages) or None,
            terminal=not own(stage.next_stages),
            wait_for=None if stage.wait_for is None else own(stage.wait_for),
            stream_to=own(stage.stream_to),
            chunks_to=None,
            project_payload={own([name])[0]: each for name, each in stage.project_payload.items() if own([name])},
        )
        for stage in config.stages
        if stage.part == part
    ]
    return PipelineConfig(
        model_path=settings.model_path,
        name=part,
        stages=stages,
        entry_stage=settings.entry,
        relay_backend=config.relay_backend,
        fused_stages=[own(fused) for fused in config.fused_stages if own(fused)],
        env_defaults=config.env_defaults,
        placement_fn=settings.placement_fn,
        launcher=config.launcher,
        hosts=config.hosts,
        endpoints=config.endpoints,
    )
