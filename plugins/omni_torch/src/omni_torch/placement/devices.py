"""Chooses devices, dtypes and memory budgets for the stages of a model, from the sizes of its tensors. Imports no torch.

A pipeline's ``placement_fn`` calls :func:`place` with what its stages load (:class:`omni_torch.placement.budgets.Network`). The stage
with the most weights gets devices of its own where there are enough, and is split over several if one cannot hold it; what
the weights leave is KV cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Literal

from attrs import evolve

from omni_core.api import (
    AUTO,
    ConfigError,
    DoesNotFitError,
    KernelComponent,
    Machine,
    PipelineConfig,
    Placement,
    StageConfig,
    did_you_mean,
    gib,
    load_plugins,
)
from omni_core.runtime_api import problem_of
from omni_torch.checkpoints.headers import Tensors, main_dtype
from omni_torch.placement.budgets import ITEM_BYTES, Network, size
from omni_torch.placement.processor import available_memory, computes_bfloat16
from omni_torch.placement.stage_memory import CONTEXT, MIB, PipelineMemory, StageMemory, has_one_byte, outside

MARGIN = 0.01
"""The share of a GPU that is left free, for the driver and other programs."""

CARDS = tuple(size * 2**30 for size in (16, 24, 32, 40, 48, 64, 80, 96, 141, 192, 288))
"""Sizes of GPUs that a refusal suggests."""

MOST_SUGGESTED = 16


def device_of(value: Any) -> int | list[int] | Literal["auto"] | None:
    """Return the ``gpu`` of stages from an option ``gpu``: a number, a list, ``auto`` (the default), ``none`` or ``cpu``.

    Raises:
        ConfigError: it is something else.
    """
    if value is None or value in ("none", "cpu"):
        return None
    numbers = value if isinstance(value, list) else [value]
    if value == AUTO or all(type(each) is int and each >= 0 for each in numbers):
        given: int | list[int] | Literal["auto"] = value
        return given
    raise ConfigError(f"--option gpu={value}: must be the number of a GPU, auto, or none (the CPU)")


def place(config: PipelineConfig, machine: Machine, tensors: Tensors, networks: Mapping[str, Network]) -> Placement:
    """Fill in what the config leaves open: ``gpu: auto``, ``gpu_memory`` on GPUs, and the dtype.

    Args:
        tensors: of the checkpoint, by name.
        networks: by stage, what it loads; other stages are left alone.

    Raises:
        DoesNotFitError: the machine is too small; the message says what would do. ConfigError: a budget cannot hold its stage.
    """
    config = _typed(config, machine, tensors, networks)
    plan = PipelineMemory(config, networks, tensors, [int(size * (1 - MARGIN)) for size in machine.gpus or []])
    chosen = _choose(plan)
    if chosen is None:
        raise DoesNotFitError(_refusal(plan, machine))
    config = evolve(config, stages=[chosen.get(stage.name, stage) for stage in config.stages])
    plan = evolve(plan, config=config)
    if machine.here:
        _check_memory(plan)
    return _budgeted(plan)


def _typed(
    config: PipelineConfig, machine: Machine, tensors: Tensors, networks: Mapping[str, Network]
) -> PipelineConfig:
    """Return the config with a dtype for every stage; stages that could go to a GPU stay on the CPU where there is none."""

    def typed(stage: StageConfig) -> StageConfig:
        if stage.gpu == AUTO and (stage.host is not None or not machine.gpus):
            stage = evolve(stage, gpu=None)
        if stage.name not in networks:
            return stage
        dtype = stage.factory_args.get("dtype")
        if dtype is None:
            own = [each for name, each in tensors.items() if name.startswith(networks[stage.name].prefixes)]
            stored = main_dtype(own)
            native = stage.gpu is not None or (stored == "bfloat16" and stage.host is None and computes_bfloat16())
            dtype = stored if stored is not None and native else "float32"
        elif dtype not in ITEM_BYTES:
            raise ConfigError(
                f"stages[{stage.name}].factory_args.dtype: there is no dtype {dtype!r}{did_you_mean(str(dtype), ITEM_BYTES)}"
            )
        return evolve(stage, factory_args={**stage.factory_args, "dtype": dtype})

    return evolve(config, stages=[typed(stage) for stage in config.stages])


def _choose(plan: PipelineMemory) -> dict[str, StageConfig] | None:
    """Return the stages whose device is ``auto``, with devices; ``None`` if they do not fit."""
    free, opened = list(plan.gpus), []
    for stages in plan.groups():
        given = [stage.gpu for stage in stages if stage.gpu != AUTO]
        if not given:
            opened.append(stages)
            continue
        for device in given[0] if isinstance(given[0], list) else [given[0]] * stages[0].replicas:
            if isinstance(device, int) and device < len(free):
                free[device] -= plan.group_bytes(stages, stages[0].tp_size)
    joined = {
        stage.name: evolve(stage, gpu=given[0])
        for stages in plan.groups()
        for stage in stages
        if stage.gpu == AUTO and (given := [each.gpu for each in stages if each.gpu != AUTO])
    }
    opened.sort(key=lambda stages: -plan.group_bytes(stages, stages[0].tp_size))
    if not opened:
        return joined
    largest, count = opened[0], len(free)
    single = len(largest) == 1 and largest[0].tp_size == 1
    for ranks in plan.networks[largest[0].name].ranks if single else (largest[0].tp_size,):
        wanted = ranks * largest[0].replicas
        for most in sorted({min(count, wanted + 1), count}):
            if ranks <= most and (found := _packed(plan, opened, free, ranks, most)) is not None:
                return joined | found
    return None


def _packed(
    plan: PipelineMemory, opened: list[list[StageConfig]], free: Sequence[int], ranks: int, most: int
) -> dict[str, StageConfig] | None:
    """Give each group, the largest first, the devices with the most room among ``most``; ``None`` if one does not fit."""
    room = {device: free[device] for device in sorted(range(len(free)), key=lambda device: -free[device])[:most]}
    found: dict[str, StageConfig] = {}
    for number, stages in enumerate(opened):
        each = ranks if number == 0 else stages[0].tp_size
        wanted, devices = plan.group_bytes(stages, each), list[int]()
        for _ in range(stages[0].replicas):
            taken: list[int] = []
            for _ in range(each):
                others = [device for device in sorted(room) if device not in taken]
                fresh = [device for device in others if device not in devices]
                device = max(fresh or others, key=room.__getitem__, default=None)
                if device is None or room[device] < wanted:
                    return None
                room[device] -= wanted
                taken.append(device)
            devices += sorted(taken)
        gpu = devices if len(devices) > 1 else devices[0]
        found |= {stage.name: evolve(stage, gpu=gpu, tp_size=each) for stage in stages}
    return found


def _refusal(plan: PipelineMemory, machine: Machine) -> str:
    """Return why the stages do not fit, and what would do."""
    sizes = machine.gpus or []
    needs = sorted(
        ((sum(plan.need(stage.name, stage.tp_size).smallest for stage in stages), stages) for stages in plan.groups()),
        key=lambda each: -each[0],
    )
    listed = ", ".join(f"{' and '.join(stage.name for stage in stages)} {size(nbytes)}" for nbytes, stages in needs)
    here = f"{len(sizes)} GPU{'s' if len(sizes) > 1 else ''} of {gib(min(sizes))}"
    would = list(dict.fromkeys(_would_do(plan, sizes)))
    advice = f"It would fit {' or '.join(would)}." if would else "No number of such GPUs would do."
    return (
        f"{plan.config.resolved_name} does not fit {here}: {listed}, and {size(CONTEXT)} for each process. {advice} "
        "Without a GPU: --option gpu=none"
    )


def _would_do(plan: PipelineMemory, sizes: Sequence[int]) -> Iterator[str]:
    smallest = min(sizes)

    def fits(gpus: list[int], changed: PipelineMemory = plan) -> bool:
        return _choose(evolve(changed, gpus=[int(each * (1 - MARGIN)) for each in gpus])) is not None

    for count in range(len(sizes) + 1, MOST_SUGGESTED + 1):
        if fits([smallest] * count):
            yield f"{count} GPUs of {gib(smallest)}"
            break
    for count in dict.fromkeys((len(sizes), 1)):
        for card in CARDS:
            if card > smallest and fits([card] * count):
                yield f"{count} GPU{'s' if count > 1 else ''} of {gib(card)}"
                break
    narrow = [
        evolve(each, factory_args={**each.factory_args, "dtype": "bfloat16"}) if each.name in plan.networks else each
        for each in plan.config.stages
    ]
    if fits(list(sizes), evolve(plan, config=evolve(plan.config, stages=narrow))):
        yield "these with --option dtype=bfloat16"


def _has_kernel_for_bfloat16() -> bool:
    """Return whether a kernel that works here multiplies float32 with weights in bfloat16."""
    kernels = (each for each, _ in load_plugins().components("omni_kernels") if isinstance(each, KernelComponent))
    return any(
        (each.operation, each.device) == ("few_rows_linear", "cpu") and problem_of(each) is None for each in kernels
    )


def _check_memory(plan: PipelineMemory) -> None:
    """Refuse to run on a CPU whose memory cannot hold the weights."""
    weights = {
        name: plan.weights(name, stage.tp_size) * stage.tp_size * stage.replicas
        for name, stage in plan.stages.items()
        if stage.gpu is None and stage.host is None
    }
    available = available_memory()
    if available is None or sum(weights.values()) <= available:
        return
    wide = [name for name in weights if plan.stays_bfloat16(name)]
    kept = bool(wide) and _has_kernel_for_bfloat16()
    if kept:
        matrices = {name: each for name, each in plan.tensors.items() if each.dtype == "BF16"}
        for name in wide:
            stage = plan.stages[name]
            values = plan.networks[name].weight_values(matrices, stage.tp_size) * stage.tp_size * stage.replicas
            weights[name] -= values * (ITEM_BYTES["float32"] - ITEM_BYTES["bfloat16"])
    total, widest = sum(weights.values()), max(weights, key=weights.__getitem__)
    if total <= available:
        return
    dtype = plan.stages[widest].factory_args["dtype"]
    halved = "; --option dtype=bfloat16 halves it" if dtype == "float32" and not (kept and widest in wide) else ""
    stored = ", decoders as they are stored in bfloat16" if kept and dtype == "float32" else ""
    raise DoesNotFitError(
        f"{plan.config.resolved_name} does not fit the memory of this machine: weights on the CPU take {gib(total)} in {dtype}{stored} "
        f"({widest} {gib(weights[widest])}), {gib(available)} are free{halved}. `omni plan --gpus 1 --gpu-memory 80GiB` "
        "plans for GPUs that are elsewhere"
    )


def _budgeted(plan: PipelineMemory) -> Placement:
    """Share out what the weights leave on each device, and set each stage's budget."""
    tenants: dict[int, list[str]] = {}
    taken: dict[int, int] = {}
    for stages in plan.groups():
        devices = stages[0].gpu if isinstance(stages[0].gpu, list) else [stages[0].gpu] * stages[0].replicas
        for device in devices:
            if isinstance(device, int):
                tenants.setdefault(device, []).extend(stage.name for stage in stages)
                taken[device] = taken.get(device, 0) + outside(stages[0].tp_size)
    caches: dict[str, int] = {}
    for device, names in tenants.items():
        needs = [(name, plan.need(name, plan.stages[name].tp_size)) for name in names]
        known = device < len(plan.gpus)
        left = plan.gpus[device] - taken[device] - sum(need.smallest for _, need in needs) if known else None
        growth = sum(need.most - need.least for _, need in needs) or 1
        for name, need in needs:
            cache = plan.networks[name].cache
            if left is None:
                one = 0 if cache is None else cache.max_context * need.position
                found = max(need.least, min(need.most, one))
            else:
                found = min(need.most, need.least + max(0, left) * (need.most - need.least) // growth)
            caches[name] = min(caches.get(name, found), found)
    notes, stages = {}, []
    for stage in plan.config.stages:
        if stage.name in plan.stages:
            need = plan.need(stage.name, stage.tp_size)
            if stage.name in caches and stage.gpu_memory is None:
                budget = -(-(need.base + caches[stage.name]) // MIB)
                stage = evolve(stage, gpu_memory=f"{budget}MiB")
            notes[stage.name] = _note(plan, stage, need, caches.get(stage.name, 0))
        stages.append(stage)
    return Placement(evolve(plan.config, stages=stages), notes)


def _note(plan: PipelineMemory, stage: StageConfig, need: StageMemory, cache: int) -> str:
    arguments = stage.factory_args
    stored = str(arguments["quantization"]).partition("_")[0] if has_one_byte(stage) else arguments["dtype"]
    parts = [f"{stored} weights {size(need.weights)}"]
    if stage.gpu is None and plan.stays_bfloat16(stage.name):
        parts.append("half of it with omni-kernels-cpu")
    if stage.gpu is not None:
        parts.append(f"working {size(need.step)}")
    if stage.gpu is not None and need.position:
        parts.append(f"KV cache {size(cache)}: {cache // need.position:,} positions")
    return ", ".join(parts)
