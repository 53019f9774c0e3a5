"""The Mooncake relay: remote reads by the Transfer Engine from the sender's registered pool; no metadata server is
needed.

The engine has its own threads, reports the end of a read only when polled, cannot cancel one, blocks while it notifies,
and takes a second to notice that a peer has ended. So one thread watches the reads in progress and sleeps while there
are none; acknowledgements go out in one for each peer, after the bytes have arrived; and the peer of a slow read is
probed there.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from attrs import define, field, frozen
from attrs.validators import in_, instance_of, optional

from omni_core.api import PeerDiedError, RelayError, RelayOptions
from omni_relay_kit.liveness import Incarnation
from omni_relay_kit.markers import MARK_BYTES
from omni_relay_kit.memory import HostMemory, Memory
from omni_relay_kit.pull_relay import PulledRelay, Read
from omni_relay_mooncake.namespace import NetworkNamespace
from omni_relay_mooncake.plugin import NOT_INSTALLED, missing_libraries
from omni_relay_mooncake.watcher import DONE, RUNNING, Transfer, Watcher

logger = logging.getLogger(__name__)

_INFINIBAND = Path("/sys/class/infiniband")
_SCRATCH_BYTES = 4096

_IDLE_SECONDS = 60.0
"""The time after which the thread of a peer that needs none ends."""


@frozen
class MooncakeSettings:
    """``relay.settings`` of the mooncake relay.

    Attributes:
        protocol: ``tcp`` or ``rdma``.
        device_name: the RDMA device, such as ``mlx5_0``; empty for the engine's choice.
        network_namespace: a name (``ip netns add NAME``) or path; the engine's sockets are in that namespace only.
    """

    protocol: str = field(default="tcp", validator=in_(("tcp", "rdma")))
    device_name: str = field(default="", validator=instance_of(str))
    network_namespace: str | None = field(default=None, validator=optional(instance_of(str)))


@define(eq=False)
class _Handle:
    """A read that the engine has begun, and the probe of its peer."""

    transfer: Transfer
    question: Future[bool] | None = None


@define(eq=False)
class _PeerThread:
    """A thread for calls that block until one peer answers, the last call, and its time."""

    executor: ThreadPoolExecutor = field(factory=lambda: ThreadPoolExecutor(1, "mooncake-notices"))
    last: Future[Any] = field(factory=Future)
    used: float = 0.0

    @property
    def is_idle(self) -> bool:
        return self.last.done() and time.monotonic() - self.used > _IDLE_SECONDS


class MooncakeRelay(PulledRelay):
    """See the module. GPU memory is registered if the engine was built with CUDA; otherwise transfers go through the
    host.
    """

    def __init__(self, options: RelayOptions) -> None:
        super().__init__(options)
        self._settings = options.read_settings(MooncakeSettings)
        if options.device != "cpu" and not _module().SUPPORT_CUDA:
            self.device = "cpu"
        self._incarnation = Incarnation.of_this_process()
        self._namespace: NetworkNamespace | None = None
        self._api: Any = None
        self._engine: Any = None
        self._registered: list[int] = []
        self._scratch: HostMemory | None = None
        self._session = ""
        self._threads: dict[str, _PeerThread] = {}
        self._watcher: Watcher | None = None

    def open_engine(self) -> None:
        settings = self._settings
        if settings.protocol == "rdma" and not (_INFINIBAND.is_dir() and any(_INFINIBAND.iterdir())):
            raise RelayError("relay.settings.protocol: this host has no RDMA device; set it to tcp")
        self._api = _module()
        if settings.network_namespace is not None:
            self._namespace = NetworkNamespace(settings.network_namespace)
        engine = self._api.TransferEngine()
        with self._in_namespace():
            code = engine.initialize(self.options.host, "P2PHANDSHAKE", settings.protocol, settings.device_name)
        if code != 0:
            raise RelayError(
                f"Mooncake's engine does not start on {self.options.host} ({settings.protocol}): code {code}"
            )
        self._engine = engine
        port = engine.get_rpc_port()
        self._session = f"{self.options.host}:{port}"
        if self._namespace is None:
            logger.warning(
                "mooncake: process %r listens on every network interface (port %d and another), without authentication: "
                "any host that reaches it can read and write the relay's memory; use relay.settings.network_namespace or a firewall",
                self.options.owner,
                port,
            )
        self._scratch = HostMemory(_SCRATCH_BYTES)
        self.register(self._scratch)
        loop = asyncio.get_running_loop()
        self._watcher = Watcher(engine, lambda: loop.call_soon_threadsafe(self.look))

    def register(self, memory: Memory) -> None:
        code = self._engine.register_memory(memory.address, memory.size)
        if code != 0:
            raise RelayError(
                f"Mooncake cannot register {memory.size} bytes on {memory.device} (code {code}); lower relay.slot_size_mb or "
                "relay.credits, or raise the limit on locked memory (ulimit -l)"
            )
        self._registered.append(memory.address)

    def _in_namespace(self) -> Any:
        """Run in the namespace of the engine's sockets, because the engine connects in the calling thread."""
        return contextlib.nullcontext() if self._namespace is None else self._namespace.entered()

    def peer_address(self) -> list[Any]:
        return [self._session, self._incarnation.plain()]

    def close_engine(self) -> None:
        assert self._watcher is not None
        for thread in self._threads.values():
            thread.executor.shutdown(wait=False, cancel_futures=True)
        self._watcher.close()
        for address in self._registered:
            self._engine.unregister_memory(address)
        self._registered.clear()
        self._engine = None
        if self._scratch is not None:
            self._scratch.close()
        if self._namespace is not None:
            self._namespace.close()

    def begin_read(self, peer: list[Any], remote: list[Any], local: Memory, offset: int, nbytes: int, key: int) -> Any:
        session, incarnation = peer
        Incarnation(*incarnation).check(session)
        with self._in_namespace():
            batch = self._engine.batch_transfer_async_read(session, [local.address + offset], [remote[0]], [nbytes])
        if batch <= 0:
            raise PeerDiedError(f"{session}, which held the bytes, cannot be reached; it has ended")
        assert self._watcher is not None
        return _Handle(self._watcher.watch(batch))

    def is_read(self, read: Read) -> bool:
        handle = read.handle
        state = handle.transfer.state  # read once, because the watcher's thread changes it
        if state == DONE:
            return True
        if state == RUNNING and not read.is_late:
            return False
        session, incarnation = read.peer
        Incarnation(*incarnation).check(session)
        if handle.question is None:
            handle.question = self._in_thread(session, _lives, self._engine, session)
        if not handle.question.done():
            return False
        if not handle.question.result():
            raise PeerDiedError(f"{session}, which held the bytes, does not answer; it has ended")
        if state != RUNNING:
            raise RelayError(f"Mooncake cannot read from {session} (state {state})")
        handle.question = None
        return False

    def give_up(self, read: Read) -> bool:
        return bool(read.handle.transfer.state != RUNNING)

    def acknowledge(self, read: Read) -> None:
        """Acknowledge. A notice travels with a transfer, so the block's first marker is read again, into unused memory."""
        assert self._scratch is not None
        notice = self._api.TransferNotify(read.token.hex(), str(read.key))
        where = [read.peer[0], self._scratch.address, read.remote[0], MARK_BYTES]
        self._in_thread(read.peer[0], _notify, self._engine, self._api.TransferOpcode.Read, where, notice)

    def acknowledged(self) -> Iterator[int]:
        mine = self.token.hex()
        for notice in self._engine.get_notifies():
            if notice.name == mine:
                yield int(notice.msg)

    def _in_thread(self, session: str, function: Any, engine: Any, *arguments: Any) -> Any:
        """Call what blocks, in a thread for each peer: one behind a network that is cut blocks for long."""

        def run() -> Any:
            with self._in_namespace():
                return function(engine, *arguments)

        thread = self._threads.get(session)
        if thread is None:
            for each in [name for name, other in self._threads.items() if other.is_idle]:
                self._threads.pop(each).executor.shutdown(wait=False)
            thread = self._threads[session] = _PeerThread()
        thread.last, thread.used = thread.executor.submit(run), time.monotonic()
        return thread.last


def _lives(engine: Any, session: str) -> bool:
    return bool(engine.send_probe(session) == 0)


def _notify(engine: Any, read: Any, where: list[Any], notice: Any) -> None:
    session, local, remote, nbytes = where
    if engine.transfer_sync(session, local, remote, nbytes, read, notice) != 0:
        logger.debug("the sender %s was not notified that its bytes were read; it has ended", session)


def _module() -> Any:
    """Import ``mooncake.engine`` without its log, which reports errors where there are none."""
    os.environ.setdefault("MC_LOG_LEVEL", "ERROR")
    try:
        import mooncake.engine
    except ImportError as error:
        raise RelayError(missing_libraries() or f"{NOT_INSTALLED} ({error})") from error
    return mooncake.engine
