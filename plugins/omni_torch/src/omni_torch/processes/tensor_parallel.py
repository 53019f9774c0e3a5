"""Tensor parallel ranks for model plugins: this process's rank, its part of each weight, and the sum over all ranks.

The runtime starts one process per rank of a stage with ``tp_size > 1`` and gives every factory that asks for them
``tp_rank``, ``tp_size`` and ``tp_rendezvous``. Rank 0's scheduler decides; the others repeat its inputs (decision
0006), so a model only has to shard its weights and to sum partial results (Megatron-LM, Shoeybi et al., 2019).
"""

from __future__ import annotations

import hashlib
import os
import socket
from contextlib import suppress
from datetime import timedelta
from fcntl import ioctl
from typing import Any

import torch
import torch.distributed as dist
from attrs import frozen

from omni_core.api import ConfigError, RandomStream
from omni_core.runtime_api import split_address

COLLECTIVE_SECONDS = 300.0
"""The time limit of one collective. The parent notices a dead rank earlier."""

_SIOCGIFADDR = 0x8915


@frozen
class Part:
    """Return the ``index``-th of ``count`` equal parts along dimension ``dim`` of a tensor."""

    dim: int
    index: int
    count: int

    def bounds(self, name: str, shape: tuple[int, ...]) -> tuple[slice, ...]:
        """Return the slices of a tensor of ``shape`` that make up this part.

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


def random_of(seed: int | None, request_id: str, ranks: int, stream: int = 0) -> RandomStream:
    """Return the random numbers of a request, which are the same on every rank, also without a seed."""
    if seed is None and ranks > 1:
        seed = int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "little")
    return RandomStream(seed, stream)


class TensorParallel:
    """The ranks of one stage. Size 1 needs no process group, and sums nothing."""

    def __init__(self, rank: int = 0, size: int = 1) -> None:
        self.rank, self.size = rank, size

    @classmethod
    def connect(cls, rank: int, size: int, rendezvous: str | None, device: str = "cpu") -> TensorParallel:
        """Join the process group; returns when all ranks have joined. NCCL if ``device`` is a GPU, gloo otherwise.

        Raises:
            ConfigError: several ranks, but no rendezvous.
        """
        if size > 1:
            if rendezvous is None:
                raise ConfigError("tp_rendezvous: required when tp_size is above 1; the runtime gives it")
            on_gpu = torch.device(device).type == "cuda"
            options: dict[str, Any] = {"device_id": torch.device(device)} if on_gpu else {}
            timeout = timedelta(seconds=COLLECTIVE_SECONDS)
            if rendezvous.startswith("tcp://"):
                options["store"] = _store(rank, size, *split_address(rendezvous), timeout)
            else:
                options["init_method"] = rendezvous
            backend = "nccl" if on_gpu else "gloo"
            dist.init_process_group(backend, rank=rank, world_size=size, timeout=timeout, **options)
        return cls(rank, size)

    def share(self, total: int, what: str) -> int:
        """Return each rank's share of ``total`` items.

        Raises:
            ConfigError: they cannot be shared equally.
        """
        if total % self.size:
            raise ConfigError(f"tp_size: {self.size} does not divide the model's {total} {what}")
        return total // self.size

    def part(self, dim: int) -> Part:
        """Return this rank's part of a tensor that is split along ``dim``."""
        return Part(dim, self.rank, self.size)

    def all_reduce(self, partial: torch.Tensor) -> torch.Tensor:
        """Sum every rank's ``partial``, in place: the same bits on every rank."""
        if self.size > 1:
            dist.all_reduce(partial)
        return partial

    def least(self, value: int, device: torch.device) -> int:
        """Return the least of every rank's ``value``. ``device``: the one that the ranks were connected for."""
        if self.size == 1:
            return value
        held = torch.tensor(value, device=device)
        dist.all_reduce(held, dist.ReduceOp.MIN)
        return int(held)

    def all_gather(self, part: torch.Tensor) -> torch.Tensor:
        """Return every rank's ``part``, of equal shapes, one after another along the last dimension: the same bits on every rank."""
        if self.size == 1:
            return part
        sent = part.contiguous().reshape(-1).view(torch.uint8)
        received = [torch.empty_like(sent) for _ in range(self.size)]
        dist.all_gather(received, sent)
        return torch.cat([each.view(part.dtype).view(part.shape) for each in received], -1)

    def gather(self, part: torch.Tensor) -> list[torch.Tensor] | None:
        """Return every rank's ``part``, of equal shapes, on rank 0, and ``None`` on the others. Bits are kept, whatever the dtype."""
        if self.size == 1:
            return [part]
        sent = part.contiguous().reshape(-1).view(torch.uint8)  # not every backend has every dtype
        received = [torch.empty_like(sent) for _ in range(self.size)] if self.rank == 0 else None
        dist.gather(sent, received)
        return None if received is None else [each.view(part.dtype).view(part.shape) for each in received]


def _store(rank: int, size: int, host: str, port: int, timeout: timedelta) -> Any:
    """Return the store where ranks on several hosts meet, served by rank 0 at its host's own address; torch's would be at every one."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_DGRAM) as way:
        way.connect((host, port))  # sends nothing
        interface = _interface(way.getsockname()[0])
    if (
        interface is not None
    ):  # else gloo goes by the host's name, which may stand for an address that others cannot reach
        os.environ.setdefault("GLOO_SOCKET_IFNAME", interface)
    store: Any = dist.TCPStore  # type: ignore[attr-defined]  # torch does not export it to type checkers
    if rank:
        return store(host, port, size, is_master=False, timeout=timeout)
    listener = socket.create_server((host, port), family=family).detach()
    return store(host, port, size, is_master=True, timeout=timeout, wait_for_workers=False, master_listen_fd=listener)


def _interface(address: str) -> str | None:
    """Return the name of the network interface with an IPv4 address, where the system tells (Linux)."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
        for _, name in socket.if_nameindex():
            with suppress(OSError):
                if socket.inet_ntoa(ioctl(asked, _SIOCGIFADDR, name.encode().ljust(256, b"\0"))[20:24]) == address:
                    return name
    return None


ALONE = TensorParallel()
"""The group of a model that is not sharded."""
