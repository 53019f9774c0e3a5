"""The measured profile of a pipeline: what turns of its stages cost, what its messages cost, and what its requests do in it."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import cattrs
from attrs import define, evolve, field, frozen

from omni_core.config.schema import StageConfig
from omni_core.errors import ConfigError
from omni_planner.costs import Cost
from omni_planner.machine import TICK

VERSION = 5

READ = (3, 4, VERSION)
"""Versions that can be read. The third has no edges and no caches, and none before the fifth says how the machine's speed varied and
when the first chunk of a prompt's answer left.
"""

Kind = Literal["function", "engine", "vocoder", "stream"]

FEATURES: dict[Kind, list[str]] = {
    "function": ["turns", "requests", "woken"],
    "engine": ["turns", "decodes", "prompts", "positions", "taken", "woken"],
    "vocoder": ["turns", "streams", "frames", "taken", "woken"],
    "stream": ["turns", "taken", "woken"],
}
"""The counts that describe a turn of each kind of stage. ``turns`` is 1 if it computed anything, ``woken`` if its thread had waited."""

WAIT = 200e-6
"""Seconds without a message after which a stage's thread counts as one that has waited (``woken``): others used its processor meanwhile."""

LEAST_MESSAGE = 1e-6
"""Processor seconds of a message at least: also one that costs next to nothing wakes a thread."""

ROOTS: dict[Kind, dict[str, str]] = {"engine": {"root_decodes": "decodes", "root_positions": "positions"}}
"""Features that are the square root of a count: ten positions do not cost ten times one, because most of a step is the reading of
weights, of a mixture of experts those of the experts that any position chose."""

TRANSFERS = ["messages", "wakes"]
"""The counts that describe the work of a process's first thread."""

CLIENT = "client"

Seconds = tuple[float, float]
"""Seconds of a turn: of a processor, then of the device."""

MORE_COUNTS: dict[Kind, list[str]] = {
    "function": ["positions", "pairs", "passes"],
    "engine": ["context", "pairs"],
    "vocoder": [],
    "stream": [],
}
"""Further counts of a turn that estimates use: an engine's cached positions that are read (``context``), and over all positions those that
each attends to (``pairs``); passes over the positions of a function's requests."""

Costing = Callable[[str, Sequence[float]], Seconds]
"""The seconds of a turn, from the kind of its request and from what it did: counts in the order of :data:`FEATURES` and then
:data:`MORE_COUNTS` of the stage's kind. The last ones may be left out where they are 0."""


def counts_of(kind: Kind, **counts: float) -> list[float]:
    """Return counts of a turn in the order in which a :data:`Costing` takes them."""
    return [counts.get(name, 0.0) for name in (*FEATURES[kind], *MORE_COUNTS[kind])]


def features_of(kind: Kind) -> list[str]:
    """Return all features of the cost of a turn."""
    return [*FEATURES[kind], *ROOTS.get(kind, ())]


def observed(kind: Kind, counts: Mapping[str, float]) -> dict[str, float]:
    """Return the features of a turn with these counts."""
    return {**counts, **{root: math.sqrt(counts.get(name, 0.0)) for root, name in ROOTS.get(kind, {}).items()}}


@frozen
class Hardware:
    """The machine of a profile: predictions hold for another one of the same kind only.

    Attributes:
        tick: seconds between two looks of its system's scheduler at a running thread. system: as :func:`platform.system` names it.
    """

    processor: str
    cores: int
    tick: float = field(default=TICK, eq=False)
    system: str = field(default="", eq=False)

    @classmethod
    def here(cls) -> Hardware:
        """Describe this machine, as far as this process may use it."""
        name = platform.processor() or platform.machine()
        try:
            lines = Path("/proc/cpuinfo").read_text().splitlines()
            name = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), name)
        except OSError:
            pass
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        return cls(name, cores, system=platform.system())


@define
class Edge:
    """The messages from a stage to another one: totals of so many requests. ``nbytes``: as they are sent, payloads and chunks."""

    requests: int = 0
    messages: int = 0
    nbytes: int = 0

    def add(self, other: Edge) -> None:
        """Add what another run sent."""
        self.requests += other.requests
        self.messages += other.messages
        self.nbytes += other.nbytes


@frozen
class CacheUse:
    """The KV cache of an engine where it was measured.

    Attributes:
        blocks: that it has. positions, nbytes: of one block, in all layers. peak: the most blocks in use at once.
    """

    blocks: int
    positions: int
    nbytes: int
    peak: int

    def settings(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Return the ``kv_blocks`` of a stage with these ``factory_args``; nothing where they say it."""
        if given.get("kv_blocks"):
            return {}
        positions = int(given.get("block_size") or self.positions)
        megabytes = given.get("kv_cache_mb")
        if megabytes:
            return {"kv_blocks": max(1, int(megabytes) * 2**20 // (self.nbytes * positions // self.positions))}
        return {"kv_blocks": max(1, self.blocks * self.positions // positions)}


@define
class StageProfile:
    """The costs of a stage's turns.

    Attributes:
        kind: by what rule its scheduler makes turns. costs: by kind of request.
        admit_after: of an engine, the messages of a request that come before it computes; more than one where it is fed by a stream.
        frame_seconds: of a vocoder, the sound of a frame; of a function that streams sound, of a position, or of a chunk where positions
            are not known. transfers: by kind of request, the costs of the thread that sends and
            receives for it, where they were measured. recorded: by how much turns cost more while they are recorded, by kind.
        edges: by kind of request and by target, what was sent. cache: of an engine, if it tells.
        after_first: by kind of request, of an engine's turns that compute one prompt, the share of their time after the first chunk left.
    """

    kind: Kind
    costs: dict[str, Cost] = field(factory=dict)
    admit_after: int = 1
    frame_seconds: float = 0.0
    transfers: dict[str, Cost] = field(factory=dict)
    recorded: dict[str, float] = field(factory=dict)
    edges: dict[str, dict[str, Edge]] = field(factory=dict)
    cache: CacheUse | None = None
    after_first: dict[str, float] = field(factory=dict)

    def cost(self, request_kind: str) -> Cost:
        """Return the cost of turns for a kind of request, new if it is the first."""
        if request_kind not in self.costs:
            self.costs[request_kind] = Cost.over(features_of(self.kind))
        return self.costs[request_kind]

    def observe(self, request_kind: str, counts: Mapping[str, float], seconds: float) -> None:
        """Add a turn to the costs."""
        self.cost(request_kind).observe(observed(self.kind, counts), seconds)

    def add(self, name: str, other: StageProfile) -> None:
        """Add what another run measured of this stage, which is called ``name``.

        Raises:
            ConfigError: it was of another kind there.
        """
        if self.kind != other.kind:
            raise ConfigError(f"stage {name!r} is of kind {self.kind} in one profile and {other.kind} in the other")
        for ours, others in ((self.recorded, other.recorded), (self.after_first, other.after_first)):
            for key, share in others.items():  # as many turns as each has seen
                mine, theirs = (each.costs[key].turns if key in each.costs else 0 for each in (self, other))
                before = ours.get(key, share)
                ours[key] = (before * mine + share * theirs) / (mine + theirs) if mine + theirs else before
        _add(self.costs, other.costs)
        _add(self.transfers, other.transfers)
        for kind, edges in other.edges.items():
            for target, edge in edges.items():
                self.edges.setdefault(kind, {}).setdefault(target, Edge()).add(edge)
        self.admit_after = min(self.admit_after, other.admit_after)
        self.frame_seconds = self.frame_seconds or other.frame_seconds
        if self.cache is not None and other.cache is not None:
            self.cache = evolve(other.cache, peak=max(self.cache.peak, other.cache.peak))
        else:
            self.cache = self.cache or other.cache

    def costing(self, stage: StageConfig) -> Costing:
        """Return what turns cost where the stage is configured like this."""
        plain, roots = FEATURES[self.kind], ROOTS.get(self.kind, {})
        places = {root: plain.index(name) for root, name in roots.items()}
        coefficients: dict[str, tuple[list[float], list[tuple[int, float]]]] = {}
        for kind, cost in self.costs.items():
            found, recorded = cost.coefficients(), self.recorded.get(kind, 1.0)
            linear = [found.get(name, 0.0) / recorded for name in plain]
            curved = [(place, found[root] / recorded) for root, place in places.items() if found.get(root)]
            coefficients[kind] = linear, curved
        usual = next(iter(coefficients.values()), ([], []))

        def seconds(kind: str, counts: Sequence[float]) -> Seconds:
            linear, curved = coefficients.get(kind, usual)
            found = 0.0
            for each, count in zip(linear, counts):  # noqa: B905 - estimates count more
                found += each * count
            for place, each in curved:
                found += each * math.sqrt(counts[place])
            return found, 0.0

        return seconds

    def settings(self, stage: StageConfig) -> dict[str, Any]:
        """Return what the profile knows of a stage's settings and its config does not say."""
        return {} if self.cache is None else self.cache.settings(stage.factory_args)


@define
class Visit:
    """The visit of one request to one stage.

    Attributes:
        sources: the stages that sent it a payload or a stream (:data:`CLIENT`: the client did).
        targets: the stages that got its result. chunks: chunks of its stream, by target (:data:`CLIENT`: to the client).
        prompt: prompt positions that an engine computed; of estimates, those of a function, too. outputs: tokens that an engine made.
    """

    sources: list[str] = field(factory=list)
    targets: list[str] = field(factory=list)
    chunks: dict[str, int] = field(factory=dict)
    prompt: int = 0
    outputs: int = 0


Sample = dict[str, Visit]
"""One request: its visits, by stage."""


def messages_of(sample: Sample, stage: str) -> int:
    """Return the messages that a stage (or :data:`CLIENT`) sends and receives for a request."""
    count = 0
    for name, visit in sample.items():
        sent = sum((target == stage) + (name == stage) for target in visit.targets)
        chunks = sum(number * ((target == stage) + (name == stage)) for target, number in visit.chunks.items())
        asked = (CLIENT in visit.sources) * ((name == stage) + (stage == CLIENT))
        count += sent + chunks + asked
    return count


@define
class PipelineProfile:
    """All of it, as the file has it.

    Attributes:
        stages: by name. message: processor seconds of a process for one message that it sends or receives, beside its turns.
        client: by kind of request, the costs of the thread that sends and receives in the client's process.
        starts: processor seconds from the start of a stage's process until it serves, where they were measured.
        latency: seconds from the end of a send to the begin of its receipt, on idle processors.
        drift: the relative standard deviation of the machine's speed, of pieces of 0.1 s; taken for that of seconds.
        kinds: the requests that were measured alone, by kind, to draw simulated ones from.
    """

    pipeline: str
    hardware: Hardware
    stages: dict[str, StageProfile] = field(factory=dict)
    message: float = 0.0
    latency: float = 0.0
    messages: int = 0
    kinds: dict[str, list[Sample]] = field(factory=dict)
    version: int = VERSION
    client: dict[str, Cost] = field(factory=dict)
    starts: dict[str, float] = field(factory=dict)
    drift: float = 0.0

    is_estimate = False
    """True if nothing was measured."""

    def delay(self, stage: str, flight: Sample, is_payload: bool) -> float:
        """Return the seconds of a message of a stage between its two ends."""
        return self.latency

    def transfer(self, stage: str, kind: str) -> tuple[float, float]:
        """Return the processor seconds of a message at a stage (or :data:`CLIENT`), and those of its thread when it wakes for one."""
        measured = self.stages.get(stage)
        costs = self.client if stage == CLIENT else measured.transfers if measured is not None else {}
        cost = costs.get(kind)
        if cost is None or not cost.turns:
            return self.message, 0.0
        found = cost.coefficients()
        return max(found["messages"], LEAST_MESSAGE), found["wakes"]

    def start_seconds(self, stages: Sequence[str]) -> float:
        """Return the processor seconds of the start of a process with these stages.

        Raises:
            ConfigError: no start of one of them was measured.
        """
        missing = [name for name in stages if name not in self.starts]
        if missing:
            raise ConfigError(
                f"the profile does not say how long {', '.join(missing)} takes to start, so failures cannot be simulated; measure it: "
                "omni calibrate --restarts"
            )
        return max(self.starts[name] for name in stages)

    def merge(self, other: PipelineProfile) -> None:
        """Add what another run measured.

        Raises:
            ConfigError: it is of another pipeline, machine or kind of stage.
        """
        if (self.pipeline, self.hardware) != (other.pipeline, other.hardware):
            raise ConfigError(
                f"profiles of {self.pipeline!r} on {self.hardware} and of {other.pipeline!r} on {other.hardware} cannot be merged"
            )
        for name, stage in other.stages.items():
            mine = self.stages.setdefault(
                name, evolve(stage, costs={}, transfers={}, recorded={}, edges={}, after_first={})
            )
            mine.add(name, stage)
        both = self.messages + other.messages
        if both:
            self.message = (self.message * self.messages + other.message * other.messages) / both
            self.latency = (self.latency * self.messages + other.latency * other.messages) / both
            known = [each for each in (self, other) if each.drift]  # it was not measured in files of before
            weight = max(1, sum(each.messages for each in known))
            self.drift = math.sqrt(sum(each.drift**2 * each.messages for each in known) / weight)
        self.messages = both
        self.starts.update(other.starts)
        _add(self.client, other.client)
        for kind, samples in other.kinds.items():
            self.kinds.setdefault(kind, []).extend(samples)

    def save(self, path: Path) -> None:
        """Write the file."""
        path.write_text(json.dumps(_CONVERTER.unstructure(self), indent=1) + "\n")

    @classmethod
    def load(cls, path: Path) -> PipelineProfile:
        """Read a file.

        Raises:
            ConfigError: it is no profile, or of another version.
        """
        try:
            document: Any = json.loads(path.read_text())
            version = document.get("version")
            if version not in READ:
                raise ConfigError(
                    f"{path}: version {version!r} of a profile; this omni-planner reads {READ[0]} to {VERSION} (calibrate again: "
                    "omni calibrate PIPELINE --out FILE)"
                )
            return _CONVERTER.structure({**document, "version": VERSION}, cls)
        except ConfigError:
            raise
        except OSError as error:
            raise ConfigError(f"{path}: {error.strerror}") from error
        except Exception as error:
            reasons = "; ".join(cattrs.transform_error(error, "the file"))
            raise ConfigError(f"{path}: is no profile of omni-planner: {reasons}") from error


def _add(costs: dict[str, Cost], others: Mapping[str, Cost]) -> None:
    for key, cost in others.items():
        costs.setdefault(key, Cost.over(cost.features)).merge(cost)


_CONVERTER = cattrs.Converter(forbid_extra_keys=True)
