"""The memory that each stage of a pipeline needs on a device, from its network, its arguments and the sizes of its tensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any

from attrs import evolve, field, frozen

from omni_core.api import Budget, ConfigError, PipelineConfig, StageConfig, gib
from omni_core.runtime_api import process_groups
from omni_torch.checkpoints.headers import TensorInfo, Tensors, main_dtype
from omni_torch.placement.budgets import (
    ITEM_BYTES,
    LEAST_POSITIONS,
    MAX_BATCH_TOKENS,
    MAX_RUNNING,
    ONE_BYTE,
    Network,
    size,
)

MIB = 2**20

CONTEXT = 400 * MIB
"""Memory of a GPU that each process takes for its CUDA context, outside of torch's allocator. An estimate."""

COLLECTIVES = 256 * MIB
"""The memory that each of several ranks takes for NCCL's buffers. An estimate."""


def outside(ranks: int) -> int:
    """Return what a process takes of a GPU beside torch's allocator."""
    return CONTEXT + (COLLECTIVES if ranks > 1 else 0)


LEAST_ROUNDED = 1 << 13
"""The number of values from which on a weight is rounded: :data:`omni_torch.quantization.quantized_linear.LEAST_VALUES`."""

_WIDE = re.compile(r"norm$|embed|\.gate$|\.output$")
"""Is found in the names of layers whose weights are not rounded: norms, embeddings, routers, and a head that single rows are read of."""


def has_one_byte(stage: StageConfig) -> bool:
    """Return whether a stage holds its matrices in 8 bits on a GPU."""
    return stage.gpu is not None and stage.factory_args.get("quantization") in ONE_BYTE


def is_rounded(name: str, tensor: TensorInfo) -> bool:
    """Return whether a stage with one of :data:`omni_torch.placement.budgets.ONE_BYTE` rounds this tensor."""
    layer, _, kind = name.rpartition(".")
    return kind == "weight" and tensor.unpacked >= LEAST_ROUNDED and _WIDE.search(layer) is None


@frozen
class StageMemory:
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
class PipelineMemory:
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
        if not has_one_byte(stage):
            return self.counted[key] * item
        rounded = {tensor: each for tensor, each in self.tensors.items() if is_rounded(tensor, each)}
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

    def need(self, name: str, ranks: int) -> StageMemory:
        """Return what one rank of a stage needs.

        Raises:
            ConfigError: its ``gpu_memory`` is too small.
        """
        stage, network = self.stages[name], self.networks[name]
        item, given = ITEM_BYTES[stage.factory_args["dtype"]], _checked(stage)
        weights = self.weights(name, ranks)
        if network.cache is None:
            need = StageMemory(weights, network.working(item))
        else:
            running = given.get("max_running", MAX_RUNNING)
            step = network.cache.step_bytes(item, given.get("max_batch_tokens", MAX_BATCH_TOKENS), running)
            position = network.cache.position_bytes(item, ranks)
            context = given.get("max_context") or network.cache.max_context
            need = StageMemory(
                weights, step, position, min(context, LEAST_POSITIONS) * position, running * context * position
            )
            asked = _asked(given, need, network, item)
            if asked is not None:
                need = evolve(need, least=asked, most=asked)
        return need if stage.gpu_memory is None else self._within(stage, need)

    def _within(self, stage: StageConfig, need: StageMemory) -> StageMemory:
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

    def groups(self) -> Iterator[list[StageConfig]]:
        """Yield, for each process group of this host that uses a GPU, those of its stages that do."""
        for stages in process_groups(self.config).values():
            found = [each for each in stages if each.name in self.stages and each.gpu is not None]
            if found and found[0].host is None:
                yield found

    def group_bytes(self, stages: list[StageConfig], ranks: int) -> int:
        return sum(self.need(each.name, ranks).smallest for each in stages) + outside(ranks)


def _checked(stage: StageConfig) -> Mapping[str, Any]:
    """Return the arguments of a stage. Raises ConfigError: one from which its memory follows is no number."""
    for name in ("max_running", "max_batch_tokens", "max_context", "kv_cache_mb", "kv_blocks", "block_size"):
        value = stage.factory_args.get(name)
        if value is not None and (not isinstance(value, int | float) or isinstance(value, bool) or not value > 0):
            raise ConfigError(f"stages[{stage.name}].factory_args.{name}: must be a number above 0, is {value!r}")
    return stage.factory_args


def _asked(given: Mapping[str, Any], need: StageMemory, network: Network, item: int) -> int | None:
    """Return the bytes of the cache that the stage's arguments ask for, with the rows of the requests in it."""
    assert network.cache is not None
    rows = 2 * network.cache.hidden_size * item
    if given.get("kv_cache_mb") is not None:
        return int(given["kv_cache_mb"]) * MIB * need.position // (need.position - rows)
    if given.get("kv_blocks") is not None:
        return int(given["kv_blocks"]) * int(given.get("block_size", 16)) * need.position
    return None
