"""Random pipelines, of one to five stages with routes, fan-in, streams, groups and replicas, and plans of what requests do there."""

from __future__ import annotations

from random import Random
from typing import Any

from attrs import define, field

from omni_core.api import ProcessSpec
from omni_core.runtime_api import RelaySpec, StageSpec, UnitSpec
from omni_testing.world.stages import NAMES, Plan

_HERE = "omni_testing.world.stages"
RUN = "omni://world"


@define
class Pipeline:
    """A pipeline: its stages in order, the stages of each process group, and how many replicas each group has."""

    stages: list[StageSpec]
    groups: list[list[StageSpec]]
    replicas: list[int]
    sources: dict[str, list[str]] = field(factory=dict)

    @property
    def terminals(self) -> list[str]:
        return [stage.name for stage in self.stages if stage.terminal]

    @property
    def has_routes(self) -> bool:
        return any(stage.route_fn for stage in self.stages)

    def __str__(self) -> str:
        def shown(stage: StageSpec) -> str:
            targets = ",".join(name + "*" * (name in stage.stream_to) for name in stage.next)
            return f"{stage.name}->{'?' * bool(stage.route_fn)}{targets or 'client'}"

        groups = zip(self.groups, self.replicas, strict=True)
        return "  ".join(f"[{' '.join(map(shown, stages))}]x{count}" for stages, count in groups)

    def units(self, slots: int) -> list[UnitSpec]:
        """Return the units; ``slots``: of the relay of each process."""
        endpoints: dict[str, dict[int, str]] = {stage.name: {} for stage in self.stages}
        named: list[tuple[str, int, int, list[StageSpec]]] = []
        for number, (stages, count) in enumerate(zip(self.groups, self.replicas, strict=True)):
            for replica in range(count):
                name = f"p{number}.{replica}"
                named.append((name, number, replica, stages))
                for stage in stages:
                    endpoints[stage.name][replica] = f"{RUN}/{name}"
        peers = {f"{RUN}/{name}": "pool" for name, *_ in named}
        return [
            UnitSpec(
                name=name,
                group=f"p{number}",
                replica=replica,
                slot=replica,
                startup_timeout=5.0,
                processes=[
                    ProcessSpec(
                        name=name,
                        stages=stages,
                        endpoint=f"{RUN}/{name}",
                        coordinator_endpoint=RUN,
                        stage_endpoints=endpoints,
                        relays={"pool": RelaySpec("omni_testing.world.pool:Pool", {"settings": {"slots": slots}})},
                        relay_towards=peers,
                        relay_across=peers,
                        inline_bytes=64,
                    )
                ],
            )
            for name, number, replica, stages in named
        ]


def pipeline(random: Random) -> Pipeline:
    """Return a pipeline."""
    names = NAMES[: random.choice((1, 2, 2, 3, 3, 4, 5))]
    sources: dict[str, list[str]] = {names[0]: []}
    for number, name in enumerate(names[1:], 1):
        count = random.choice((1, 1, 2)) if number > 1 else 1
        sources[name] = sorted(random.sample(names[:number], count))
    targets = {name: [other for other in names if name in sources[other]] for name in names}
    chosen = {name for name in names if len(targets[name]) > 1 and random.random() < 0.6}
    streams = {(source, name) for name in names for source in sources[name] if random.random() < 0.5}
    stages = []
    for name in names:
        stream_to = [other for other in targets[name] if (name, other) in streams]
        several = len(sources[name]) > 1
        compute_timeout = random.choice((None, None, 1.0, 5.0))
        stages.append(
            StageSpec(
                name=name,
                factory=f"{_HERE}:Compute",
                factory_args={"width": random.choice((1, 2, 8)), "pace": random.choice((0.0, 0.0, 0.002))},
                next=targets[name],
                terminal=not targets[name],
                route_fn=f"{_HERE}:route" if name in chosen else None,
                stream_to=stream_to,
                stream_from=[source for source in sources[name] if (source, name) in streams],
                stream_done_to_fn=f"{_HERE}:stream_done_to" if name in chosen and stream_to else None,
                wait_for=sources[name] if several else [],
                wait_for_fn=f"{_HERE}:WAIT_FOR.{name}" if several and chosen else None,
                merge_fn=f"{_HERE}:merge" if several else None,
                compute_timeout=compute_timeout,
                injected={"stage_name": name},
            )
        )
    groups: list[list[StageSpec]] = []
    for stage in stages:
        if groups and random.random() < 0.35:
            groups[-1].append(stage)
        else:
            groups.append([stage])
    return Pipeline(stages, groups, [random.choice((1, 1, 2)) for _ in groups], sources)


def plan(
    random: Random, made: Pipeline, number: int, harm: str = "", long: bool = False, sends: int | None = None
) -> Plan:
    """Return what one request does.

    Args:
        harm: ``kills``, ``fails`` or ``hangs`` in one of its stages.
        long: it has long streams.
        sends: chunks of its input that its client sends, or ``None``: it comes whole.
    """
    routes: dict[str, list[str]] = {}
    reached = [made.stages[0].name]
    for stage in made.stages:
        if stage.name not in reached:
            continue
        routes[stage.name] = stage.next
        if stage.route_fn:
            routes[stage.name] = sorted(random.sample(stage.next, random.randint(1, len(stage.next))))
        reached += [name for name in routes[stage.name] if name not in reached]
    reached.sort()
    specs = {stage.name: stage for stage in made.stages}
    inputs = {name: [source for source in made.sources[name] if name in routes.get(source, ())] for name in reached}
    streams = {name: [source for source in inputs[name] if source in specs[name].stream_from] for name in reached}
    wanted: dict[str, Any] = {
        "chunks": {name: 40 if long else random.choice((0, 0, 1, 3)) for name in reached},
        "seconds": {name: random.choice((0.0, 0.002, 0.02, 0.2)) for name in reached},
        "padding": random.choice((0, 0, 100)),
    }
    where = random.choice(reached)
    if harm == "kills":
        wanted["kills"] = {where: random.choice((1, -9, -11))}
    elif harm == "fails":
        wanted["fails"] = {where: f"no good at {where}"}
    elif harm == "hangs":
        wanted["hangs"] = where
    for name in reached:  # only stages that stream put out chunks
        if not specs[name].terminal and not any(name in streams[target] for target in routes[name]):
            wanted["chunks"][name] = 0
    terminals = [name for name in reached if specs[name].terminal]
    if made.stages[0].stream_from:
        streams[reached[0]] = [""]
        wanted["chunks"][""] = sends or 0
    return Plan(number, routes, reached, inputs, streams, terminals, **wanted)
