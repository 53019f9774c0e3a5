"""A trace of ``omni profile`` read as observations: turns with their counts and processor time, messages, and requests."""

from __future__ import annotations

import statistics
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any

from attrs import define, field, frozen

from omni_planner.profile import CLIENT, WAIT, Kind, Sample, Visit

Event = Mapping[str, Any]

_CHUNK = ": chunk"
"""The end of the name of an event of a stage's chunk that is handed over."""


@frozen
class Window:
    """A time in which requests of one kind ran. ``begin``, ``end``: us of the trace's clock. ``alone``: one request, without others."""

    kind: str
    begin: float
    end: float
    alone: bool


@frozen
class Turn:
    """One turn of a stage's scheduler.

    ``begin``: us. ``seconds``: of a processor. ``counts``: what it did, see ``FEATURES`` of :mod:`omni_planner.profile`.
    ``after_first``: the share of its time after its first chunk left, ``None`` if it sent none.
    """

    stage: str
    begin: float
    seconds: float
    counts: dict[str, float]
    after_first: float | None = None


@define
class Observations:
    """The contents of a trace.

    Attributes:
        kinds: of the stages that made turns. turns: in order of time. messages: the ends of transfers in processes of stages.
        other_seconds: processor seconds of those processes beside turns. hops: by the stages that send and receive, seconds from a send's
            begin to its receipt, of requests that ran alone. sends: by the same, seconds of a send.
        receipts: when (us) and by which stage messages were received.
    """

    kinds: dict[str, Kind] = field(factory=dict)
    turns: list[Turn] = field(factory=list)
    messages: int = 0
    other_seconds: float = 0.0
    hops: dict[tuple[str, str], list[float]] = field(factory=lambda: defaultdict(list))
    sends: dict[tuple[str, str], list[float]] = field(factory=lambda: defaultdict(list))
    receipts: list[tuple[float, str]] = field(factory=list)

    @property
    def latency(self) -> float:
        """The seconds of a quick message after a quick send: what waits for a processor takes longer."""
        left = [hop - _quick(self.sends[ends]) for ends, hops in self.hops.items() for hop in hops]
        return max(0.0, _quick(left))


def _quick(seconds: list[float]) -> float:
    """Return the lower quartile; 0 if there are no two values."""
    return statistics.quantiles(seconds, n=4)[0] if len(seconds) > 1 else 0.0


def read(events: Iterable[Event], windows: Iterable[Window]) -> tuple[Observations, list[Sample]]:
    """Return what the events say, and the requests of the windows that had one request alone, in their order."""
    found, windows = Observations(), list(windows)
    raw: list[Event] = []
    sends: dict[str, float] = {}
    hops: list[tuple[float, str, str, str]] = []  # of sends: when, source, target, chunk or payload
    processes: dict[int, float] = defaultdict(float)
    chunks: dict[tuple[int, str], list[float]] = defaultdict(list)
    client: set[int] = set()
    for event in sorted(events, key=lambda each: each.get("ts", 0.0)):
        kind, args = event.get("cat"), event.get("args", {})
        if event.get("name") == "process_name" and args.get("name") == CLIENT:
            client.add(event["pid"])
        elif kind == "turn":
            raw.append(event)
            processes[event["pid"]] -= args["cpu"] / 1e6
        elif kind == "process":
            processes[event["pid"]] += args["cpu"] / 1e6
        elif kind == "transfer":
            found.messages += event["pid"] not in client
            flow = args["flow"]
            if event["name"].startswith("receive"):
                found.receipts.append((event["ts"], flow.rsplit("/", 3)[2]))
                if flow in sends and any(each.alone and each.begin <= event["ts"] < each.end for each in windows):
                    _, source, target, _ = flow.rsplit("/", 3)
                    found.hops[source, target].append((event["ts"] - sends[flow]) / 1e6)
            else:
                sends[flow] = event["ts"]
                _, source, target, what = flow.rsplit("/", 3)
                hops.append((event["ts"], source, target, what))
                found.sends[source, target].append(event.get("dur", 0.0) / 1e6)
        elif event.get("ph") == "n" and str(event.get("name")).endswith(_CHUNK):
            chunks[event["pid"], event["name"].removesuffix(_CHUNK)].append(event["ts"])
    found.other_seconds = sum(max(0.0, seconds) for pid, seconds in processes.items() if pid not in client)
    found.kinds = _kinds(raw)
    ended: dict[str, float] = {}
    for event in raw:
        stage = event["args"]["stage"]
        counts = _counts(found.kinds[stage], event["args"])
        has_waited = event["ts"] - ended.get(stage, 0.0) > 1e6 * WAIT
        ended[stage] = event["ts"] + event["dur"]
        if counts is not None:
            counts["woken"] = float(has_waited)
            sent, later = chunks[event["pid"], stage], None
            first = bisect_left(sent, event["ts"])
            if first < len(sent) and sent[first] < ended[stage]:
                later = (ended[stage] - sent[first]) / event["dur"]
            found.turns.append(Turn(stage, event["ts"], event["args"]["cpu"] / 1e6, counts, later))
    return found, [_sample(window, found, hops) for window in windows if window.alone]


def _kinds(turns: Iterable[Event]) -> dict[str, Kind]:
    """Tell the kind of each stage by the counters that its scheduler has."""
    names: dict[str, set[str]] = defaultdict(set)
    for event in turns:
        names[event["args"]["stage"]].update(event["args"])
    kinds: dict[str, Kind] = {}
    for stage, counted in names.items():
        kinds[stage] = (
            "engine"
            if "tokens" in counted
            else "vocoder"
            if "frames" in counted
            else "function"
            if "steps" in counted
            else "stream"
        )
    return kinds


def _counts(kind: Kind, args: Mapping[str, Any]) -> dict[str, float] | None:
    """Return what a turn did, or ``None`` if its counters do not tell."""

    def get(name: str) -> float:
        return float(args.get(name, 0.0))

    taken = get("taken")
    if kind == "function":
        return {"turns": get("steps"), "requests": get("computed")}
    if kind == "vocoder":
        return {"turns": get("steps"), "streams": get("computed"), "frames": get("frames"), "taken": taken}
    if kind == "stream":
        return {"turns": 1.0, "taken": taken}
    positions = get("prompt_positions") - get("reused_positions")
    decodes = get("positions") - positions
    prompts = get("computed") - decodes
    if decodes < 0 or prompts < 0 or (positions > 0) != (prompts > 0):
        return None  # a prompt computed in several steps
    return {"turns": get("steps"), "decodes": decodes, "prompts": prompts, "positions": positions, "taken": taken}


def _sample(window: Window, found: Observations, hops: list[tuple[float, str, str, str]]) -> Sample:
    """Return what the request of a window did in each stage."""
    visits: dict[str, Visit] = defaultdict(Visit)
    for when, source, target, what in hops:
        if not window.begin <= when < window.end:
            continue
        if target != CLIENT and source not in visits[target].sources:
            visits[target].sources.append(source)
        if source == CLIENT:
            continue
        visit = visits[source]
        if what == "payload":
            visit.targets.append(target)
        else:
            visit.chunks[target] = visit.chunks.get(target, 0) + 1
    for turn in found.turns:
        if window.begin <= turn.begin < window.end and found.kinds[turn.stage] == "engine":
            visit = visits[turn.stage]
            visit.prompt += int(turn.counts["positions"])
            visit.outputs += int(turn.counts["decodes"] + turn.counts["prompts"])
    return dict(visits)


def admit_after(stage: str, windows: Iterable[Window], found: Observations) -> int:
    """Return how many messages of a request an engine takes before it computes for it: the fewest of the requests that
    ran alone, because more of them come before its turn begins where the stage before is fast or the machine is busy."""
    seen = []
    for window in windows:
        if not window.alone:
            continue
        for turn in found.turns:
            if turn.stage == stage and window.begin <= turn.begin < window.end and turn.counts["positions"]:
                seen.append(sum(window.begin <= when <= turn.begin for when, by in found.receipts if by == stage))
                break
    return max(1, min(seen)) if seen else 1
