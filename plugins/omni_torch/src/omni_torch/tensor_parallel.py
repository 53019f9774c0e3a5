"""Tensor parallel ranks for model plugins: who am I, which part of a weight is mine, and the sum over all ranks.

The runtime starts one process per rank of a stage with ``tp_size > 1`` and gives every factory that asks for them ``tp_rank``,
``tp_size`` and ``tp_rendezvous``. Rank 0's scheduler decides; the others repeat what it sees (decision 0006), so all a model has
to do is to shard its weights and to sum partial results (Megatron-LM, Shoeybi et al., 2019).
"""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen

from omni_core.errors import ConfigError

COLLECTIVE_SECONDS = 300.0
"""How long a rank waits for the others in one collective. A rank that has died is noticed earlier, by its parent."""


@frozen
class Part:
    """The ``index``-th of ``count`` equal parts along dimension ``dim`` of a tensor."""

    dim: int
    index: int
    count: int

    def bounds(self, name: str, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """The slices of a tensor of ``shape`` that make up this part.

        Raises:
            ConfigError: the dimension is not a multiple of ``count``.
        """
        length = shape[self.dim]
        if length % self.count:
            raise ConfigError(
                f"tp_size: {self.count} ranks cannot share dimension {self.dim} of {name!r}, {length} long"
            )
        step = length // self.count
        begin = self.index * step
        return (*(slice(None) for _ in range(self.dim)), slice(begin, begin + step))


class TensorParallel:
    """The ranks of one stage. Size 1 needs no process group, and sums nothing."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def connect(cls, rank: int, size: int, rendezvous: str | None, device: str = "cpu") -> TensorParallel:
        """Meet the other ranks; returns when all are there. NCCL where ``device`` is a GPU, gloo otherwise.

        Raises:
            ConfigError: several ranks, but nowhere to meet.
        """
        if size > 1:
            if rendezvous is None:
                raise ConfigError("tp_rendezvous: required when tp_size is above 1; the runtime gives it")
            on_gpu = torch.device(device).type == "cuda"
            options: dict[str, Any] = {"device_id": torch.device(device)} if on_gpu else {}
            dist.init_process_group(
                "nccl" if on_gpu else "gloo",
                init_method=rendezvous,
                rank=rank,
                world_size=size,
                timeout=timedelta(seconds=COLLECTIVE_SECONDS),
                **options,
            )
        return cls(rank, size)

    def share(self, total: int, what: str) -> int:
        """How many of ``total`` things each rank has.

        Raises:
            ConfigError: they cannot be shared equally.
        """
        if total % self.size:
            raise ConfigError(f"tp_size: {self.size} does not divide the model's {total} {what}")
        return total // self.size

    def part(self, dim: int) -> Part:
        """This rank's part of a tensor that is split along ``dim``."""
        return Part(dim, self.rank, self.size)

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """The sum of every rank's ``partial``, in place: the same bits on every rank."""
        if self.size > 1:
            dist.all_reduce(partial)
        return partial


ALONE = TensorParallel()
"""A model that is not sharded."""
