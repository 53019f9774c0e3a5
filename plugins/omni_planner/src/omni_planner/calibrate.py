"""The calibration: loads a running pipeline, alone and with several requests at once, and makes a profile of what was recorded."""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count as numbers
from itertools import product
from pathlib import Path

from attrs import evolve

from omni_core.client import AsyncPipe
from omni_core.config.placement import plan
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioChunk
from omni_planner.costs import Cost
from omni_planner.profile import CLIENT, TRANSFERS, CacheUse, Edge, Hardware, PipelineProfile, StageProfile, messages_of
from omni_planner.requests import Arrival
from omni_planner.simulate import processor_use
from omni_planner.starts import measured_tick
from omni_planner.threads import Usage, usage
from omni_planner.trace import Observations, Window, admit_after, read
from omni_planner.variation import drift_of

CONCURRENCIES = (2, 4, 8)
"""Requests at once, after each has run alone."""

LOOP, LOOP_SECONDS = 5, 1.0
"""Requests of each client of a closed loop at least, and how long it runs at least: shorter ones have not yet warmed caches."""

RECORDED_LOOP = 3
"""The same of one that is recorded."""

PAUSE = 0.03
"""Seconds between windows, in which late messages of the last one arrive."""

FITS = 3
"""Rounds in which costs of threads are found, each from simulations with the costs of the round before."""

Load = tuple[list[Arrival], int, dict[str, Usage]]
"""The requests of a closed loop, how many ran at once, and what threads used by stage."""

Progress = Callable[[str], None]


async def calibrate(
    pipe: AsyncPipe,
    requests: Mapping[str, Sequence[OmniRequest]],
    concurrencies: Sequence[int] = CONCURRENCIES,
    rounds: int = 3,
    on_progress: Progress = lambda text: None,
    known: Mapping[str, int] | None = None,
) -> PipelineProfile:
    """Measure a running pipeline that serves nothing else meanwhile.

    Args:
        requests: by kind, what to run: each alone in every round, then together.
        concurrencies: requests at once. rounds: repetitions of everything.
        known: by stage, the messages of a request that come before it computes, where the pipeline says it
            (:attr:`omni_torch.placement.work.PipelineWorks.admit_after`); measured where it does not.

    Raises:
        ConfigError: no request is given, or stages share a process, where nothing tells them apart. OmniError: a request
            fails; nothing is measured then.
    """
    check_processes(pipe.config)
    if not any(requests.values()):
        raise ConfigError("there is no request to measure with")
    for given in requests.values():  # what is loaded at the first request, and the caches of what repeats
        for request in given:
            await pipe.submit(request)
    tick = await asyncio.to_thread(measured_tick)
    windows: list[Window] = []
    sound: dict[str, tuple[float, int]] = {}

    async def measured(kind: str, run: Sequence[OmniRequest], count: int) -> None:
        begin = time.monotonic_ns() / 1e3
        for heard in await _loop(pipe, run, count):
            for stage, (seconds, chunks) in heard.items():
                before = sound.get(stage, (0.0, 0))
                sound[stage] = before[0] + seconds, before[1] + chunks
        await asyncio.sleep(PAUSE)
        windows.append(Window(kind, begin, time.monotonic_ns() / 1e3, len(run) == 1))

    await pipe.start_profile()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        try:
            for given in requests.values():
                await _run(pipe, given[0])  # an idle scheduler's turn has begun already, and is not recorded
            await asyncio.sleep(PAUSE)
            for number in range(rounds):
                for kind, given in requests.items():
                    on_progress(f"round {number + 1} of {rounds}: {kind}")
                    for request in given:
                        await measured(kind, [request], 1)
                    for count in (1, *concurrencies):
                        total = max(RECORDED_LOOP * count, len(given))
                        await measured(kind, [given[index % len(given)] for index in range(total)], count)
        finally:
            summary = await pipe.stop_profile(path)
        if summary.dropped:
            raise ConfigError(f"{summary.dropped} events did not fit into the recording; give fewer rounds")
        events = json.loads(path.read_text())["traceEvents"]
    found, samples = read(events, windows)
    hardware = evolve(Hardware.here(), tick=tick)
    profile = PipelineProfile(pipe.config.name or "", hardware, latency=found.latency, messages=found.messages)
    profile.message = found.other_seconds / max(1, found.messages)
    for stage, kind in found.kinds.items():
        profile.stages[stage] = StageProfile(kind)
        if kind == "engine":
            profile.stages[stage].admit_after = (known or {}).get(stage) or admit_after(stage, windows, found)
    for window in windows:
        for turn in found.turns:
            if not window.alone and window.begin <= turn.begin < window.end:  # after a pause, turns find cold caches
                profile.stages[turn.stage].observe(window.kind, turn.counts, turn.seconds)
    set_after_first(profile, windows, found)
    for stage, (seconds, chunks) in sound.items():
        frames = sum(
            turn.counts["frames"]
            for window in windows
            for turn in found.turns
            if turn.stage == stage and "frames" in turn.counts and window.begin <= turn.begin < window.end
        )
        if profile.stages[stage].kind == "function":
            frames = chunks  # of a stage that streams its result, each counts as one
        if frames:
            profile.stages[stage].frame_seconds = seconds / frames
    for window, sample in zip([each for each in windows if each.alone], samples, strict=True):
        profile.kinds.setdefault(window.kind, []).append(sample)
    await _measure_threads(pipe, requests, concurrencies, rounds, profile)
    profile.drift = drift_of(found.turns, windows, profile.stages)  # not before: costs are fitted with simulations
    return profile


def set_after_first(profile: PipelineProfile, windows: Sequence[Window], found: Observations) -> None:
    """Set what share of a turn with one prompt comes after its first chunk, by stage and kind of request."""
    shares: dict[tuple[str, str], list[float]] = defaultdict(list)
    for window, turn in product(windows, found.turns):
        if turn.after_first is not None and turn.counts.get("prompts") == 1 and window.begin <= turn.begin < window.end:
            shares[turn.stage, window.kind].append(turn.after_first)
    for (stage, kind), each in shares.items():
        profile.stages[stage].after_first[kind] = statistics.median(each)


async def _measure_threads(
    pipe: AsyncPipe,
    requests: Mapping[str, Sequence[OmniRequest]],
    concurrencies: Sequence[int],
    rounds: int,
    profile: PipelineProfile,
) -> None:
    """Run closed loops while nothing is recorded, and read how much processor time threads used: one after another, requests find warm
    caches, which those that are recorded alone do not.

    How often a thread woke, and how many requests shared a turn, is taken from simulations of the same requests: the costs are then
    those with which a simulation uses as much as the pipeline. They change what is simulated, so they are found in a few rounds.
    """
    stages = {each.name: each.stages[0].name for each in plan(pipe.config) if not each.rank}
    loads: list[Load] = []
    counters = await _counters(pipe)
    for _ in range(rounds):
        for kind, given in requests.items():
            done = 0
            for count in (1, *concurrencies):
                before = _usages(pipe)
                total = len(await _loop(pipe, _lasting(given, max(LOOP * count, len(given))), count))
                used = {stages.get(name, name): each.since(before[name]) for name, each in _usages(pipe).items()}
                samples = profile.kinds[kind]
                loads.append(([Arrival(None, kind, samples[each % len(given)]) for each in range(total)], count, used))
                await asyncio.sleep(PAUSE)
                done += total
            since, counters = counters, await _counters(pipe)
            for name, stage in profile.stages.items():
                for target, edge in _edges(since.get(name, {}), counters.get(name, {}), done).items():
                    stage.edges.setdefault(kind, {}).setdefault(target, Edge()).add(edge)
    for name, stage in profile.stages.items():
        stage.cache = _cache(counters.get(name, {}))
    for _ in range(FITS):
        _fit_threads(pipe.config, profile, loads)


def _fit_threads(config: PipelineConfig, profile: PipelineProfile, loads: Sequence[Load]) -> None:
    """Choose the costs of messages and the scale of turns with which simulations of loads use what was measured."""
    simulated = [processor_use(config, profile, arrivals, count) for arrivals, count, _ in loads]
    for stage, kind in product((CLIENT, *profile.stages), profile.kinds):
        cost = Cost.over(TRANSFERS)
        measured = expected = 0.0
        for (arrivals, _, used), made in zip(loads, simulated, strict=True):
            share = 1 / len(arrivals)  # loads count the same, whatever the number of their requests
            messages = sum(messages_of(each.sample, stage) for each in arrivals)
            if arrivals[0].kind == kind and messages and stage in used and stage in made:
                cost.observe({"messages": messages * share, "wakes": made[stage][0] * share}, used[stage].loop * share)
                measured, expected = measured + used[stage].others * share, expected + made[stage][1] * share
        if stage == CLIENT:
            profile.client[kind] = cost
        else:
            profile.stages[stage].transfers[kind] = cost
            if measured and expected:
                recorded = profile.stages[stage].recorded
                recorded[kind] = recorded.get(kind, 1.0) * expected / measured


def _lasting(requests: Sequence[OmniRequest], least: int) -> Iterator[OmniRequest]:
    """Return requests in turn, so many at least, and until a loop has lasted long enough."""
    until = time.monotonic() + LOOP_SECONDS
    for number in numbers():
        if number >= least and time.monotonic() >= until:
            return
        yield requests[number % len(requests)]


async def _loop(pipe: AsyncPipe, requests: Iterable[OmniRequest], count: int) -> list[dict[str, tuple[float, int]]]:
    """Run requests, ``count`` at once; return what :func:`_run` says of each."""
    left, heard = iter(requests), list[dict[str, tuple[float, int]]]()

    async def client() -> None:
        for request in left:
            heard.append(await _run(pipe, request))

    await asyncio.gather(*(client() for _ in range(count)))
    return heard


async def _counters(pipe: AsyncPipe) -> dict[str, dict[str, float]]:
    """Return the counters of each stage; of replicas the sum of those of messages, and otherwise those of one of them."""
    found: dict[str, dict[str, float]] = {}
    for stages in (await pipe.statistics()).values():
        for stage, counters in stages.items():
            mine = found.setdefault(stage, {})
            for name, value in counters.items():
                mine[name] = mine.get(name, 0.0) + value if name.startswith("edge.") else value
    return found


def _edges(before: Mapping[str, float], after: Mapping[str, float], requests: int) -> dict[str, Edge]:
    """Return what a stage sent between two readings of its counters, by target."""
    found: dict[str, Edge] = {}
    for name in after:
        if name.startswith("edge.") and name.endswith(".messages"):
            target = name.removeprefix("edge.").removesuffix(".messages")
            messages, nbytes = (
                round(after.get(each, 0.0) - before.get(each, 0.0)) for each in (name, f"edge.{target}.bytes")
            )
            if messages:
                found[target] = Edge(requests, messages, nbytes)
    return found


def _cache(counters: Mapping[str, float]) -> CacheUse | None:
    """Return the KV cache that an engine's counters tell of."""
    names = ("total_blocks", "block_positions", "block_bytes", "peak_blocks")
    return CacheUse(*(int(counters[name]) for name in names)) if all(name in counters for name in names) else None


def _usages(pipe: AsyncPipe) -> dict[str, Usage]:
    """Return the usage of the pipeline's processes on this machine and of this one, as far as the system says it."""
    found = {name: usage(pid) for name, pid in {**pipe.process_ids, CLIENT: os.getpid()}.items()}
    return {name: each for name, each in found.items() if each is not None}


def check_processes(config: PipelineConfig) -> None:
    """Raise a ConfigError if stages share a process, where a trace does not tell their messages apart."""
    shared = next((each.stages for each in plan(config) if len(each.stages) > 1), None)
    if shared is not None:
        names = [stage.name for stage in shared]
        raise ConfigError(
            f"stages {', '.join(names)} share a process; to be measured each needs its own: --set {names[1]}.process={names[1]}"
        )


async def _run(pipe: AsyncPipe, request: OmniRequest) -> dict[str, tuple[float, int]]:
    """Run a request as a client that reads its stream; return the seconds of streamed sound and its chunks, by stage."""
    sound: dict[str, tuple[float, int]] = {}
    async for event in pipe.stream(request):
        if isinstance(event.data, AudioChunk):
            seconds = len(event.data.samples) / event.data.sample_rate
            before = sound.get(event.stage, (0.0, 0))
            sound[event.stage] = before[0] + seconds, before[1] + 1
    return sound
