"""A process group of two, and the thread that waits for its transfers, in first-come order.

NCCL matches sends with receives by order alone, so both sides request the same transfers in the same order. Waiting
blocks, and is necessary: gloo work does not complete unless it is waited for.
"""

from __future__ import annotations

import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from queue import SimpleQueue
from typing import Any

import torch
import torch.distributed as distributed
from attrs import define, field, frozen

from omni_core.api import Buffer, as_tensor, copy, flat
from omni_relay_nccl.meeting import MeetingStore

SENDER, RECEIVER = 0, 1
"""The ranks of a pair."""

_CONNECT = timedelta(seconds=5)
"""Time limit for gloo to connect two processes that know each other's addresses; it tries five times."""

_STALLED = timedelta(seconds=60)
"""Time limit for a piece of a gloo transfer. Only a suspended or dead peer takes that long."""

_NO_LIMIT = timedelta(days=30)

_PIECE_BYTES = 2**20
_PIECES = 2
"""Gloo sends pieces of this size, and this many at once."""

_CLOSE_SECONDS = 2.0


@frozen
class End:
    """One side of a pair: its backend, ``"nccl"`` or ``"gloo"``, and with nccl its GPU."""

    backend: str
    gpu: str = ""


def common_backend(mine: End, theirs: End) -> str:
    """Return the backend of a pair. NCCL needs two GPUs: otherwise, and within one GPU, gloo copies through the host."""
    both = mine.backend == theirs.backend == "nccl" and mine.gpu != theirs.gpu
    return "nccl" if both else "gloo"


@define(eq=False)
class Transfer:
    """One block to send or to fill, ``nbytes`` at ``buffer``. It ends once, with an ``error`` or without."""

    buffer: Buffer | None
    number: int
    nbytes: int
    ended: bool = False
    error: str | None = None
    lock: threading.Lock = field(factory=threading.Lock)

    def fill(self, start: int, piece: Any) -> None:
        """Copy what was received, unless the block was detached meanwhile."""
        with self.lock:
            if self.buffer is not None:
                copy(self.buffer[start : start + piece.numel()], flat(piece))

    def take_away(self) -> None:
        """Called on the event loop: discard the bytes of later calls of :meth:`fill`."""
        with self.lock:
            self.buffer = None


class _Group(ABC):
    """A group of two processes."""

    fills_by_copy = True
    """True if only :meth:`Transfer.fill` writes a block."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._group: Any = None

    @abstractmethod
    def move(self, transfer: Transfer) -> None:
        """Send or fill a block, depending on our rank; returns when that is done."""

    def _begin(self, tensor: Any, number: int) -> Any:
        if self._rank == SENDER:
            return self._group.send([tensor], RECEIVER, number)
        return self._group.recv([tensor], SENDER, number)

    def abort(self) -> None:
        """Called from another thread: make :meth:`move` fail, if the backend can."""
        return


class _Gloo(_Group):
    """Over TCP on the loopback interface: both processes are on this host.

    When a peer dies in the middle of a message, gloo does not report it to the waiting thread, which only returns at
    its time limit. So it receives into its own memory, and blocks are free as soon as the wire has ended.
    """

    def __init__(self, store: MeetingStore, rank: int) -> None:
        super().__init__(rank)
        gloo: Any = distributed.ProcessGroupGloo
        options = gloo._Options()
        options._devices = [gloo.create_device(hostname="127.0.0.1")]
        options._timeout = _CONNECT
        self._group = gloo(store, rank, 2, options)
        count = _PIECES if rank == RECEIVER else 0
        self._landing = [torch.empty(_PIECE_BYTES, dtype=torch.uint8) for _ in range(count)]

    def move(self, transfer: Transfer) -> None:
        under_way: deque[tuple[int, Any, Any]] = deque()
        for index, start in enumerate(range(0, transfer.nbytes, _PIECE_BYTES)):
            if len(under_way) == _PIECES:
                self._finish(transfer, *under_way.popleft())
            piece = self._piece(transfer, index, start, min(_PIECE_BYTES, transfer.nbytes - start))
            under_way.append((start, piece, self._begin(piece, transfer.number)))
        while under_way:
            self._finish(transfer, *under_way.popleft())

    def _piece(self, transfer: Transfer, index: int, start: int, nbytes: int) -> Any:
        if self._rank == RECEIVER:
            return self._landing[index % _PIECES][:nbytes]
        return as_tensor(transfer.buffer[start : start + nbytes]).cpu()  # type: ignore[index]  # it is never taken away

    def _finish(self, transfer: Transfer, start: int, piece: Any, work: Any) -> None:
        work.wait(_STALLED)
        if self._rank == RECEIVER:
            transfer.fill(start, piece)


class _Nccl(_Group):
    fills_by_copy = False

    def __init__(self, store: MeetingStore, rank: int, device: str) -> None:
        super().__init__(rank)
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = _NO_LIMIT
        self._aborted = False
        self._device = torch.device(device)
        with _without_watchdog(), torch.cuda.device(self._device):
            self._group = distributed.ProcessGroupNCCL(store, rank, 2, options)
            self._stream: Any = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]

    def move(self, transfer: Transfer) -> None:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._begin(transfer.buffer, transfer.number).wait()
            self._stream.synchronize()
        if self._aborted:
            raise RuntimeError("the communicator was aborted")

    def abort(self) -> None:
        self._aborted = True
        self._group.abort()


_ENVIRONMENT = threading.Lock()


@contextmanager
def _without_watchdog() -> Iterator[None]:
    """Leave errors of groups made meanwhile to us: torch's watchdog ends the whole process when a peer is gone."""
    ours = {"TORCH_NCCL_ASYNC_ERROR_HANDLING": "0", "TORCH_NCCL_ENABLE_MONITORING": "0"}
    with _ENVIRONMENT:
        before = {name: os.environ.get(name) for name in ours}
        os.environ.update(ours)
        try:
            yield
        finally:
            for name, value in before.items():
                if value is None:
                    del os.environ[name]
                else:
                    os.environ[name] = value


def meet(backend: str, store: MeetingStore, rank: int, device: str) -> _Group:
    """Make a group with the process at the store's other end, which calls this with the other rank.

    Raises:
        RuntimeError: the other process does not join.
    """
    return _Nccl(store, rank, device) if backend == "nccl" else _Gloo(store, rank)


class Channel:
    """See the module.

    Args:
        make: joins the peer's group; called in the thread.
        on_end: called in the thread after each transfer.
        name: of the thread.
    """

    def __init__(self, make: Callable[[], _Group], on_end: Callable[[Transfer], object], name: str) -> None:
        self._make = make
        self._on_end = on_end
        self._group: _Group | None = None
        self._error: str | None = None
        self._asked: SimpleQueue[Transfer | None] = SimpleQueue()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    def ask(self, transfer: Transfer) -> None:
        """Queue a transfer after all earlier ones."""
        self._asked.put(transfer)

    def _run(self) -> None:
        self._try(self._meet)
        while (transfer := self._asked.get()) is not None:
            self._try(self._move, transfer)
            transfer.error = self._error
            transfer.ended = True
            self._on_end(transfer)
        self._group = None

    def _try(self, step: Callable[..., None], *arguments: Any) -> None:
        """Do a step, unless one has failed, because both sides are out of step then."""
        try:
            if self._error is None:
                step(*arguments)
        except Exception as error:
            self._error = str(error) or type(error).__name__

    def _meet(self) -> None:
        self._group = self._make()

    def _move(self, transfer: Transfer) -> None:
        assert self._group is not None
        self._group.move(transfer)

    def close(self) -> None:
        """End the thread: queued transfers fail, and so does the current one if the backend can abort it."""
        self._error = self._error or "the relay was closed"
        self._asked.put(None)
        group = self._group
        if group is not None:
            group.abort()

    @property
    def fills_by_copy(self) -> bool:
        """True if a block that was detached from its transfer is free."""
        return self._group is None or self._group.fills_by_copy

    def join(self) -> None:
        """Wait until the thread has ended. One that gloo blocks, because the peer is suspended or was killed, ends
        within a minute.
        """
        self._thread.join(_CLOSE_SECONDS)
