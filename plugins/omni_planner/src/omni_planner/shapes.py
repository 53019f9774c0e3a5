"""Shapes: ways to spread the stages of a pipeline over GPUs, ranked by what the busiest GPU would have to do, without a simulation."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from statistics import fmean
from typing import Any

from attrs import evolve, frozen

from omni_core.api import PipelineConfig
from omni_planner.estimate import Costing, Estimate, Kind, Sample
from omni_torch.placement.work import Counts
from omni_torch.vocoder.passes import next_chunk

BATCH = 32
"""Requests that are taken to compute together, in the ranking."""

RANKS = (1, 2, 4, 8)


@frozen
class Shape:
    """Blocks of stages with the GPUs of each. ``work``: share of the time that the busiest GPU computes, above 1 if it cannot keep up."""

    settings: Mapping[str, Any]
    text: str
    work: float


def demands(estimate: Estimate, config: PipelineConfig, mix: Mapping[str, float], ranks: int = 1) -> dict[str, float]:
    """Return the seconds of one GPU that a request takes on average, by stage, with :data:`BATCH` requests at once."""
    total = sum(mix.values())
    found: dict[str, float] = {}
    for stage in config.stages:
        known = estimate.stages[stage.name]
        if known.work is None:
            continue
        costing = known.costing(evolve(stage, tp_size=ranks))
        found[stage.name] = sum(
            weight
            / total
            * fmean(_request(stage.name, known.kind, costing, each, config) for each in estimate.kinds[kind])
            for kind, weight in mix.items()
        )
    return {name: seconds for name, seconds in found.items() if seconds}


def _request(name: str, kind: Kind, costing: Costing, sample: Sample, config: PipelineConfig) -> float:
    visit = sample.get(name)
    if visit is None:
        return 0.0
    if kind == "engine":
        length = visit.prompt + visit.outputs / 2
        prompt = costing(Counts(prompts=1, positions=visit.prompt, pairs=visit.prompt**2 / 2), 1, 0)
        step = costing(Counts(decodes=BATCH, context=BATCH * length, pairs=BATCH * length), 1, 0)
        return sum(prompt) + visit.outputs * sum(step) / BATCH
    if kind == "vocoder":
        settings, done, seconds = config.stage(name).factory_args, 0, 0.0
        sizes = int(settings.get("initial_chunk", 4)), int(settings.get("chunk", 24)), settings.get("growth", 1.0)
        while done < visit.prompt:
            frames = min(next_chunk(done, *sizes), visit.prompt - done)
            seconds += sum(costing(Counts(decodes=4, positions=4 * frames), 1, 0)) / 4
            done += frames
        return seconds
    return sum(costing(Counts(prompts=1, positions=visit.prompt, pairs=visit.prompt**2), visit.outputs or 1, 0))


def shapes(
    estimate: Estimate, config: PipelineConfig, mix: Mapping[str, float], per_second: float, gpus: int
) -> list[Shape]:
    """Return shapes for so many GPUs of one host that can keep up, the least busy first."""
    by_ranks = {ranks: demands(estimate, config, mix, ranks) for ranks in RANKS if ranks <= gpus}
    order = sorted(by_ranks[1], key=lambda name: -by_ranks[1][name])
    idle = [each.name for each in config.stages if each.gpu is not None and each.name not in order]
    idle = [name for name in idle if estimate.stages[name].work is not None]
    found: dict[str, Shape] = {}
    for blocks in _partitions(order):
        blocks = [*blocks[:-1], [*blocks[-1], *idle]]
        for counts in _compositions(gpus, len(blocks)):
            choices = [
                ranks_of(estimate, names[0], count) if names else [1]
                for names, count in zip(blocks, counts, strict=True)
            ]
            for ranks in product(*choices):
                shape = _shape(blocks, counts, ranks, by_ranks, per_second)
                found.setdefault(shape.text, shape)
    if gpus > 1:
        for split in ranks_of(estimate, order[0], gpus):
            shape = _beside([*order, *idle], gpus, split, by_ranks, per_second)
            found.setdefault(shape.text, shape)
    return sorted(found.values(), key=lambda each: each.work)


def ranks_of(estimate: Estimate, stage: str, gpus: int) -> list[int]:
    """Return the numbers of ranks that a stage may have on so many GPUs; one, if its pipeline does not say that others can share it."""
    return [each for each in RANKS if gpus % each == 0 and each in estimate.stages[stage].ranks]


def _beside(
    names: Sequence[str], gpus: int, ranks: int, by_ranks: Mapping[int, Mapping[str, float]], per_second: float
) -> Shape:
    """Return the shape with the heaviest stage on all GPUs and each of the others on one of them, in turn."""
    heaviest, *others = names
    settings: dict[str, Any] = {
        f"{heaviest}.gpu": list(range(gpus)),
        f"{heaviest}.tp_size": ranks,
        f"{heaviest}.replicas": gpus // ranks,
        f"{heaviest}.balance": "least_busy" if gpus > ranks else "turns",
    }
    busy = [by_ranks[ranks].get(heaviest, 0.0) * per_second * ranks / gpus] * gpus
    for number, name in enumerate(others):
        settings |= {f"{name}.gpu": number % gpus, f"{name}.tp_size": 1, f"{name}.replicas": 1}
        busy[number % gpus] += by_ranks[1].get(name, 0.0) * per_second
    split = f" (tp {ranks})" if ranks > 1 else ""
    return Shape(settings, f"{heaviest}{split} on {gpus}, beside it one {', '.join(others)} each", max(busy))


def _partitions(order: Sequence[str]) -> Iterator[list[list[str]]]:
    """Yield ways to put stages together: all, the heaviest apart, the two heaviest apart, those and the rest each apart."""
    yield [list(order)]
    for cut in range(1, len(order)):
        yield [list(order[:cut]), list(order[cut:])]
        for other in range(cut + 1, len(order)):
            yield [list(order[:cut]), list(order[cut:other]), list(order[other:])]


def _compositions(total: int, parts: int) -> Iterator[list[int]]:
    if parts == 1:
        yield [total]
        return
    for first in range(1, total - parts + 2):
        for rest in _compositions(total - first, parts - 1):
            yield [first, *rest]


def _shape(
    blocks: Sequence[Sequence[str]],
    counts: Sequence[int],
    ranks: Sequence[int],
    by_ranks: Mapping[int, Mapping[str, float]],
    per_second: float,
) -> Shape:
    """Return a shape whose blocks have so many GPUs, and their first stages, the heaviest, so many ranks."""
    settings: dict[str, Any] = {}
    texts, work, begin = list[str](), 0.0, 0
    for names, count, split in zip(blocks, counts, ranks, strict=True):
        gpus, busy = list(range(begin, begin + count)), 0.0
        begin += count
        for position, name in enumerate(names):
            each = split if position == 0 else 1
            settings |= {
                f"{name}.gpu": gpus if count > 1 else gpus[0],
                f"{name}.tp_size": each,
                f"{name}.replicas": count // each,
                f"{name}.balance": "least_busy" if count // each > 1 else "turns",
            }
            busy += by_ranks[each].get(name, 0.0) * per_second * each / count
        shown = [f"{name} (tp {split})" if name == names[0] and split > 1 else name for name in names]
        texts.append(f"{' + '.join(shown)} on {count}")
        work = max(work, busy)
    return Shape(settings, "; ".join(texts), work)
