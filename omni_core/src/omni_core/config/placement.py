"""Placement: stages to process groups to processes to devices, checked before anything is started.

Nothing here asks the machine: :mod:`omni_core.config.devices` does. The runtime launches exactly the processes that :func:`plan`
names.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from attrs import field, frozen

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.errors import ConfigError

AUTO: Final = "auto"
"""The ``gpu`` of a stage whose device is chosen later; no process of it has one yet."""

_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12}
_UNITS |= {"KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}


def parse_bytes(text: str | int) -> int:
    """``"80GiB"``, ``"512 MB"`` or a plain number as bytes.

    Raises:
        ConfigError: it is no size.
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([A-Za-z]*)\s*", str(text))
    if match is None or match[2].upper() not in _UNITS:
        raise ConfigError(f"{text!r} is no amount of memory; write it like 80GiB or 512MB")
    return int(float(match[1]) * _UNITS[match[2].upper()])


@frozen
class Budget:
    """The memory of its device that a stage may use: bytes, or a share of whatever the device has."""

    nbytes: int | None = None
    share: float | None = None

    @classmethod
    def parse(cls, value: str | float) -> Budget:
        """Parse ``gpu_memory``: a number up to 1 is a share, a string is a size.

        Raises:
            ConfigError: neither.
        """
        if isinstance(value, str):
            return cls(nbytes=parse_bytes(value))
        if isinstance(value, bool) or not 0 < value <= 1:
            raise ConfigError(f"{value!r} is no share of a device's memory; it must be above 0 and at most 1")
        return cls(share=float(value))

    def of(self, capacity: int | None) -> int | None:
        """In bytes, on a device of ``capacity`` bytes; ``None`` if that is not known and matters."""
        if self.nbytes is not None:
            return self.nbytes
        return None if capacity is None or self.share is None else int(self.share * capacity)

    def __str__(self) -> str:
        return f"{self.share:.0%}" if self.nbytes is None else gib(self.nbytes)


def gib(nbytes: int) -> str:
    """Format a size in GiB."""
    return f"{nbytes / 2**30:.1f} GiB"


@frozen
class PlannedProcess:
    """One OS process of a pipeline.

    Attributes:
        name: unique. unit: the name of what starts and dies together: this process, or all ranks of its stage.
        group: its process group. replica, rank: which one of it this is.
        stages: the stages it runs, in pipeline order.
        gpus: by stage name, the device of each stage that has one; all the same within a process.
    """

    name: str
    unit: str
    group: str
    replica: int
    rank: int
    stages: tuple[StageConfig, ...]
    gpus: dict[str, int] = field(factory=dict)

    @property
    def host(self) -> str | None:
        """The host that it runs on; ``None``: this one."""
        return self.stages[0].host

    @property
    def gpu(self) -> int | None:
        return next(iter(self.gpus.values()), None)

    def budgets(self) -> dict[str, Budget | None]:
        """Return the memory that each stage on the device may use; ``None`` where the config does not say."""
        return {
            stage.name: None if stage.gpu_memory is None else Budget.parse(stage.gpu_memory)
            for stage in self.stages
            if stage.name in self.gpus
        }


def process_groups(config: PipelineConfig) -> dict[str, list[StageConfig]]:
    """Stages by process group, in pipeline order; fusing stages merges the groups that hold them."""
    group_of = {stage.name: stage.process or stage.name for stage in config.stages}
    for fused in config.fused_stages:
        kept, *merged = dict.fromkeys(group_of[name] for name in fused)
        group_of = {name: kept if group in merged else group for name, group in group_of.items()}
    groups: dict[str, list[StageConfig]] = {}
    for stage in config.stages:
        groups.setdefault(group_of[stage.name], []).append(stage)
    return groups


def plan(config: PipelineConfig) -> list[PlannedProcess]:
    """The processes of a valid pipeline, by group, replica and rank."""
    planned = []
    for group, stages in process_groups(config).items():
        replicas, ranks = stages[0].replicas, stages[0].tp_size
        for replica in range(replicas):
            unit = group if replicas == 1 else f"{group}.{replica}"
            for rank in range(ranks):
                gpus = {stage.name: gpu for stage in stages if (gpu := _gpu(stage, replica, rank)) is not None}
                name = unit if ranks == 1 else f"{unit}_tp{rank}"
                planned.append(PlannedProcess(name, unit, group, replica, rank, tuple(stages), gpus))
    return planned


def _gpu(stage: StageConfig, replica: int, rank: int) -> int | None:
    if isinstance(stage.gpu, list):
        return stage.gpu[replica * stage.tp_size + rank]
    return stage.gpu if isinstance(stage.gpu, int) else None


def problems(processes: Sequence[PlannedProcess], devices: Sequence[int] | None = None) -> list[str]:
    """Return what does not fit, and which setting to turn. ``devices``: each GPU's bytes; ``None`` if they are not known."""
    return [*_missing_devices(processes, devices), *_device_problems(processes, devices)]


def check(processes: Sequence[PlannedProcess], devices: Sequence[int] | None = None) -> None:
    """Raise a ConfigError with a line for each of :func:`problems`."""
    found = problems(processes, devices)
    if found:
        raise ConfigError("\n".join(found))


def _missing_devices(processes: Sequence[PlannedProcess], devices: Sequence[int] | None) -> Iterator[str]:
    if devices is None:
        return
    there = f"this host has {len(devices)} (0 to {len(devices) - 1})" if devices else "this host has none"
    for process in processes:
        for stage, gpu in process.gpus.items():
            if gpu >= len(devices):
                yield f"stages[{stage}].gpu: GPU {gpu} is wanted, {there}; set it to one of them, or to null for the CPU"


def _device_problems(processes: Sequence[PlannedProcess], devices: Sequence[int] | None) -> Iterator[str]:
    for gpu in sorted({process.gpu for process in processes if process.gpu is not None}):
        tenants = [process for process in processes if process.gpu == gpu]
        capacity = devices[gpu] if devices is not None and gpu < len(devices) else None
        unsaid = [name for process in tenants for name, budget in process.budgets().items() if budget is None]
        if len(tenants) > 1 and unsaid:
            names = ", ".join(process.name for process in tenants)
            yield (
                f"stages[{unsaid[0]}].gpu_memory: required, because the processes {names} share GPU {gpu}; "
                'give it a budget such as "20GiB" or 0.5, another `gpu`, or the same `process`'
            )
            continue
        yield from _overbooked(gpu, capacity, tenants)


def _overbooked(gpu: int, capacity: int | None, tenants: list[PlannedProcess]) -> Iterator[str]:
    found = [each for process in tenants for each in process.budgets().items()]
    budgets = [(stage, budget) for stage, budget in found if budget is not None]
    wanted = sum(budget.of(capacity) or 0 for _, budget in budgets)
    shares = sum(budget.share or 0.0 for _, budget in budgets)
    if capacity is not None and wanted > capacity:
        too_much = f"{gib(wanted)} of the {gib(capacity)} of GPU {gpu}"
    elif shares > 1.0 + 1e-9:
        too_much = f"{shares:.0%} of GPU {gpu}"
    else:
        return
    parts = ", ".join(f"{stage} {budget}" for stage, budget in budgets)
    by_size = sorted(budgets, key=lambda each: -(each[1].of(capacity) or each[1].share or 0.0))
    largest, *others = [stage for stage, _ in by_size]
    moved = f"move one to another device (stages[{others[0]}].gpu)" if others else "use a larger device"
    yield (
        f"stages[{largest}].gpu_memory: budgets take {too_much} ({parts}); lower a `gpu_memory`, {moved}, "
        f"or shard the largest (stages[{largest}].tp_size, with a device per rank in its `gpu`)"
    )
