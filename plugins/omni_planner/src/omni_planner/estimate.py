"""A profile without measurements: what steps cost follows from FLOPs, bytes and rates that are stated. Every result is an estimate."""

from __future__ import annotations

import math
import random
import statistics
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any

from attrs import define, evolve, field, fields, frozen

from omni_core.config.placement import Budget, gib, plan
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, did_you_mean
from omni_planner.devices import Accelerator, Rates
from omni_planner.profile import (
    CLIENT,
    FEATURES,
    MORE_COUNTS,
    Costing,
    Hardware,
    Kind,
    PipelineProfile,
    Sample,
    Seconds,
    StageProfile,
    Visit,
)
from omni_torch.placement.budgets import (
    ITEM_BYTES,
    MAX_BATCH_TOKENS,
    MAX_RUNNING,
    request_values,
    step_bytes,
    weight_bytes,
)
from omni_torch.placement.devices import CONTEXT, MARGIN
from omni_torch.placement.work import Ask, Counts, DecoderWork, Demand, PipelineWorks, StageWork, Work

KINDS = {
    "text": Ask(text=300, reply=200),
    "image": Ask(text=300, pixels=1_000_000, reply=150),
    "audio": Ask(text=100, audio=10.0, reply=150),
    "speech": Ask(text=300, audio=5.0, reply=60, speech=12.0),
    "drawing": Ask(text=60, drawn=1024 * 1024),
}
"""Requests that an estimate knows without being told: a text, a question about a picture, one about a recording, a turn of a conversation
by voice, and an image to make."""


SIZES = 64
"""Requests of each kind, of as many sizes, which come in turn."""


@frozen
class Device:
    """A kind of GPU with the rates that an estimate takes for it."""

    accelerator: Accelerator
    rates: Rates

    def seconds(self, demand: Demand, item_bytes: int = 2) -> float:
        """Return the seconds of a demand: arithmetic or memory, whichever takes longer, the start of kernels, and what ranks exchange."""
        rates, sheet = self.rates, self.accelerator
        flops = sheet.float32_flops if item_bytes == ITEM_BYTES["float32"] else sheet.flops
        computed = max(
            demand.flops / (flops * rates.flops_share), demand.nbytes / (sheet.bandwidth * rates.bandwidth_share)
        )
        exchanged = demand.exchanges * rates.exchange + demand.exchanged / sheet.link
        return max(computed, demand.kernels * rates.kernel) + exchanged


@define
class EstimatedStage(StageProfile):
    """The costs of a stage by arithmetic. ``work``: ``None`` for a stage without a network."""

    work: Work | None = field(default=None, kw_only=True)
    device: Device = field(kw_only=True)

    def costing(self, stage: StageConfig) -> Costing:
        rates, work, device = self.device.rates, self.work, self.device
        item, ranks = ITEM_BYTES.get(stage.factory_args.get("dtype", "bfloat16"), 2), stage.tp_size
        stored = weight_bytes(stage.factory_args, item)
        names = [*FEATURES[self.kind], *MORE_COUNTS[self.kind]]
        place = {name: number for number, name in enumerate(names)}
        nothing = len(names)  # the place of a 0

        def at(name: str) -> int:
            return place.get(name, nothing)

        taken_at, turns_at, requests_at, passes_at = at("taken"), at("turns"), at("requests"), at("passes")
        decodes_at, streams_at, prompts_at = at("decodes"), at("streams"), at("prompts")
        positions_at, frames_at, context_at, pairs_at = at("positions"), at("frames"), at("context"), at("pairs")

        def seconds(kind: str, given: Sequence[float]) -> Seconds:
            counts = (*given, *(0.0,) * (nothing + 1 - len(given)))
            taken = rates.row * counts[taken_at]
            if work is None:
                return taken + rates.function * counts[requests_at], 0.0
            if not counts[turns_at]:
                return taken, 0.0
            decodes, prompts = counts[decodes_at] + counts[streams_at], counts[prompts_at]
            positions = counts[positions_at] + counts[frames_at]
            made = Counts(decodes, prompts, positions, counts[context_at], counts[pairs_at])
            passes = counts[passes_at] or 1.0
            once = device.seconds(work.demand(made, item, ranks, stored), item)
            return taken + passes * (rates.step + rates.row * (decodes + prompts)), passes * once

        return seconds

    def settings(self, stage: StageConfig) -> dict[str, Any]:
        """Return the blocks of an engine's cache: as many as its config asks for, or as the budget of its devices leaves."""
        work, arguments = self.work, stage.factory_args
        if not isinstance(work, DecoderWork) or arguments.get("kv_blocks"):
            return {}
        item, block = ITEM_BYTES.get(arguments.get("dtype", "bfloat16"), 2), int(arguments.get("block_size") or 16)
        cached = item * work.cached // stage.tp_size
        if arguments.get("kv_cache_mb"):
            return {"kv_blocks": max(1, int(arguments["kv_cache_mb"]) * 2**20 // (cached * block))}
        if stage.gpu_memory is None:
            return {}
        budget = Budget.parse(stage.gpu_memory).of(self.device.accelerator.memory) or 0
        weights = _decoder_bytes(work, arguments, item) // stage.tp_size
        vocabulary = work.head // work.hidden_size
        step = step_bytes(
            work.hidden_size,
            vocabulary,
            item,
            int(arguments.get("max_batch_tokens") or MAX_BATCH_TOKENS),
            int(arguments.get("max_running") or MAX_RUNNING),
        )
        position = cached + item * request_values(work.hidden_size)
        return {"kv_blocks": max(1, (budget - weights - step) // (position * block))}


def weights_of(work: DecoderWork) -> tuple[int, int]:
    """Return the values of a decoder's matrices and of its embeddings, those of its inner decoder included."""
    embeddings = work.head if work.embeddings is None else work.embeddings
    matrices = work.shared + work.head + work.expert * work.experts
    if work.inner is not None:
        heads = work.inner_steps if work.inner_heads is None else work.inner_heads
        inner, rows = weights_of(work.inner)
        matrices, embeddings = matrices + inner + work.inner.head * heads, embeddings + rows
    return matrices, embeddings


def _decoder_bytes(work: DecoderWork, arguments: Mapping[str, Any], item: int) -> int:
    """Return the bytes of a decoder's weights, of which embeddings are never rounded."""
    matrices, embeddings = weights_of(work)
    return weight_bytes(arguments, item) * matrices + item * embeddings


@define
class EstimatedProfile(PipelineProfile):
    """A profile by arithmetic. ``device``: what it is for. ``works``: of the pipeline."""

    works: PipelineWorks = field(kw_only=True)
    device: Device = field(kw_only=True)
    hidden: dict[str, int] = field(factory=dict, kw_only=True)

    is_estimate = True

    def start_seconds(self, stages: Sequence[str]) -> float:
        return self.device.rates.start

    def budgeted(self, config: PipelineConfig, gpus: Sequence[int]) -> PipelineConfig:
        """Return a config with budgets for stages that share a GPU and have none, because no ``placement_fn`` has planned their memory.

        Each gets its weights and an equal part of what they leave.

        Args:
            gpus: the bytes of each GPU.

        Raises:
            ConfigError: a GPU is too small for the weights.
        """
        found: dict[str, int] = {}
        for gpu, capacity in enumerate(gpus):
            tenants = [
                stage for process in plan(config) for stage in process.stages if process.gpus.get(stage.name) == gpu
            ]
            weights = {stage.name: self._weight_bytes(stage) for stage in tenants if stage.gpu_memory is None}
            given = sum(
                Budget.parse(stage.gpu_memory).of(capacity) or 0 for stage in tenants if stage.gpu_memory is not None
            )
            left = round((1 - MARGIN) * capacity) - given - CONTEXT * len(tenants) - sum(weights.values())
            if weights and left < 0:
                raise ConfigError(
                    f"stages without a gpu_memory ({', '.join(weights)}) have {gib(sum(weights.values()))} of weights on GPU {gpu}, which "
                    f"has {gib(capacity)}; give one of them another GPU (--set STAGE.gpu=N), or take larger ones"
                )
            if len(tenants) > 1:
                for name, nbytes in weights.items():
                    found[name] = min(found.get(name, capacity), nbytes + left // len(weights))
        return evolve(
            config,
            stages=[
                evolve(each, gpu_memory=f"{found[each.name] // 2**20}MiB") if each.name in found else each
                for each in config.stages
            ],
        )

    def _weight_bytes(self, stage: StageConfig) -> int:
        """Return the bytes of the weights of one rank of a stage."""
        measured = self.stages.get(stage.name)
        work = measured.work if isinstance(measured, EstimatedStage) else None
        item = ITEM_BYTES.get(stage.factory_args.get("dtype", "bfloat16"), 2)
        if isinstance(work, DecoderWork):
            return _decoder_bytes(work, stage.factory_args, item) // stage.tp_size
        return 0 if work is None else item * (work.weights + work.unread) // stage.tp_size

    def delay(self, stage: str, flight: Sample, is_payload: bool) -> float:
        """Return the latency and the time of the payload's bytes, in bfloat16."""
        visit = flight.get(stage)
        if visit is None or not is_payload:
            return self.latency
        return self.latency + 2 * self.hidden.get(stage, 0) * visit.prompt / self.device.rates.copy


def portable(profile: PipelineProfile) -> PipelineProfile:
    """Return a profile that another process can be given: without the function that made an estimate's requests."""
    if isinstance(profile, EstimatedProfile):
        return evolve(profile, works=evolve(profile.works, visits=_no_visits))
    return profile


def _no_visits(ask: Ask) -> dict[str, StageWork]:
    return {}


def works_of(config: PipelineConfig) -> PipelineWorks:
    """Return what a pipeline says of its work.

    Raises:
        ConfigError: it says nothing.
    """
    function = _works_function(config)
    if function is None:
        raise ConfigError(
            f"pipeline {config.resolved_name!r} does not say what its stages compute (a function `works` beside its placement_fn or "
            "fetch_fn), "
            "so nothing can be estimated; measure it: omni calibrate, then --profile FILE"
        )
    return function(config)


def says_its_work(config: PipelineConfig) -> bool:
    """Tell whether a pipeline says what its stages compute."""
    return _works_function(config) is not None


def _works_function(config: PipelineConfig) -> Callable[[PipelineConfig], PipelineWorks] | None:
    module = (config.placement_fn or config.fetch_fn or "").rpartition(":")[0]
    return getattr(import_module(module), "works", None) if module else None


def estimate(
    config: PipelineConfig, device: Device, kinds: Mapping[str, Ask] = KINDS, works: PipelineWorks | None = None
) -> EstimatedProfile:
    """Return an estimated profile of a pipeline.

    Args:
        config: before it is placed. kinds: the requests by name.

    Raises:
        ConfigError: the pipeline says nothing about its work.
    """
    works = works or works_of(config)
    rates = device.rates
    profile = EstimatedProfile(
        config.resolved_name,
        Hardware(f"estimate of {device.accelerator.name}", rates.cores),
        message=rates.message,
        latency=rates.latency,
        works=works,
        device=device,
    )
    for stage in config.stages:
        work = works.stages.get(stage.name)
        kind: Any = works.kinds.get(stage.name, "function")
        if isinstance(work, DecoderWork):
            kind = "engine"
        elif stage.name in works.vocoders:
            kind = "vocoder"
        made: Kind = kind
        profile.stages[stage.name] = EstimatedStage(
            made,
            admit_after=works.admit_after.get(stage.name, 1),
            frame_seconds=works.vocoders.get(stage.name, 0.0) or works.sounding.get(stage.name, (0.0, 0))[0],
            work=work,
            device=device,
        )
    for name, ask in kinds.items():
        profile.kinds[name] = [_sample(config.stages, works, each) for each in of_sizes(ask, rates.spread, name)]
        profile.hidden.update({stage: each.hidden for stage, each in works.visits(ask).items() if each.hidden})
    return profile


def of_sizes(ask: Ask, spread: float, seed: str) -> list[Ask]:
    """Return requests like ``ask`` whose sizes are log-normal, with its sizes as the mean and ``spread`` as their relative deviation.

    Images that are made have the size and the steps of ``ask``.

    The lengths of an answer and of its speech go together, the others are independent of each other.
    """
    if not spread:
        return [ask]
    variance = math.log1p(spread**2)
    normal = statistics.NormalDist(-variance / 2, math.sqrt(variance))
    factors = [math.exp(normal.inv_cdf((each + 0.5) / SIZES)) for each in range(SIZES)]
    mean = statistics.fmean(factors)
    drawn: dict[str, list[float]] = {}
    for name in ("text", "pixels", "audio", "reply"):
        drawn[name] = [each / mean for each in factors]
        random.Random(f"{seed} {name}").shuffle(drawn[name])
    return [
        Ask(
            text=max(1, round(ask.text * text)) if ask.text else 0,
            pixels=round(ask.pixels * pixels),
            audio=ask.audio * audio,
            reply=max(1, round(ask.reply * reply)) if ask.reply else 0,
            speech=ask.speech * reply,
            drawn=ask.drawn,
            steps=ask.steps,
        )
        for text, pixels, audio, reply in zip(*drawn.values(), strict=True)
    ]


def _sample(stages: Sequence[StageConfig], works: PipelineWorks, ask: Ask) -> Sample:
    """Return the visits of a request: along the edges of the config, between the stages that take part."""
    parts = works.visits(ask)
    sample: Sample = {}
    for stage in stages:
        part = parts.get(stage.name)
        if part is None:
            continue
        targets = [name for name in stage.next_stages if name in parts]
        visit = Visit(targets=targets, prompt=part.positions, outputs=part.outputs)
        for name in stage.stream_to:
            if name in parts:
                visit.chunks[name] = max(0, part.outputs - (name in works.vocoders))  # the last token ends the speech
        if not targets:
            visit.targets.append(CLIENT)
        sample[stage.name] = visit
    entry = next(iter(sample))
    for name, visit in sample.items():
        visit.sources = [each for each, other in sample.items() if name in other.targets or name in other.chunks]
        if name == entry:
            visit.sources.insert(0, CLIENT)
        if name in works.sounding:
            visit.chunks[CLIENT] = -(-visit.prompt // works.sounding[name][1])
        elif works.kinds.get(name) == "stream" and visit.targets == [CLIENT]:
            visit.chunks[CLIENT] = sum(sample[each].chunks.get(name, 0) for each in visit.sources)
    return sample


def ask_of(text: str) -> tuple[str, Ask]:
    """Parse ``NAME:text=300,pixels=1e6,audio=5,reply=60,speech=12``; what is left out is that of the kind of the name, or 0.

    Raises:
        ConfigError: it is not of that form.
    """
    name, _, parts = text.partition(":")
    found = KINDS.get(name, Ask())
    known = [each.name for each in fields(Ask)]
    for part in filter(None, parts.split(",")):
        key, _, value = part.partition("=")
        try:
            if key not in known:
                raise ConfigError(
                    f"--request {text}: there is no {key!r}{did_you_mean(key, known)}; there are: {', '.join(known)}"
                )
            number = float(value)
            if not 0 <= number < 1e9:
                raise ValueError
        except ValueError:
            raise ConfigError(f"--request {text}: {key} must be a number of at least 0") from None
        given: dict[str, Any] = {key: number if key in ("audio", "speech") else int(number)}
        found = evolve(found, **given)
    return name, found
