"""Placement: stages to process groups to processes to devices, checked before anything is started.

Nothing here asks the machine: the service ``fitting`` does. The runtime launches exactly the processes that :func:`plan`
names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
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
        name: unique.
        unit: the name of what starts and dies together: this process, or all ranks of its stage.
        group: its process group.
        replica, rank: which one of it this is.
        slot: the place of the replica among them.
        stages: the stages it runs, in pipeline order.
        gpus: by stage name, the device of each stage that has one; all the same within a process.
        host: the host that it runs on; ``None``: this one.
        place: what its machine is asked for by: the unit, or, of a unit on several hosts, the first of its processes there.
    """

    name: str
    unit: str
    group: str
    replica: int
    rank: int
    stages: tuple[StageConfig, ...]
    gpus: dict[str, int] = field(factory=dict)
    slot: int = 0
    host: str | None = None
    place: str = ""

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


def unit_names(group: str, replicas: int) -> list[str]:
    """Return the names of the units of a process group: its own, or one for each replica."""
    return [group] if replicas == 1 else [f"{group}.{slot}" for slot in range(replicas)]


MOST_PROCESSES = 1024
"""Processes that one stage may have. Each gets a name before anything runs."""

TOO_MANY = f"replicas times tp_size must be at most {MOST_PROCESSES}"


def has_too_many(stage: StageConfig) -> bool:
    """Return whether a stage asks for more processes than one may have."""
    return max(stage.replicas, 1) * max(stage.tp_size, 1) > MOST_PROCESSES


def process_names(unit: str, ranks: int) -> list[str]:
    """Return the names of the processes of a unit: its own, or one for each rank."""
    return [unit] if ranks == 1 else [f"{unit}_tp{rank}" for rank in range(ranks)]


@frozen
class Replica:
    """One unit of a process group.

    Attributes:
        slot: its place among the replicas of the config, which decides its devices and its host.
        number: unlike that of any other unit of the group in a run.
        unit: its name.
    """

    slot: int
    number: int
    unit: str


def plan(config: PipelineConfig, replicas: Mapping[str, Sequence[Replica]] | None = None) -> list[PlannedProcess]:
    """The processes of a valid pipeline, by group, replica and rank.

    Args:
        replicas: by group, its units, where they are not those of a start: some were replaced, added or taken away.

    Raises:
        ConfigError: a stage has too many processes.
    """
    planned = []
    for group, stages in process_groups(config).items():
        if has_too_many(stages[0]):
            raise ConfigError(f"stages[{stages[0].name}]: {TOO_MANY}")
        count, ranks = stages[0].replicas, stages[0].tp_size
        usual = [Replica(slot, slot, unit) for slot, unit in enumerate(unit_names(group, count))]
        for each in (replicas or {}).get(group, usual):
            hosts = [_host(stages[0], each.slot, rank) for rank in range(ranks)]
            names = process_names(each.unit, ranks)
            for rank, host in enumerate(hosts):
                gpus = {stage.name: gpu for stage in stages if (gpu := _gpu(stage, each.slot, rank)) is not None}
                place = each.unit if len(set(hosts)) == 1 else names[hosts.index(host)]
                what = (names[rank], each.unit, group, each.number, rank, tuple(stages), gpus, each.slot, host, place)
                planned.append(PlannedProcess(*what))
    return planned


def _host(stage: StageConfig, slot: int, rank: int) -> str | None:
    if not isinstance(stage.host, list):
        return stage.host
    return stage.host[slot if len(stage.host) == stage.replicas else slot * stage.tp_size + rank]


def _gpu(stage: StageConfig, slot: int, rank: int) -> int | None:
    if isinstance(stage.gpu, list):
        return stage.gpu[slot * stage.tp_size + rank]
    return stage.gpu if isinstance(stage.gpu, int) else None
