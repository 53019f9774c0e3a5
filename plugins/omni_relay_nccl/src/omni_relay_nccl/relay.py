"""The NCCL relay: torch.distributed point to point between the processes of one host, nccl on GPUs and gloo on CPUs.

There is no world of ranks, which would end with the first process that dies: each direction between two relays is a
group of two, made at the first transfer and dropped when either end is gone. The default process group is not used.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import socket
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as distributed
from attrs import define, field, frozen
from attrs.validators import in_

from omni_core.api import RelayError, RelayOptions, watched
from omni_relay_kit.liveness import Incarnation
from omni_relay_kit.memory import Memory
from omni_relay_kit.pull_relay import PulledRelay, Read
from omni_relay_nccl.channel import End, Transfer
from omni_relay_nccl.pairs import Incoming, Outgoing

_BACKLOG = 128


@frozen
class NcclSettings:
    """``relay.settings`` of the nccl relay.

    Attributes:
        backend: ``auto`` uses nccl if this process can; ``nccl`` is an error if it cannot; ``gloo`` never uses it.
    """

    backend: str = field(default="auto", validator=in_(("auto", "nccl", "gloo")))


@define(eq=False)
class _Handle:
    source: Incoming
    transfer: Transfer


class NcclRelay(PulledRelay):
    """See the module. If NCCL cannot be used, ``device`` is ``"cpu"`` regardless of the options."""

    needs_polling = False

    def __init__(self, options: RelayOptions) -> None:
        super().__init__(options)
        backend = options.read_settings(NcclSettings).backend
        reason = _why_not_nccl(options.device)
        if backend == "nccl" and reason:
            raise RelayError(f"relay.settings.backend: nccl cannot be used, {reason}; set it to auto or gloo")
        self._mine = End("gloo") if reason or backend == "gloo" else End("nccl", _gpu(options.device))
        if self._mine.backend == "gloo":
            self.device = "cpu"
        self._path = os.path.join(options.directory, f"nccl-{self.token.hex()[:16]}.sock")
        self._incarnation = Incarnation.of_this_process()
        self._listener: socket.socket | None = None
        self._server: asyncio.Future[asyncio.AbstractServer] | None = None
        self._readers: set[Outgoing] = set()
        self._sources: dict[str, Incoming] = {}
        self._taken: list[int] = []

    def open_engine(self) -> None:
        if not os.path.isdir(self.options.directory):
            raise RelayError(f"the nccl relay needs the run's private folder, and {self.options.directory!r} is none")

    def register(self, memory: Memory) -> None:
        """Do nothing: any memory can be sent."""

    def peer_address(self) -> list[Any]:
        if self._listener is None:
            self._listen(self._path)
        return [self._path, self._incarnation.plain()]

    def _listen(self, path: str) -> None:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(path)
            listener.listen(_BACKLOG)
        except OSError as error:
            listener.close()
            raise RelayError(f"the nccl relay cannot listen at {path}: {error}") from error
        self._listener = listener
        loop = asyncio.get_running_loop()
        self._server = watched(loop.create_unix_server(self._reader, sock=listener), f"listening at {path}")

    def _reader(self) -> asyncio.Protocol:
        reader = Outgoing(self._mine, self.device, self.offered_bytes, self._was_taken, self._readers.discard)
        self._readers.add(reader)
        return reader.wire

    def _was_taken(self, key: int) -> None:
        self._taken.append(key)
        self.look()

    def close(self) -> None:
        """Close. The threads end first, so that nothing writes to the pools after that."""
        if not self.closed:
            sides: list[Outgoing | Incoming] = [*self._readers, *self._sources.values()]
            for side in sides:
                side.close()
            for side in sides:
                side.join()
        super().close()

    def close_engine(self) -> None:
        if self._server is not None and self._listener is not None:
            if self._server.done() and not self._server.cancelled():
                self._server.result().close()
            self._server.cancel()
            self._listener.close()
            with contextlib.suppress(OSError):
                os.unlink(self._path)

    def begin_read(self, peer: list[Any], remote: list[Any], local: Memory, offset: int, nbytes: int, key: int) -> Any:
        path, incarnation = peer
        sender = Incarnation(*incarnation)
        if not sender.is_here:
            raise RelayError(
                "the bytes are on another host (or in another container): the nccl relay is for one host; set relay_backend to "
                "nixl or mooncake"
            )
        sender.check(path)
        if path not in self._sources:
            self._sources[path] = Incoming(path, self.options.owner, self._mine, self.device, self.look, self._forget)
        source = self._sources[path]
        return _Handle(source, source.read(remote[0], key, local.part(offset, nbytes)))

    def _forget(self, path: str) -> None:
        self._sources.pop(path, None)

    def is_read(self, read: Read) -> bool:
        return bool(read.handle.source.state(read.handle.transfer))

    def give_up(self, read: Read) -> bool:
        return bool(read.handle.source.let_go(read.handle.transfer))

    def acknowledge(self, read: Read) -> None:
        read.handle.source.taken(read.handle.transfer)

    def acknowledged(self) -> Iterator[int]:
        taken, self._taken = self._taken, []
        yield from taken


def _why_not_nccl(device: str) -> str | None:
    """Return why this process cannot use NCCL, or ``None`` if it can."""
    if not distributed.is_available() or not distributed.is_gloo_available():
        raise RelayError("this torch is built without torch.distributed and gloo; install another build")
    if device == "cpu":
        return "the relay's device is the cpu"
    if not distributed.is_nccl_available():
        return "this torch is built without it"
    return None if torch.cuda.is_available() else "there is no CUDA device"


def _gpu(device: str) -> str:
    """Return the UUID of a GPU, which is the same in processes with different CUDA_VISIBLE_DEVICES."""
    return str(torch.cuda.get_device_properties(device).uuid)
