"""Chooses devices, dtypes and memory budgets for the stages of a model, from the sizes of its tensors. Imports no torch.

A pipeline's ``placement_fn`` calls :func:`place` with what its stages load (:class:`omni_torch.placement.budgets.Network`). The stage
with the most weights gets devices of its own where there are enough, and is split over several if one cannot hold it; what
the weights leave is KV cache.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, Literal

from attrs import evolve, field, frozen

from omni_core.config.completion import DoesNotFitError, Machine, Placement
from omni_core.config.placement import AUTO, Budget, gib, process_groups
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError, did_you_mean
from omni_core.hookspecs import KernelComponent
from omni_core.plugins import load_plugins
from omni_core.plugins.registry import problem_of
from omni_torch.checkpoints.headers import TensorInfo, Tensors, main_dtype
from omni_torch.placement.budgets import ITEM_BYTES, LEAST_POSITIONS, MAX_BATCH_TOKENS, MAX_RUNNING, ONE_BYTE, Network
from omni_torch.placement.processor import available_memory, computes_bfloat16

MIB = 2**20

CONTEXT = 400 * MIB
"""Memory of a GPU that each process takes for its CUDA context, outside of torch's allocator. An estimate."""

COLLECTIVES = 256 * MIB
"""The memory that each of several ranks takes for NCCL's buffers. An estimate."""

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


def outside(ranks: int) -> int:
    """Return what a process takes of a GPU beside torch's allocator."""
    return CONTEXT + (COLLECTIVES if ranks > 1 else 0)


LEAST_ROUNDED = 1 << 13
"""The number of values from which on a weight is rounded: :data:`omni_torch.quantization.quantized_linear.LEAST_VALUES`."""

_WIDE = re.compile(r"norm$|embed|\.gate$|\.output$")
"""Is found in the names of layers whose weights are not rounded: norms, embeddings, routers, and a head that single rows are read of."""


def _has_one_byte(stage: StageConfig) -> bool:
    """Return whether a stage holds its matrices in 8 bits on a GPU."""
    return stage.gpu is not None and stage.factory_args.get("quantization") in ONE_BYTE


def _is_rounded(name: str, tensor: TensorInfo) -> bool:
    """Return whether a stage with one of :data:`omni_torch.placement.budgets.ONE_BYTE` rounds this tensor."""
    layer, _, kind = name.rpartition(".")
    return kind == "weight" and tensor.unpacked >= LEAST_ROUNDED and _WIDE.search(layer) is None


@frozen
class _Need:
    """The memory of one rank of a stage on its GPU: weights, working memory, and the bounds of its cache."""

    weights: int
    step: int
    position: int = 0
    least: int = 0
    most: int = 0

    @property
    def base(self) -> int:
        return self.weights + self.step

    @property
    def smallest(self) -> int:
        return self.base + self.least


@frozen(eq=False)
class _Plan:
    """A pipeline, the machine, and what its stages load. ``gpus``: what each device has for stages and contexts. ``counted``: values of
    the weights by stage, ranks and whether it is on a GPU, counted once.
    """

    config: PipelineConfig
    networks: Mapping[str, Network]
    tensors: Tensors
    gpus: Sequence[int] = field(factory=list)
    counted: dict[tuple[str, int, bool], int] = field(factory=dict)

    @cached_property
    def stages(self) -> dict[str, StageConfig]:
        """The stages with a network, by name."""
        return {each.name: each for each in self.config.stages if each.name in self.networks}

    def weights(self, name: str, ranks: int) -> int:
        """Return the bytes of a stage's weights on one rank."""
        stage, network = self.stages[name], self.networks[name]
        on_gpu = stage.gpu is not None  # there words become floats; on a CPU most stay
        key = name, ranks, on_gpu
        if key not in self.counted:
            self.counted[key] = network.weight_values(self.tensors, ranks, unpacked=on_gpu)
        item = ITEM_BYTES[stage.factory_args["dtype"]]
        if not _has_one_byte(stage):
            return self.counted[key] * item
        rounded = {tensor: each for tensor, each in self.tensors.items() if _is_rounded(tensor, each)}
        return self.counted[key] * item - network.weight_values(rounded, ranks, unpacked=True) * (item - 1)

    def stays_bfloat16(self, name: str) -> bool:
        """Return whether a stage on a CPU that computes in float32 can keep weights that are stored in bfloat16; see
        :func:`omni_torch.checkpoints.prepared.keeps_bfloat16`.
        """
        network, given = self.networks[name], self.stages[name].factory_args
        if any(given.get(option) is not None for option in ("quantization", "gguf", "decoder")):
            return False
        own = [each for tensor, each in self.tensors.items() if tensor.startswith(network.prefixes)]
        if any(each.dtype.startswith(("F8", "I8")) for each in own):  # they become float32
            return False
        return given["dtype"] == "float32" and network.cache is not None and main_dtype(own) == "bfloat16"

    def need(self, name: str, ranks: int) -> _Need:
        """Return what one rank of a stage needs.

        Raises:
            ConfigError: its ``gpu_memory`` is too small.
        """
        stage, network = self.stages[name], self.networks[name]
        item, given = ITEM_BYTES[stage.factory_args["dtype"]], _checked(stage)
        weights = self.weights(name, ranks)
        if network.cache is None:
            need = _Need(weights, network.working(item))
        else:
            running = given.get("max_running", MAX_RUNNING)
            step = network.cache.step_bytes(item, given.get("max_batch_tokens", MAX_BATCH_TOKENS), running)
            position = network.cache.position_bytes(item, ranks)
            context = given.get("max_context") or network.cache.max_context
            need = _Need(
                weights, step, position, min(context, LEAST_POSITIONS) * position, running * context * position
            )
            asked = _asked(given, need, network, item)
            if asked is not None:
                need = evolve(need, least=asked, most=asked)
        return need if stage.gpu_memory is None else self._within(stage, need)

    def _within(self, stage: StageConfig, need: _Need) -> _Need:
        """Return a need that takes exactly the stage's own ``gpu_memory``."""
        device = stage.gpu[0] if isinstance(stage.gpu, list) else stage.gpu
        known = isinstance(device, int) and device < len(self.gpus)
        budget = Budget.parse(stage.gpu_memory or 1.0).of(self.gpus[device] if known else max(self.gpus, default=None))  # type: ignore[index]
        if budget is None:
            return need
        block = 16 * need.position
        if budget < need.base + block:
            raise ConfigError(
                f"stages[{stage.name}].gpu_memory: {gib(budget)} is too small: weights take {size(need.weights)}, a step "
                f"{size(need.step)}; give it at least {gib(need.smallest)}"
            )
        return evolve(need, least=budget - need.base, most=budget - need.base)

    def groups(self) -> Iterator[tuple[str, list[StageConfig]]]:
        """Yield the process groups of this host that use a GPU, with those of their stages that do."""
        for group, stages in process_groups(self.config).items():
            found = [each for each in stages if each.name in self.stages and each.gpu is not None]
            if found and found[0].host is None:
                yield group, found

    def group_bytes(self, stages: list[StageConfig], ranks: int) -> int:
        return sum(self.need(each.name, ranks).smallest for each in stages) + outside(ranks)


def place(config: PipelineConfig, machine: Machine, tensors: Tensors, networks: Mapping[str, Network]) -> Placement:
    """Fill in what the config leaves open: ``gpu: auto``, ``gpu_memory`` on GPUs, and the dtype.

    Args:
        tensors: of the checkpoint, by name.
        networks: by stage, what it loads; other stages are left alone.

    Raises:
        DoesNotFitError: the machine is too small; the message says what would do. ConfigError: a budget cannot hold its stage.
    """
    config = _typed(config, machine, tensors, networks)
    plan = _Plan(config, networks, tensors, [int(size * (1 - MARGIN)) for size in machine.gpus or []])
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


def _choose(plan: _Plan) -> dict[str, StageConfig] | None:
    """Return the stages whose device is ``auto``, with devices; ``None`` if they do not fit."""
    free, opened = list(plan.gpus), []
    for group, stages in plan.groups():
        given = [stage.gpu for stage in stages if stage.gpu != AUTO]
        if not given:
            opened.append((group, stages))
            continue
        for device in given[0] if isinstance(given[0], list) else [given[0]] * stages[0].replicas:
            if isinstance(device, int) and device < len(free):
                free[device] -= plan.group_bytes(stages, stages[0].tp_size)
    joined = {
        stage.name: evolve(stage, gpu=given[0])
        for _, stages in plan.groups()
        for stage in stages
        if stage.gpu == AUTO and (given := [each.gpu for each in stages if each.gpu != AUTO])
    }
    opened.sort(key=lambda each: -plan.group_bytes(each[1], each[1][0].tp_size))
    if not opened:
        return joined
    (_, largest), count = opened[0], len(free)
    single = len(largest) == 1 and largest[0].tp_size == 1
    for ranks in plan.networks[largest[0].name].ranks if single else (largest[0].tp_size,):
        wanted = ranks * largest[0].replicas
        for most in sorted({min(count, wanted + 1), count}):
            if ranks <= most and (found := _packed(plan, opened, free, ranks, most)) is not None:
                return joined | found
    return None


def _packed(
    plan: _Plan, opened: list[tuple[str, list[StageConfig]]], free: Sequence[int], ranks: int, most: int
) -> dict[str, StageConfig] | None:
    """Give each group, the largest first, the devices with the most room among ``most``; ``None`` if one does not fit."""
    room = {device: free[device] for device in sorted(range(len(free)), key=lambda device: -free[device])[:most]}
    found: dict[str, StageConfig] = {}
    for number, (_, stages) in enumerate(opened):
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


def _refusal(plan: _Plan, machine: Machine) -> str:
    """Return why the stages do not fit, and what would do."""
    sizes = machine.gpus or []
    needs = sorted(
        (
            (sum(plan.need(stage.name, stage.tp_size).smallest for stage in stages), stages)
            for _, stages in plan.groups()
        ),
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


def _would_do(plan: _Plan, sizes: Sequence[int]) -> Iterator[str]:
    smallest = min(sizes)

    def fits(gpus: list[int], changed: _Plan = plan) -> bool:
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


def _check_memory(plan: _Plan) -> None:
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


def _budgeted(plan: _Plan) -> Placement:
    """Share out what the weights leave on each device, and set each stage's budget."""
    tenants: dict[int, list[str]] = {}
    taken: dict[int, int] = {}
    for _, stages in plan.groups():
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


def _note(plan: _Plan, stage: StageConfig, need: _Need, cache: int) -> str:
    arguments = stage.factory_args
    stored = str(arguments["quantization"]).partition("_")[0] if _has_one_byte(stage) else arguments["dtype"]
    parts = [f"{stored} weights {size(need.weights)}"]
    if stage.gpu is None and plan.stays_bfloat16(stage.name):
        parts.append("half of it with omni-kernels-cpu")
    if stage.gpu is not None:
        parts.append(f"working {size(need.step)}")
    if stage.gpu is not None and need.position:
        parts.append(f"KV cache {size(cache)}: {cache // need.position:,} positions")
    return ", ".join(parts)


def _checked(stage: StageConfig) -> Mapping[str, Any]:
    """Return the arguments of a stage. Raises ConfigError: one from which its memory follows is no number."""
    for name in ("max_running", "max_batch_tokens", "max_context", "kv_cache_mb", "kv_blocks", "block_size"):
        value = stage.factory_args.get(name)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool) or not value > 0):
            raise ConfigError(f"stages[{stage.name}].factory_args.{name}: must be a number above 0, is {value!r}")
    return stage.factory_args


def _asked(given: Mapping[str, Any], need: _Need, network: Network, item: int) -> int | None:
    """Return the bytes of the cache that the stage's arguments ask for, with the rows of the requests in it."""
    assert network.cache is not None
    rows = 2 * network.cache.hidden_size * item
    if given.get("kv_cache_mb") is not None:
        return int(given["kv_cache_mb"]) * MIB * need.position // (need.position - rows)
    if given.get("kv_blocks") is not None:
        return int(given["kv_blocks"]) * int(given.get("block_size", 16)) * need.position
    return None


def size(nbytes: int) -> str:
    """Format a size in GiB, or in MiB below a tenth of one."""
    return f"{nbytes / MIB:.0f} MiB" if nbytes < 2**30 // 10 else gib(nbytes)
