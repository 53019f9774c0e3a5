"""Predict what the demo does in several placements and loads, then run it: first text, first sound, completion, throughput.

    python benchmarks/planner.py [--quick] [--json FILE] [--profile FILE] [--variant TEXT ...] [--checkpoint mid|DIR] [--explain]

One calibration in the demo's own placement; each variant is run, and simulated from it. ``ours`` is the prediction, ``other`` what was
measured; the ratio is the smaller of the two over the larger, so that 1 is exact. Needs a machine that does nothing else: a run beside
which other programs used more than 5 % of the processors is repeated, and of five the one with the least is taken; rows say how much.
Virtual machines become slower and faster by the minute, which says nothing of a prediction: a fixed piece of work is timed with the
calibration and around each run, and what was predicted is multiplied by how much longer it takes, which the rows say, too. A run between
two timings that differ by more than 5 % is repeated like a disturbed one.
With ``--profile`` the calibration is kept in a file, so that variants can be run a few at a time. ``--explain`` adds the processor time of
each process for a request, measured and simulated, which tells costs that are wrong from waits that are.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
from attrs import evolve, field, frozen
from report import Row, json_option, publish, quick_option

import omni_core
from omni_core.client import AsyncPipe
from omni_core.client.messages import chat_request
from omni_core.protocol.messages import OmniRequest
from omni_planner.calibrate import CONCURRENCIES, calibrate
from omni_planner.profile import CLIENT, PipelineProfile
from omni_planner.requests import Arrival, draw
from omni_planner.simulate import simulate, summarise
from omni_planner.summary import Events, Summary
from omni_planner.threads import Usage, usage

TEXTS = ("What is your name?", "Say hello.", "Who are you?", "How are you?")


@frozen
class Variant:
    """A placement and a load: settings of the config, requests by kind, requests at once."""

    name: str
    settings: dict[str, object]
    kind: str
    in_flight: int
    total: int


@frozen
class Model:
    """A checkpoint, and variants and requests of its runs.

    Attributes:
        pipeline: its name. options: of :func:`omni_core.open_async`. parameters: of requests, by stage.
        concurrencies, rounds: of the calibration.
    """

    pipeline: str
    variants: Sequence[Variant]
    options: dict[str, Any] = field(factory=dict)
    parameters: dict[str, dict[str, Any]] = field(factory=dict)
    concurrencies: Sequence[int] = CONCURRENCIES
    rounds: int = 3


SPEAKERS_SHARE = {"talker_ar.process": "speech", "code2wav.process": "speech"}
SEEDS: dict[str, dict[str, Any]] = {"thinker": {"seed": 1}, "talker": {"seed": 1}}
"""Requests are answered in the same length whenever they run."""

DEMO = Model(
    "demo",
    [
        Variant("eight processes, speech, 1", {}, "speech", 1, 60),
        Variant("eight processes, speech, 4", {}, "speech", 4, 120),
        Variant("eight processes, speech, 16", {}, "speech", 16, 160),
        Variant("eight processes, text, 1", {}, "text", 1, 400),
        Variant("eight processes, text, 8", {}, "text", 8, 1600),
        Variant("two vocoders, speech, 8", {"code2wav.replicas": 2}, "speech", 8, 160),
        Variant("talker and vocoder in one process, speech, 2", SPEAKERS_SHARE, "speech", 2, 80),
        Variant("eight processes, speech, 2", {}, "speech", 2, 80),
        Variant("eight processes, text and speech in turn, 4", {}, "mixed", 4, 200),
    ],
    parameters=SEEDS,
)


def checkpoint_of(folder: str) -> Model:
    """Return what is run of a checkpoint: few and short requests, because its steps take tens of milliseconds."""
    variants = [
        Variant("checkpoint, speech, 1", {}, "speech", 1, 6),
        Variant("checkpoint, speech, 4", {}, "speech", 4, 16),
        Variant("checkpoint, text, 1", {}, "text", 1, 12),
        Variant("checkpoint, text, 4", {}, "text", 4, 32),
        Variant("checkpoint, text and speech in turn, 4", {}, "mixed", 4, 20),
        Variant("checkpoint, talker and vocoder in one process, speech, 2", SPEAKERS_SHARE, "speech", 2, 10),
    ]
    parameters = {
        "thinker": {"max_new_tokens": 24, "ignore_eos": True, "seed": 1},
        "talker": {"max_new_tokens": 24, "seed": 1},
    }
    return Model("qwen3-omni", variants, {"model": folder}, parameters, (2, 4), 1)


PIECE = """
import statistics
import time
import numpy as np

matrix, source = np.ones((96, 96), np.float32), np.ones(1 << 20, np.float32)
target = np.empty_like(source)

def piece():
    found = {}
    for number in range(1500):
        found[number % 97] = [number, str(number)]
    for _ in range(12):
        matrix @ matrix
    np.copyto(target, source)

seconds = []
end = time.perf_counter() + 1.2
while time.perf_counter() < end:
    begin = time.process_time()
    piece()
    seconds.append(time.process_time() - begin)
print(statistics.median(seconds))
"""
"""Python, products and copies, about 0.5 ms of them."""

MOST_OTHERS, RUNS = 0.05, 5
"""The share of the processors that other programs may use beside a run, or by which the machine's pace may change, and how often a run is
repeated in the hope of that."""


@frozen
class Measured:
    """One run.

    Attributes:
        summary: its figures. others: the share of the processors that other programs used beside it.
        pace: of the machine around it, see :func:`pace`. unsteady: by how much of it that changed meanwhile.
        seconds: processor seconds of each process, its first thread and the others.
    """

    summary: Summary
    others: float
    pace: float
    unsteady: float
    seconds: dict[str, tuple[float, float]]


def pace() -> float:
    """Return the processor seconds of :data:`PIECE` while every processor does it, the median of a second."""
    threads = dict.fromkeys(("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    command = [sys.executable, "-c", PIECE]
    workers = [
        subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **threads})
        for _ in os.sched_getaffinity(0)
    ]
    return statistics.mean(float(each.communicate()[0]) for each in workers)


async def measured(pipe: AsyncPipe, requests: Sequence[OmniRequest], in_flight: int, total: int) -> Summary:
    """Run a closed loop."""
    numbers, found = iter(range(total)), list[Events]()

    async def client() -> None:
        for number in numbers:
            begin = time.perf_counter()
            found.append(
                [
                    (time.perf_counter() - begin, event.stage, event.final)
                    async for event in pipe.stream(requests[number % len(requests)])
                ]
            )

    begin = time.perf_counter()
    await asyncio.gather(*(client() for _ in range(in_flight)))
    return Summary.of(found, time.perf_counter() - begin)


def rows_of(name: str, predicted: Summary, found: Summary, slower: float) -> list[Row]:
    """Return a row for each figure, of a prediction for a machine that is ``slower`` than it was."""
    pairs = [("requests per second", "1/s", predicted.per_second / slower, found.per_second)]
    for stage, what in (("decode", "first text"), ("code2wav", "first sound")):
        if stage in found.first:
            for share in ("p50", "p95"):
                here, there = getattr(predicted.first[stage], share), getattr(found.first[stage], share)
                pairs.append((f"{what} {share}", "ms", slower * here * 1e3, there * 1e3))
    assert predicted.done is not None
    assert found.done is not None
    for share in ("p50", "p95"):
        here, there = getattr(predicted.done, share), getattr(found.done, share)
        pairs.append((f"completion {share}", "ms", slower * here * 1e3, there * 1e3))
    return [
        Row(f"{name}: {what}", unit, ours, other, "measured", min(ours, other) / max(ours, other))
        for what, unit, ours, other in pairs
    ]


def explained(name: str, total: int, used: dict[str, tuple[float, float]], found: Measured) -> list[Row]:
    """Return rows with the processor milliseconds of each process for a request, of its first thread and of the others."""
    rows = []
    for process, both in sorted(found.seconds.items()):
        for what, ours, other in zip(("messages", "turns"), used.get(process, (0.0, 0.0)), both, strict=True):
            rows.append(
                Row(f"  {name}: {process}, {what}", "ms", 1e3 * ours / total, 1e3 * other / total, "measured", None)
            )
    return rows


def disturbed(run: Measured) -> float:
    """Return by how much a run was disturbed: by other programs, or by a machine that became slower or faster."""
    return max(run.others, run.unsteady)


def _processors() -> tuple[float, float]:
    """Return the seconds that programs have used the processors since the start of the machine, and all seconds of them."""
    ticks = [int(each) for each in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
    return (sum(ticks[:3]) + ticks[5] + ticks[6]) / 100, sum(ticks) / 100


def _usages(pipe: AsyncPipe) -> dict[str, Usage]:
    found = {name: usage(pid) for name, pid in {**pipe.process_ids, CLIENT: os.getpid()}.items()}
    return {name: each for name, each in found.items() if each is not None}


async def measured_alone(pipe: AsyncPipe, requests: Sequence[OmniRequest], variant: Variant) -> Measured:
    """Run a closed loop, again while other programs disturb it; return the least disturbed run."""
    runs: list[Measured] = []
    while not runs or (min(map(disturbed, runs)) > MOST_OTHERS and len(runs) < RUNS):
        paces = [await asyncio.to_thread(pace)]
        await measured(pipe, requests, variant.in_flight, 2 * variant.in_flight)  # caches are warm again
        (used, passed), before = _processors(), _usages(pipe)
        found = await measured(pipe, requests, variant.in_flight, variant.total)
        own = {name: each.since(before[name]) for name, each in _usages(pipe).items()}
        now_used, now_passed = _processors()
        others = now_used - used - sum(each.loop + each.others for each in own.values())
        seconds = {name: (each.loop, each.others) for name, each in own.items()}
        paces.append(await asyncio.to_thread(pace))
        others = max(0.0, others / max(1e-9, now_passed - passed))
        mean = statistics.mean(paces)
        runs.append(Measured(found, others, mean, abs(paces[1] - paces[0]) / mean, seconds))
    return min(runs, key=disturbed)


def arrivals_of(profile: PipelineProfile, kind: str, total: int) -> list[Arrival]:
    """Return the load of a variant."""
    kinds = ("speech", "text") if kind == "mixed" else (kind,)
    drawn = [draw(profile.kinds, {each: 1.0}, seed=1) for each in kinds]
    return [Arrival(None, *next(drawn[number % len(drawn)])) for number in range(total)]


async def asked(pipe: AsyncPipe, model: Model) -> dict[str, list[OmniRequest]]:
    """Return the requests by kind."""
    requests: dict[str, list[OmniRequest]] = {
        "speech": [await chat_request(pipe.interface, pipe.media, text) for text in TEXTS],
        "text": [await chat_request(pipe.interface, pipe.media, text, modalities=["text"]) for text in TEXTS],
    }
    for kind, given in requests.items():
        for request in given:
            for stage, parameters in model.parameters.items():
                if kind == "speech" or stage == "thinker":
                    request.params[stage] = parameters
    return requests


async def calibrated(model: Model, path: Path | None, quick: bool) -> tuple[PipelineProfile, float]:
    """Return the profile and the pace of the machine when it was made, from the file and another one beside it if they are there."""
    beside = None if path is None else path.with_suffix(".pace")
    if path is not None and beside is not None and path.exists():
        if not beside.exists():
            raise click.BadParameter(
                f"{beside} is not there, which has the machine's pace; remove {path} to calibrate again",
                param_hint="--profile",
            )
        return PipelineProfile.load(path), float(beside.read_text())
    paces = [pace()]
    async with omni_core.open_async(model.pipeline, **model.options) as pipe:
        profile: PipelineProfile = await calibrate(
            pipe, await asked(pipe, model), model.concurrencies, rounds=1 if quick else model.rounds
        )
    paces.append(pace())
    if path is not None and beside is not None:
        profile.save(path)
        beside.write_text(f"{statistics.mean(paces)}\n")
    return profile, statistics.mean(paces)


async def run(
    model: Model, names: Sequence[str], profile_path: Path | None, *, quick: bool, explain: bool
) -> list[Row]:
    """Calibrate, then predict and run variants."""
    variants = [each for each in model.variants if not names or any(name in each.name for name in names)]
    profile, usual = await calibrated(model, profile_path, quick)
    rows: list[Row] = []
    explanations: list[Row] = []
    for variant in variants[:2] if quick else variants:
        async with omni_core.open_async(model.pipeline, **model.options, set=variant.settings) as pipe:
            requests = await asked(pipe, model)
            requests["mixed"] = [
                each for pair in zip(requests["speech"], requests["text"], strict=True) for each in pair
            ]
            for request in requests[variant.kind]:
                await pipe.submit(request)
            found = await measured_alone(pipe, requests[variant.kind], variant)
            config = evolve(pipe.config)
        arrivals = arrivals_of(profile, variant.kind, variant.total)
        outcome = simulate(config, profile, arrivals, in_flight=variant.in_flight)
        slower = found.pace / usual
        name = f"{variant.name} (others {found.others:.0%}, machine {slower:.2f})"
        rows += rows_of(name, summarise(outcome), found.summary, slower)
        explanations += explained(variant.name, variant.total, outcome.processes, found)
    errors = [1 - row.ratio for row in rows if row.ratio is not None]
    rows += explanations if explain else []
    rows.append(Row("median error of all", "%", 100 * statistics.median(errors), None, "", None))
    rows.append(Row("within 15 %", "%", 100 * sum(each <= 0.15 for each in errors) / len(errors), None, "", None))
    rows.append(Row("largest error", "%", 100 * max(errors), None, "", None))
    return rows


@click.command()
@quick_option
@json_option
@click.option(
    "--profile",
    "profile_path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="The calibration: written if the file is not there, else read; the machine's pace is beside it.",
)
@click.option("--variant", "names", multiple=True, help="Only variants with this in their names; may be repeated.")
@click.option("--checkpoint", help="A folder of a Qwen3-Omni checkpoint, or `mid`: a random one of middle size.")
@click.option("--explain", is_flag=True, help="Also compare the processor time of each process.")
def main(
    quick: bool,
    json_path: Path | None,
    profile_path: Path | None,
    names: tuple[str, ...],
    checkpoint: str | None,
    explain: bool,
) -> None:
    """Beside what was measured."""
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint == "mid":
            from omni_qwen3.tiny_checkpoint import write_tiny_checkpoint

            checkpoint = str(write_tiny_checkpoint(Path(folder) / "mid", shape="mid"))
        model = DEMO if checkpoint is None else checkpoint_of(checkpoint)
        if not any(name in each.name for each in model.variants for name in names or [""]):
            raise click.BadParameter(
                f"there are {', '.join(each.name for each in model.variants)}", param_hint="--variant"
            )
        rows = asyncio.run(run(model, names, profile_path, quick=quick, explain=explain))
    publish(rows, json_path)


if __name__ == "__main__":
    main()
