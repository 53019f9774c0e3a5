"""The estimate of a pipeline on hardware that is not there: seconds of steps follow from FLOPs, bytes and rates that are stated."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Literal

from attrs import define, evolve, field, frozen

from omni_core.api import Budget, ConfigError, PipelineConfig, StageConfig, gib
from omni_core.runtime_api import plan
from omni_planner.asks import KINDS, of_sizes
from omni_planner.devices import Accelerator, Rates
from omni_torch.placement.budgets import (
    ITEM_BYTES,
    MAX_BATCH_TOKENS,
    MAX_RUNNING,
    request_values,
    step_bytes,
    weight_bytes,
)
from omni_torch.placement.devices import MARGIN
from omni_torch.placement.stage_memory import CONTEXT
from omni_torch.placement.work import Ask, Counts, DecoderWork, Demand, PipelineWorks, Work

CLIENT = "client"
"""The name of the client's process, beside those of stages."""

Kind = Literal["function", "engine", "vocoder", "stream"]
"""The rule by which a stage's scheduler makes steps."""

Seconds = tuple[float, float]
"""Seconds of a step: of a processor, then of the device."""

Costing = Callable[[Counts, int, int], Seconds]
"""The seconds of a step, from what it computes, how many times it does so, and the messages that were taken before it."""

NOTHING = Counts()


@define
class Visit:
    """The visit of one request to one stage.

    Attributes:
        sources: the stages that send it a payload or a stream (:data:`CLIENT`: the client does).
        targets: the stages that get its result.
        chunks: chunks of its stream, by target (:data:`CLIENT`: to the client).
        prompt: positions of its prompt, or its patches and frames.
        outputs: tokens that an engine makes, or passes of a function.
    """

    sources: list[str] = field(factory=list)
    targets: list[str] = field(factory=list)
    chunks: dict[str, int] = field(factory=dict)
    prompt: int = 0
    outputs: int = 0


Sample = dict[str, Visit]
"""One request: its visits, by stage."""


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


@frozen
class StageEstimate:
    """The costs of a stage.

    Attributes:
        admit_after: of an engine, the messages of a request that come before it computes; more than one where it is fed by a stream.
        frame_seconds: the sound of a vocoder's frame, or of a position of a function that makes sound; 0: it makes none.
        work: ``None`` for a stage without a network.
    """

    kind: Kind
    device: Device
    work: Work | None = None
    admit_after: int = 1
    frame_seconds: float = 0.0

    @property
    def ranks(self) -> tuple[int, ...]:
        """The numbers of tensor parallel ranks that can share it."""
        return self.work.ranks if isinstance(self.work, DecoderWork) else (1,)

    def costing(self, stage: StageConfig) -> Costing:
        """Return what steps cost where the stage is configured like this."""
        rates, work, device, ranks = self.device.rates, self.work, self.device, stage.tp_size
        item = _item_bytes(stage)
        stored = weight_bytes(stage.factory_args, item)

        def seconds(counts: Counts, passes: int, taken: int) -> Seconds:
            processor = rates.row * taken
            if work is None:
                return processor + rates.function * counts.prompts, 0.0
            if not passes:
                return processor, 0.0
            once = device.seconds(work.demand(counts, item, ranks, stored), item)
            return processor + passes * (rates.step + rates.row * (counts.decodes + counts.prompts)), passes * once

        return seconds

    def kv_blocks(self, stage: StageConfig, block: int) -> int | None:
        """Return the blocks of an engine's cache: as many as its config asks for, or as the budget of its devices leaves; ``None``: no
        limit is known. ``block``: positions of one.
        """
        work, arguments = self.work, stage.factory_args
        if arguments.get("kv_blocks"):
            return int(arguments["kv_blocks"])
        if not isinstance(work, DecoderWork):
            return None
        item = _item_bytes(stage)
        cached = item * work.cached // stage.tp_size
        if arguments.get("kv_cache_mb"):
            return max(1, int(arguments["kv_cache_mb"]) * 2**20 // (cached * block))
        if stage.gpu_memory is None:
            return None
        budget = Budget.parse(stage.gpu_memory).of(self.device.accelerator.memory) or 0
        step = step_bytes(
            work.hidden_size,
            work.head // work.hidden_size,
            item,
            int(arguments.get("max_batch_tokens") or MAX_BATCH_TOKENS),
            int(arguments.get("max_running") or MAX_RUNNING),
        )
        position = cached + item * request_values(work.hidden_size)
        return max(1, (budget - self.rank_bytes(stage) - step) // (position * block))

    def rank_bytes(self, stage: StageConfig) -> int:
        """Return the bytes of the weights of one rank, of which embeddings are never rounded."""
        work, item = self.work, _item_bytes(stage)
        if isinstance(work, DecoderWork):
            matrices, embeddings = weights_of(work)
            return (weight_bytes(stage.factory_args, item) * matrices + item * embeddings) // stage.tp_size
        return 0 if work is None else item * (work.weights + work.unread) // stage.tp_size


def _item_bytes(stage: StageConfig) -> int:
    return ITEM_BYTES.get(stage.factory_args.get("dtype", "bfloat16"), 2)


def weights_of(work: DecoderWork) -> tuple[int, int]:
    """Return the values of a decoder's matrices and of its embeddings, those of its inner decoder included."""
    embeddings = work.head if work.embeddings is None else work.embeddings
    matrices = work.shared + work.head + work.expert * work.experts
    if work.inner is not None:
        heads = work.inner_steps if work.inner_heads is None else work.inner_heads
        inner, rows = weights_of(work.inner)
        matrices, embeddings = matrices + inner + work.inner.head * heads, embeddings + rows
    return matrices, embeddings


@frozen
class Estimate:
    """The estimate of a pipeline.

    Attributes:
        stages: by name.
        kinds: requests by kind, of many sizes.
        hidden: values that a stage hands on with each position of its prompt.
    """

    device: Device
    stages: Mapping[str, StageEstimate]
    kinds: Mapping[str, list[Sample]]
    hidden: Mapping[str, int]

    def delay(self, stage: str, sample: Sample, *, is_payload: bool) -> float:
        """Return the seconds of a message of a stage between its two ends: the latency, and those of a payload's bytes in bfloat16."""
        rates = self.device.rates
        if stage == CLIENT or not is_payload:
            return rates.latency
        return rates.latency + 2 * self.hidden.get(stage, 0) * sample[stage].prompt / rates.copy

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
            weights = {
                each.name: self.stages[each.name].rank_bytes(each) for each in tenants if each.gpu_memory is None
            }
            given = sum(Budget.parse(each.gpu_memory).of(capacity) or 0 for each in tenants if each.gpu_memory)
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


def works_of(config: PipelineConfig) -> PipelineWorks:
    """Return what a pipeline says of its work.

    Raises:
        ConfigError: it says nothing.
    """
    module = (config.placement_fn or config.fetch_fn or "").rpartition(":")[0]
    function: Callable[[PipelineConfig], PipelineWorks] | None = (
        getattr(import_module(module), "works", None) if module else None
    )
    if function is None:
        raise ConfigError(
            f"pipeline {config.resolved_name!r} does not say what its stages compute (a function `works` beside its placement_fn or "
            "fetch_fn), so nothing can be estimated; measure it: omni bench"
        )
    return function(config)


def estimate(
    config: PipelineConfig, device: Device, kinds: Mapping[str, Ask] = KINDS, works: PipelineWorks | None = None
) -> Estimate:
    """Return the estimate of a pipeline.

    Args:
        config: before it is placed.
        kinds: the requests by name.

    Raises:
        ConfigError: the pipeline says nothing about its work.
    """
    works = works or works_of(config)
    stages = {}
    for stage in config.stages:
        work = works.stages.get(stage.name)
        kind: Any = works.kinds.get(stage.name, "function")
        if isinstance(work, DecoderWork):
            kind = "engine"
        elif stage.name in works.vocoders:
            kind = "vocoder"
        sound = works.vocoders.get(stage.name, 0.0) or works.sounding.get(stage.name, (0.0, 0))[0]
        stages[stage.name] = StageEstimate(kind, device, work, works.admit_after.get(stage.name, 1), sound)
    samples, hidden = dict[str, list[Sample]](), dict[str, int]()
    for name, ask in kinds.items():
        samples[name] = [_sample(config.stages, works, each) for each in of_sizes(ask, device.rates.spread, name)]
        hidden.update({stage: each.hidden for stage, each in works.visits(ask).items() if each.hidden})
    return Estimate(device, stages, samples, hidden)


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
