"""Predict what the demo does in several placements and loads, then run it: first text, first sound, completion, throughput.

    python benchmarks/planner.py [--quick] [--json FILE] [--rounds N] [--keep DIR] [--variant TEXT ...] [--checkpoint mid|DIR] [--explain]
    python benchmarks/planner.py --again DIR [--json FILE] [--variant TEXT ...] [--explain]

Calibrations, all in the demo's own placement, and variants in turn: virtual machines become slower and faster within minutes, which says
nothing of a prediction, so each variant is simulated from the calibrations before and after its run. Rows say by how much those two differ
in what they predict (the later one's requests per second over the earlier one's). ``ours`` is the prediction, ``other`` what was measured;
the ratio is the smaller of the two over the larger, so that 1 is exact. Needs a machine that does nothing else: a run beside which other
programs used more than 5 % of the processors is repeated, and of five the one with the least is taken; rows say how much. So is a run whose
two calibrations differ by more than 10 %: of four the one with the least difference is taken. Each run is made twice, and what is measured
are the figures of all requests of both; the last rows say by how much the second differs from the first, each alone. All variants are
run in three rounds, and of a variant's predictions and of what was measured the medians of rounds count.
``--keep`` keeps every run with its calibrations, and ``--again`` predicts them with what is installed now and measures nothing, so that
two versions of the simulator are compared on the same runs. ``--explain`` adds the processor time of each process for a request, measured
and simulated, which tells costs that are wrong from waits that are.
"""

from __future__ import annotations

import asyncio
import json
import operator
import os
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any

import click
from attrs import asdict, evolve, field, frozen
from report import Row, json_option, publish, quick_option

import omni_core
from omni_core.client import AsyncPipe
from omni_core.client.messages import chat_request
from omni_core.config.loading import structure, unstructure
from omni_core.config.schema import PipelineConfig
from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest
from omni_planner.calibrate import CONCURRENCIES, calibrate
from omni_planner.profile import CLIENT, PipelineProfile
from omni_planner.requests import Arrival, draw
from omni_planner.simulate import simulate, summarise
from omni_planner.simulation import Outcome
from omni_planner.summary import Events, Summary
from omni_planner.threads import Usage, usage
from omni_qwen3.works import works

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
        concurrencies: of a calibration.
    """

    pipeline: str
    variants: Sequence[Variant]
    options: dict[str, Any] = field(factory=dict)
    parameters: dict[str, dict[str, Any]] = field(factory=dict)
    concurrencies: Sequence[int] = CONCURRENCIES


SPEAKERS_SHARE = {"talker_ar.process": "speech", "code2wav.process": "speech"}
SEEDS: dict[str, dict[str, Any]] = {"thinker": {"seed": 1}, "talker": {"seed": 1}}
"""Requests are answered in the same length whenever they run."""

DEMO = Model(
    "demo",
    [
        Variant("eight processes, speech, 1", {}, "speech", 1, 180),
        Variant("eight processes, speech, 4", {}, "speech", 4, 360),
        Variant("eight processes, speech, 16", {}, "speech", 16, 480),
        Variant("eight processes, text, 1", {}, "text", 1, 1200),
        Variant("eight processes, text, 8", {}, "text", 8, 4800),
        Variant("two vocoders, speech, 8", {"code2wav.replicas": 2}, "speech", 8, 480),
        Variant("talker and vocoder in one process, speech, 2", SPEAKERS_SHARE, "speech", 2, 240),
        Variant("eight processes, speech, 2", {}, "speech", 2, 240),
        Variant("eight processes, text and speech in turn, 4", {}, "mixed", 4, 600),
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
        Variant("checkpoint, two vocoders, speech, 4", {"code2wav.replicas": 2}, "speech", 4, 16),
        Variant("checkpoint, speech, 8", {}, "speech", 8, 24),
    ]
    parameters = {
        "thinker": {"max_new_tokens": 24, "ignore_eos": True, "seed": 1},
        "talker": {"max_new_tokens": 24, "seed": 1},
    }
    return Model("qwen3-omni", variants, {"model": folder}, parameters, (2, 4))


MOST_OTHERS, RUNS = 0.05, 5
"""The share of the processors that other programs may use beside a run, and how often it is repeated in the hope of that."""

MOST_CHANGED, TRIES = 0.1, 4
"""By how much the calibrations around a run may differ, and how often it is repeated in the hope of that."""


@frozen
class Measured:
    """One run.

    Attributes:
        events: of its requests. took: seconds. others: the share of the processors that other programs used beside it.
        seconds: processor seconds of each process, its first thread and the others.
    """

    events: list[Events]
    took: float
    others: float
    seconds: dict[str, tuple[float, float]]


def figures(*runs: Measured) -> Summary:
    """Return the figures of all requests of some runs."""
    return Summary.of([each for run in runs for each in run.events], sum(run.took for run in runs))


async def measured(
    pipe: AsyncPipe, requests: Sequence[OmniRequest], in_flight: int, total: int
) -> tuple[list[Events], float]:
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
    return found, time.perf_counter() - begin


def values_of(summary: Summary) -> dict[str, float]:
    """Return each figure: requests per second, and milliseconds."""
    found = {"requests per second": summary.per_second}
    for stage, what in (("decode", "first text"), ("code2wav", "first sound")):
        if stage in summary.first:
            for share in ("p50", "p95"):
                found[f"{what} {share}"] = getattr(summary.first[stage], share) * 1e3
    assert summary.done is not None
    for share in ("p50", "p95"):
        found[f"completion {share}"] = getattr(summary.done, share) * 1e3
    return found


def rows_of(name: str, predicted: Sequence[Summary], found: Sequence[Summary]) -> list[Row]:
    """Return a row for each figure: the medians of rounds."""
    rows = []
    here, there = [values_of(each) for each in predicted], [values_of(each) for each in found]
    for what in there[0]:
        ours, other = (statistics.median(each[what] for each in side) for side in (here, there))
        unit = "1/s" if what == "requests per second" else "ms"
        rows.append(Row(f"{name}: {what}", unit, ours, other, "measured", min(ours, other) / max(ours, other)))
    return rows


def explained(name: str, total: int, used: dict[str, tuple[float, float]], found: Measured) -> list[Row]:
    """Return rows with the processor milliseconds of each process for a request, of its first thread and of the others."""
    rows = []
    for process, both in sorted(found.seconds.items()):
        for what, ours, other in zip(("messages", "turns"), used.get(process, (0.0, 0.0)), both, strict=True):
            rows.append(
                Row(f"  {name}: {process}, {what}", "ms", 1e3 * ours / total, 1e3 * other / total, "measured", None)
            )
    return rows


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
    while not runs or (min(run.others for run in runs) > MOST_OTHERS and len(runs) < RUNS):
        await measured(pipe, requests, variant.in_flight, 2 * variant.in_flight)  # caches are warm again
        (used, passed), before = _processors(), _usages(pipe)
        events, took = await measured(pipe, requests, variant.in_flight, variant.total)
        own = {name: each.since(before[name]) for name, each in _usages(pipe).items()}
        now_used, now_passed = _processors()
        others = now_used - used - sum(each.loop + each.others for each in own.values())
        seconds = {name: (each.loop, each.others) for name, each in own.items()}
        runs.append(Measured(events, took, max(0.0, others / max(1e-9, now_passed - passed)), seconds))
    return min(runs, key=operator.attrgetter("others"))


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


async def measured_in(pipe: AsyncPipe, model: Model, variant: Variant) -> list[Measured]:
    """Run a variant twice in a pipeline that is placed for it."""
    requests = await asked(pipe, model)
    requests["mixed"] = [each for pair in zip(requests["speech"], requests["text"], strict=True) for each in pair]
    for request in requests[variant.kind]:
        await pipe.submit(request)
    return [await measured_alone(pipe, requests[variant.kind], variant) for _ in range(2)]


@frozen
class Run:
    """One run of a variant between two calibrations.

    Attributes:
        found, again: what was measured, twice. config: of the pipeline. profile: both calibrations.
        changed: the requests per second predicted from the later calibration over those from the earlier one.
    """

    variant: Variant
    found: Measured
    again: Measured
    config: PipelineConfig
    profile: PipelineProfile
    changed: float = 1.0

    def predicted(self, profile: PipelineProfile | None = None) -> Outcome:
        """Return what is predicted from a calibration, by default from both, for requests that were recorded in both."""
        arrivals = arrivals_of(self.profile, self.variant.kind, self.variant.total)
        return simulate(evolve(self.config), profile or self.profile, arrivals, in_flight=self.variant.in_flight)

    def save(self, folder: Path, name: str) -> None:
        """Write ``NAME.json``, the profile, and ``NAME.run``, the rest."""
        self.profile.save(folder / f"{name}.json")
        kept = {
            "variant": asdict(self.variant),
            "found": asdict(self.found),
            "again": asdict(self.again),
            "config": unstructure(self.config),
            "changed": self.changed,
        }
        (folder / f"{name}.run").write_text(json.dumps(kept) + "\n")

    @classmethod
    def load(cls, path: Path) -> Run:
        """Read a ``NAME.run`` and the profile beside it."""
        kept = json.loads(path.read_text())
        return cls(
            Variant(**kept["variant"]),
            Measured(**kept["found"]),
            Measured(**kept["again"]),
            structure(kept["config"]),
            PipelineProfile.load(path.with_suffix(".json")),
            kept["changed"],
        )


Runs = dict[str, list[Run]]
"""The runs of each variant, by its name, one for each round."""


def kept_in(folder: Path, names: Sequence[str]) -> Runs:
    """Return the runs that were kept in a folder, of the variants with one of ``names`` in theirs.

    Raises:
        click.BadParameter: one cannot be read.
    """
    made: Runs = {}
    for path in sorted(folder.glob("*.run"), key=lambda path: [each.zfill(9) for each in path.stem.split("-")]):
        try:
            each = Run.load(path)
        except (OSError, ValueError, LookupError, TypeError, ConfigError) as error:
            raise click.BadParameter(f"{path} and the profile beside it: {error}", param_hint="--again") from None
        if any(name in each.variant.name for name in names or [""]):
            made.setdefault(each.variant.name, []).append(each)
    return made


async def run(model: Model, variants: Sequence[Variant], folder: Path | None, *, rounds: int, quick: bool) -> Runs:
    """Calibrate and run variants. ``folder``: for what is kept."""
    async with omni_core.open_async(model.pipeline, **model.options) as usual:

        async def calibrated() -> PipelineProfile:
            known = works(usual.config).admit_after
            return await calibrate(usual, await asked(usual, model), model.concurrencies, rounds=1, known=known)

        async def between(before: PipelineProfile, variant: Variant) -> tuple[Run, PipelineProfile]:
            """Run a variant after a calibration; return that, and the one that follows."""
            if variant.settings:
                async with omni_core.open_async(model.pipeline, **model.options, set=variant.settings) as pipe:
                    twice, config = await measured_in(pipe, model, variant), pipe.config
            else:
                twice, config = await measured_in(usual, model, variant), usual.config
            after = before if quick else await calibrated()
            around = deepcopy(before)
            if not quick:
                around.merge(after)
            made = Run(variant, *twice, config, around)
            rates = [summarise(made.predicted(each)).per_second for each in (before, after)]
            return evolve(made, changed=rates[1] / rates[0]), after

        if quick:
            variants, rounds = [evolve(each, total=max(1, each.total // 6)) for each in variants[:2]], 1
        made: Runs = {variant.name: [] for variant in variants}
        last = await calibrated()
        for number in range(rounds):
            for variant in variants:
                tries: list[Run] = []
                while not tries or (min(map(unsteady, tries)) > MOST_CHANGED and len(tries) < TRIES):
                    each, last = await between(last, variant)
                    tries.append(each)
                made[variant.name].append(min(tries, key=unsteady))
                if folder is not None:
                    place = [each.name for each in model.variants].index(variant.name)
                    made[variant.name][-1].save(folder, f"{place + 1}-{number + 1}")
    return made


def compared(made: Runs, *, explain: bool) -> Iterator[Row]:
    """Predict runs; yield rows beside what was measured."""
    rows: list[Row] = []
    repeated: list[Row] = []
    explanations: list[Row] = []
    for variant, each_round in made.items():
        outcomes = [each.predicted() for each in each_round]
        others = max(max(each.found.others, each.again.others) for each in each_round)
        changed = " ".join(f"{each.changed:.2f}" for each in each_round)
        name = f"{variant} (others {others:.0%}, machine {changed})"
        found = [figures(each.found, each.again) for each in each_round]
        rows += rows_of(name, [summarise(each) for each in outcomes], found)
        for each in each_round:
            repeated += rows_of(name, [figures(each.again)], [figures(each.found)])
        first = each_round[0]
        explanations += explained(variant, first.variant.total, outcomes[0].processes, first.found)
    yield from rows
    if explain:
        yield from explanations
    yield from errors_of("predictions", rows)
    yield from errors_of("a second run", repeated)


def errors_of(what: str, rows: Sequence[Row]) -> list[Row]:
    """Return how far rows are from what was measured."""
    errors = [1 - row.ratio for row in rows if row.ratio is not None]
    within = 100 * sum(each <= 0.15 for each in errors) / len(errors)
    return [
        Row(f"{what}: median error", "%", 100 * statistics.median(errors), None, "", None),
        Row(f"{what}: within 15 %", "%", within, None, "", None),
        Row(f"{what}: largest error", "%", 100 * max(errors), None, "", None),
    ]


def unsteady(run: Run) -> float:
    """Return by how much the machine changed around a run."""
    return max(run.changed, 1 / run.changed) - 1


@click.command()
@quick_option
@json_option
@click.option(
    "--keep",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="A folder for the runs and their calibrations: VARIANT-ROUND.run and .json, by number.",
)
@click.option(
    "--again",
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    help="Measure nothing: predict the runs of such a folder.",
)
@click.option("--rounds", type=click.IntRange(1), help="Of all variants in turn; medians of them count. By default 3.")
@click.option("--variant", "names", multiple=True, help="Only variants with this in their names; may be repeated.")
@click.option("--checkpoint", help="A folder of a Qwen3-Omni checkpoint, or `mid`: a random one of middle size.")
@click.option("--explain", is_flag=True, help="Also compare the processor time of each process.")
def main(
    quick: bool,
    json_path: Path | None,
    rounds: int | None,
    keep: Path | None,
    again: Path | None,
    names: tuple[str, ...],
    checkpoint: str | None,
    explain: bool,
) -> None:
    """Beside what was measured."""
    if again is not None:
        if quick or rounds or keep or checkpoint:
            raise click.UsageError("--again measures nothing: leave --quick, --rounds, --keep and --checkpoint out")
        made = kept_in(again, names)
        if not made:
            raise click.BadParameter(
                f"{again} has no runs" + f" of {' or '.join(names)}" * bool(names) + "; --keep writes them",
                param_hint="--again",
            )
        publish([*compared(made, explain=explain)], json_path)
        return
    if keep is not None and any(keep.glob("*.run")):
        raise click.BadParameter(f"{keep} has runs already; give an empty folder", param_hint="--keep")
    with tempfile.TemporaryDirectory() as folder:
        if checkpoint == "mid":
            from omni_qwen3.tiny_checkpoint import write_tiny_checkpoint

            checkpoint = str(write_tiny_checkpoint(Path(folder) / "mid", shape="mid"))
        model = DEMO if checkpoint is None else checkpoint_of(checkpoint)
        variants = [each for each in model.variants if any(name in each.name for name in names or [""])]
        if not variants:
            raise click.BadParameter(
                f"there are {', '.join(each.name for each in model.variants)}", param_hint="--variant"
            )
        made = asyncio.run(run(model, variants, keep, rounds=rounds or 3, quick=quick))
    publish([*compared(made, explain=explain)], json_path)


if __name__ == "__main__":
    main()
