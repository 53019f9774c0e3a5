"""Requests that the planner's simulator handles in a minute of its own processor time, and what part the runtime's machines take.

    python benchmarks/simulator.py [--quick] [--json FILE] [--load TEXT ...] [--digests FILE]

A pipeline with the stages of the demo, with costs and messages as a calibration of it found them; nothing is started. ``ours`` is requests
in a minute. The rows with ``us`` are microseconds of one request: inside the runtime's own machines (admission, replica choice, batcher
with its cache, vocoder scheduler), and all the rest, which is the simulator's. With ``--digests`` the results of many loads, placements and
failures are written as digests, or compared if the file is there: a change that only makes it faster changes none of them.
"""

from __future__ import annotations

import hashlib
import json
import random
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import click
from attrs import frozen
from report import Row, alone, json_option, publish, quick_option

from omni_core.config.schema import PipelineConfig, RestartConfig, StageConfig
from omni_core.coordinator.replicas import ReplicaChoice
from omni_core.coordinator.request_machine import RequestMachine
from omni_planner.arrivals import Bursts, Gamma, open_loop
from omni_planner.costs import Cost
from omni_planner.failures import Failure
from omni_planner.profile import CLIENT, FEATURES, TRANSFERS, Hardware, PipelineProfile, Sample, StageProfile, Visit
from omni_planner.requests import closed_loop, draw
from omni_planner.simulate import Outcome, simulate
from omni_torch.engine.batching import Batcher
from omni_torch.vocoder.scheduler import VocoderScheduler

MICRO = 1e-6

COSTS: dict[str, tuple[str, dict[str, float], float]] = {
    "preprocessing": ("function", {"turns": 450, "woken": 350}, 0.3),
    "image_encoder": ("function", {"turns": 3000, "woken": 200}, 0.1),
    "audio_encoder": ("function", {"turns": 2000, "woken": 200}, 0.1),
    "mm_aggregate": ("function", {"turns": 30, "woken": 160}, 0.4),
    "thinker": ("engine", {"turns": 800, "decodes": 100, "prompts": 650, "positions": 10, "taken": 50, "woken": 500}, 0.2),
    "decode": ("stream", {"turns": 20, "taken": 15, "woken": 90}, 0.5),
    "talker_ar": ("engine", {"turns": 1600, "decodes": 230, "positions": 78, "taken": 63, "woken": 89}, 0.2),
    "code2wav": ("vocoder", {"turns": 2500, "frames": 900, "taken": 5, "woken": 130}, 0.05),
}  # fmt: skip
"""Of each stage its kind, microseconds by feature, and the relative error of the fit."""

TRANSFER, WAKE = 30, 200
"""Microseconds of a message at each end, and of a thread that wakes for one."""

WORDS, FRAMES = (6, 8, 9, 7), (19, 26, 30, 22)
"""Tokens and frames of the spoken requests."""

DEADLINES = {"policy": "omni_torch.vocoder.deadlines:Deadlines"}


def _cost(features: list[str], seconds: Mapping[str, float], error: float) -> Cost:
    """Return a cost that was fitted from turns with these microseconds."""
    made, generator = Cost.over(features), random.Random(f"{features} {error}")
    for _ in range(200):
        counts = {name: float(generator.randint(0, 8)) for name in features}
        exact = MICRO * sum(seconds.get(name, 0.0) * count for name, count in counts.items())
        made.observe(counts, exact * (generator.gammavariate(1 / error**2, error**2) if error else 1.0))
    return made


@cache
def profile() -> PipelineProfile:
    """Return what a calibration of the demo would."""
    made = PipelineProfile("demo", Hardware("test", 2, system="Linux"), message=150 * MICRO, latency=200 * MICRO)
    transfer = {"messages": TRANSFER, "wakes": WAKE}
    for name, (kind, seconds, error) in COSTS.items():
        stage = made.stages[name] = StageProfile(kind)  # type: ignore[arg-type]
        for each in ("speech", "text", "question"):
            stage.costs[each] = _cost(FEATURES[kind], seconds, error)
            stage.transfers[each] = _cost(TRANSFERS, transfer, 0.0)
    made.stages["talker_ar"].admit_after = 2
    made.stages["code2wav"].frame_seconds = 0.08
    made.client = {each: _cost(TRANSFERS, transfer, 0.0) for each in ("speech", "text", "question")}
    made.starts = dict.fromkeys(COSTS, 2.0)
    for words, frames in zip(WORDS, FRAMES, strict=True):
        made.kinds.setdefault("speech", []).append(_sample(words, frames))
        made.kinds.setdefault("text", []).append(_sample(words, 0))
        made.kinds.setdefault("question", []).append(_sample(words, frames, ["image_encoder", "audio_encoder"]))
    return made


def _sample(words: int, frames: int, encoders: list[str] | None = None) -> Sample:
    encoders = encoders or []
    sample = {
        "preprocessing": Visit([CLIENT], [*encoders, "mm_aggregate"]),
        **{name: Visit(["preprocessing"], ["mm_aggregate"]) for name in encoders},
        "mm_aggregate": Visit(["preprocessing", *encoders], ["thinker"]),
        "thinker": Visit(["mm_aggregate"], ["decode"], {"decode": words}, 12 + 40 * len(encoders), words),
        "decode": Visit(["thinker"], [CLIENT], {CLIENT: words - 1}),
    }
    if frames:
        sample["thinker"].targets.append("talker_ar")
        sample["thinker"].chunks["talker_ar"] = words
        sample["talker_ar"] = Visit(["thinker"], ["code2wav"], {"code2wav": frames - 1}, 18, frames)
        sample["code2wav"] = Visit(["talker_ar"], [CLIENT], {CLIENT: 2})
    return sample


def config(arguments: Mapping[str, Mapping[str, Any]] | None = None, **changes: Any) -> PipelineConfig:
    """Return the demo's stages. ``arguments``: of factories, by stage; ``changes``: ``STAGE__FIELD``."""
    edges = {"preprocessing": ["image_encoder", "audio_encoder", "mm_aggregate"], "mm_aggregate": ["thinker"],
        "image_encoder": ["mm_aggregate"], "audio_encoder": ["mm_aggregate"], "thinker": ["decode", "talker_ar"],
        "talker_ar": ["code2wav"]}  # fmt: skip
    streams = {"thinker": ["decode", "talker_ar"], "talker_ar": ["code2wav"]}
    given = {"code2wav": {"initial_chunk": 4, "chunk": 25, "growth": None}}
    stages = [
        StageConfig(
            name=name,
            factory="omni_core.references:load",
            next=edges.get(name, []),
            stream_to=streams.get(name, []),
            terminal=name in ("decode", "code2wav"),
            factory_args={**given.get(name, {}), **(arguments or {}).get(name, {})},
            **{
                "process": name,
                **{key.partition("__")[2]: each for key, each in changes.items() if key.startswith(f"{name}__")},
            },
        )
        for name in COSTS
    ]
    rest = {key: each for key, each in changes.items() if "__" not in key}
    return PipelineConfig(name="demo", model_path="", stages=stages, **{"max_in_flight": 100_000, **rest})


def line(*names: str) -> tuple[PipelineConfig, PipelineProfile]:
    """Return a pipeline of functions one after another, and a profile of it."""
    made, sample = PipelineProfile("line", Hardware("test", 2, system="Linux")), {}
    stages = []
    for number, name in enumerate(names):
        made.stages[name] = StageProfile("function")
        made.stages[name].cost("text").observe({"turns": 1.0, "requests": 1.0}, 0.01)
        sample[name] = Visit([[CLIENT, *names][number]], [[*names, CLIENT][number + 1]])
        stages.append(
            StageConfig(
                name=name,
                factory="omni_core.references:load",
                process=name,
                next=[*names[number + 1 : number + 2]],
                terminal=name == names[-1],
            )
        )
    made.kinds["text"] = [sample]
    return PipelineConfig(name="line", model_path="", stages=stages, max_in_flight=100_000), made


@frozen
class Load:
    """A load, as ``total -> outcome``, and how many requests of it are simulated."""

    name: str
    run: Callable[[int], Outcome]
    total: int


def _open(
    mix: Mapping[str, float], rate: float, made: PipelineConfig | None = None, pattern: Any = None, **options: Any
) -> Callable[[int], Outcome]:
    def run(total: int) -> Outcome:
        measured = profile()
        arrivals = open_loop(draw(measured.kinds, mix, 1), rate, total / rate, 1, pattern)
        return simulate(made or config(), measured, arrivals, **options)

    return run


def _closed(
    mix: Mapping[str, float], in_flight: int, made: PipelineConfig | None = None, **options: Any
) -> Callable[[int], Outcome]:
    def run(total: int) -> Outcome:
        measured = profile()
        arrivals = closed_loop(draw(measured.kinds, mix, 1), total)
        return simulate(made or config(), measured, arrivals, in_flight=in_flight, **options)

    return run


def _line(*names: str) -> Callable[[int], Outcome]:
    def run(total: int) -> Outcome:
        made, measured = line(*names)
        return simulate(made, measured, open_loop(draw(measured.kinds, {"text": 1.0}, 1), 70.0, total / 70.0, 1))

    return run


SPEECH, TEXT, MIXED = {"speech": 1.0}, {"text": 1.0}, {"speech": 2.0, "text": 1.0, "question": 1.0}

LOADS = [
    Load("speech, 12 a second at random", _open(SPEECH, 12.0), 1500),
    Load("speech, 8 at once", _closed(SPEECH, 8), 1500),
    Load("speech, 32 at once", _closed(SPEECH, 32), 1500),
    Load("speech, 64 processors, 100 a second, 8 talkers", _open(SPEECH, 100.0, config(talker_ar__replicas=8, thinker__replicas=4,
        code2wav__replicas=8), cores=64), 1500),
    Load("text, 100 a second at random", _open(TEXT, 100.0), 6000),
    Load("three functions", _line("a", "b", "c"), 20_000),
    Load("one function", _line("a"), 40_000),
]  # fmt: skip
"""Loads that are timed."""


def _estimated(total: int) -> Outcome:
    from omni_planner.devices import ACCELERATORS, Rates
    from omni_planner.estimate import Device, estimate
    from omni_torch.placement.work import Ask, DecoderWork, PassWork, PipelineWorks, StageWork

    decoder = DecoderWork(layers=2, hidden_size=64, shared=5_000_000, head=0, cached=256, heads=64)
    works = PipelineWorks(
        stages={"thinker": decoder, "talker_ar": decoder, "code2wav": PassWork(1000, 1e9)},
        visits=lambda ask: {
            **{name: StageWork(0) for name in ("preprocessing", "mm_aggregate", "decode")},
            "thinker": StageWork(ask.text, ask.reply),
            "talker_ar": StageWork(ask.text, int(12.5 * ask.speech)),
            "code2wav": StageWork(int(12.5 * ask.speech)),
        },
        kinds={"decode": "stream"},
        vocoders={"code2wav": 0.08},
        admit_after={"talker_ar": 2},
    )
    made = config(thinker__gpu=0, talker_ar__gpu=1, code2wav__gpu=1, code2wav__replicas=2, retries=1)
    kinds = {"speech": Ask(text=200, reply=20, speech=3.0)}
    measured = estimate(made, Device(ACCELERATORS["h100"], Rates(start=2.0, spread=0.0)), kinds, works)
    arrivals = closed_loop(draw(measured.kinds, {"speech": 1.0}, 1), total)
    failures = [Failure(0.4, "thinker"), Failure(2.9, "code2wav.1"), Failure(6.0, "talker_ar")]
    return simulate(made, measured, arrivals, in_flight=30, pause=1.0, failures=failures)


_DEATHS = [Failure(second, name) for second, name in ((1.0, "preprocessing"), (3.0, "thinker"), (3.1, "preprocessing"), (6.0, "code2wav"),
    (6.5, "thinker"), (10.0, "mm_aggregate"), (12.0, "preprocessing"), (12.5, "decode"))]  # fmt: skip

CHECKED = [
    *LOADS,
    Load("mixed, bursts", _open(MIXED, 8.0, pattern=Bursts(2.0, 4.0)), 300),
    Load("mixed, gamma, 8 processors", _open(MIXED, 20.0, pattern=Gamma(3.0), cores=8), 300),
    Load("mixed in one process", _closed(MIXED, 6, config(**{f"{name}__process": "all" for name in COSTS})), 200),
    Load("talker and vocoder in one process", _closed(MIXED, 6, config(talker_ar__process="s", code2wav__process="s")), 200),
    Load("replicas by load", _closed(MIXED, 24, config(code2wav__replicas=2, thinker__replicas=3, thinker__balance="least_busy",
        talker_ar__replicas=2, talker_ar__balance="cost"), cores=6), 300),
    Load("deadlines", _closed(MIXED, 24, config({"thinker": DEADLINES, "talker_ar": DEADLINES, "code2wav": DEADLINES})), 300),
    Load("deadlines at random", _open(SPEECH, 14.0, config({"thinker": DEADLINES, "talker_ar": DEADLINES,
        "code2wav": {**DEADLINES, "max_running": 3}})), 300),
    Load("small caches", _closed(MIXED, 32, config({"thinker": {"kv_blocks": 14, "block_size": 8, "chunk_size": 16, "patience": 4},
        "talker_ar": {"kv_blocks": 20, "block_size": 4, "max_running": 6, "max_batch_tokens": 24}, "code2wav": {"max_running": 2}})), 300),
    Load("refusals", _open(MIXED, 40.0, config(max_in_flight=12)), 400),
    Load("timeouts", _open(MIXED, 30.0, config(request_timeout=0.5)), 400),
    Load("conversations", _closed(SPEECH, 40, pause=1.0), 300),
    Load("deaths", _open(MIXED, 12.0, failures=_DEATHS), 300),
    Load("deaths with retries", _open(MIXED, 45.0, config(retries=2, talker_ar__replicas=2),
        failures=[*_DEATHS, Failure(5.0, "talker_ar.1")]), 300),
    Load("deaths in a closed loop", _closed(MIXED, 24, config(retries=1, restart=RestartConfig(limit=2)), failures=_DEATHS), 300),
    Load("a lost host", _open(MIXED, 60.0, config(retries=1, talker_ar__host="b", code2wav__host="b"),
        failures=[Failure(2.0, "b", is_host=True, away=3.0)]), 300),
    Load("estimate with deaths", _estimated, 120),
]  # fmt: skip
"""Loads whose results are compared."""


def digest(outcome: Outcome) -> str:
    """Return a digest of all that a simulation has found, to the last bit."""
    found: list[Any] = [
        outcome.seconds,
        outcome.busy,
        outcome.stages,
        outcome.devices,
        outcome.messages,
        outcome.deaths,
    ]
    found.append(outcome.processes)
    for each in outcome.flights:
        found.append((each.name, each.arrived, each.ended, each.refused, each.failed, each.attempts))
        found.append((dict(each.placement), each.events, each.sound))
    return hashlib.sha256(repr(found).encode()).hexdigest()[:16]


MACHINES: list[tuple[type, tuple[str, ...]]] = [
    (RequestMachine, ("submit", "result", "next_timer", "clock", "attempt")),
    (ReplicaChoice, ("place", "left")),
    (Batcher, ("plan", "computed", "add", "remove")),
    (VocoderScheduler, ("turn",)),
]


@contextmanager
def counted() -> Iterator[dict[str, list[float]]]:
    """Count the calls of the runtime's machines and their seconds, without those of counting."""
    found: dict[str, list[float]] = {}
    clock, originals = time.perf_counter, []

    def wrapped(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
        entry = found.setdefault(name, [0.0, 0.0])

        def call(*args: Any, **kwargs: Any) -> Any:
            begin = clock()
            made = original(*args, **kwargs)
            entry[1] += clock() - begin
            entry[0] += 1
            return made

        return call

    empty = wrapped("nothing", lambda: None)
    for _ in range(100_000):
        empty()
    calls, seconds = found.pop("nothing")
    for owner, names in MACHINES:
        for name in names:
            originals.append((owner, name, getattr(owner, name)))
            setattr(owner, name, wrapped(f"{owner.__name__}.{name}", getattr(owner, name)))
    try:
        yield found
    finally:
        for owner, name, original in originals:
            setattr(owner, name, original)
        for entry in found.values():
            entry[1] -= entry[0] * seconds / calls


def timed(load: Load, rounds: int, total: int) -> list[Row]:
    """Return the rows of a load."""
    load.run(20)
    seconds = []
    for _ in range(rounds):
        begin = time.process_time()
        load.run(total)
        seconds.append(time.process_time() - begin)
    rows = [alone(f"{load.name}: requests a minute", "1/min", [60.0 * total / each for each in seconds])]
    with counted() as found:
        load.run(total)
    inside = sum(seconds for _, seconds in found.values())
    rows.append(alone("  in the runtime's machines, of a request", "us", [inside / total / MICRO]))
    rows.append(alone("  in the simulator, of a request", "us", [(min(seconds) - inside) / total / MICRO]))
    for name, (calls, each) in found.items():
        if calls:
            rows.append(alone(f"    {name}, {calls / total:.1f} calls", "us", [each / total / MICRO]))
    return rows


@click.command()
@quick_option
@json_option
@click.option("--load", "names", multiple=True, help="Only loads with this in their names; may be repeated.")
@click.option(
    "--digests",
    "path",
    type=click.Path(path_type=Path, dir_okay=False),
    help="Compare results with those of the file; or write it, if it is not there.",
)
def main(quick: bool, json_path: Path | None, names: tuple[str, ...], path: Path | None) -> None:
    """Requests a minute of processor time of the simulator."""

    def wanted(load: Load) -> bool:
        return not names or any(name in load.name for name in names)

    if path is not None:
        found = {each.name: digest(each.run(min(300, each.total))) for each in CHECKED if wanted(each)}
        if not path.exists():
            path.write_text(json.dumps(found, indent=1) + "\n")
        before = json.loads(path.read_text())
        others = [name for name, each in found.items() if before.get(name) != each]
        for name in others:
            click.echo(f"other results: {name}")
        click.echo(f"{len(found) - len(others)} of {len(found)} loads with the same results")
        raise SystemExit(bool(others))
    rows = [
        row for each in LOADS if wanted(each) for row in timed(each, 1 if quick else 3, each.total // (1 + 3 * quick))
    ]
    publish(rows, json_path)


if __name__ == "__main__":
    main()
