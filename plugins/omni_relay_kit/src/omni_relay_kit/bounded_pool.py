"""The bookkeeping of a relay's pool: used blocks, and its back-pressure, the queue of transfers that wait for memory. It holds no
bytes.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable
from itertools import count

from attrs import define, field, frozen

from omni_core.api import RelayCapacityError, RelayError, RelayFullError
from omni_relay_kit.allocator import Allocator


@define(eq=False)
class Block:
    """One allocation. ``key`` is never used again; ``offered``: its bytes were put; ``freed``: futures that wait for
    its release.
    """

    key: int
    offset: int
    nbytes: int
    request_id: str | None
    offered: bool = False
    freed: list[asyncio.Future[None]] = field(factory=list)


@frozen
class Patience:
    """Limits in seconds on the wait of an allocation while no block is released, for pools whose readers may keep
    blocks.

    Attributes:
        holding: for a request that holds blocks of the pool already: requests that hold some and want more could wait for each
            other for ever.
        stuck: for any other request: the readers may wait for a sender that waits for its own pool.
        still_stuck: for the next one, after an allocation has failed for that reason and no block was released since.
    """

    holding: float = 0.05
    stuck: float = 5.0
    still_stuck: float = 0.5


class BoundedPool:
    """Blocks of a pool of ``size`` bytes, allocated in first-come order. Used from one event loop.

    Args:
        owner: the process, and side: the stage whose settings bound the pool; both for messages.
        patience: the limits on waiting while no block is released; ``None``: no limit.
        prepare: called before every attempt to allocate; frees blocks that readers have released. Return False to prevent allocation.
        on_wait: called when an allocation begins to wait.
    """

    def __init__(
        self,
        size: int,
        owner: str,
        side: str = "sending",
        patience: Patience | None = None,
        prepare: Callable[[], bool] = lambda: True,
        on_wait: Callable[[], None] = lambda: None,
    ) -> None:
        self.size = size
        self.patience = patience
        self._owner = owner
        self._side = side
        self._prepare = prepare
        self._on_wait = on_wait
        self._allocator = Allocator(size)
        self._blocks: dict[int, Block] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._keys = count(1)
        self._moved = 0.0  # time of the last allocation or release
        self._closed = False

    async def allocate(self, nbytes: int, request_id: str | None) -> Block:
        """Return a block of at least ``nbytes`` bytes; waits until there is enough memory.

        Raises:
            RelayCapacityError: it can never fit. RelayError: the pool was closed.
            RelayFullError: it has waited for as long as :attr:`patience` allows.
        """
        if (block := self.try_allocate(nbytes, request_id)) is not None:
            return block
        try:
            first = False
            while block is None:
                await self._turn(request_id, first)
                first = True  # it keeps its place in the queue until there is enough
                block = self._try(nbytes, request_id)
        finally:
            self.wake_next()
        return block

    def try_allocate(self, nbytes: int, request_id: str | None) -> Block | None:
        """Like :meth:`allocate`, without waiting; ``None`` if it would have to wait."""
        self._check(nbytes)
        return None if self._waiting else self._try(nbytes, request_id)

    def _check(self, nbytes: int) -> None:
        if Allocator.rounded(nbytes) > self.size:
            raise RelayCapacityError(
                f"{nbytes} bytes can never fit the relay pool of {self.size} bytes in process {self._owner!r}; "
                f"raise relay.slot_size_mb or relay.credits of the {self._side} stage"
            )
        if self._closed:
            raise RelayError("the relay is closed")

    def _try(self, nbytes: int, request_id: str | None) -> Block | None:
        self._check(nbytes)
        offset = self._allocator.allocate(nbytes) if self._prepare() else None
        if offset is None:
            return None
        block = Block(next(self._keys), offset, nbytes, request_id)
        self._blocks[block.key] = block
        self._moved = time.monotonic()
        return block

    async def _turn(self, request_id: str | None, first: bool) -> None:
        """Wait until a block was freed.

        Raises:
            RelayFullError: none was freed in time.
        """
        begin = time.monotonic()
        turn = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        self._on_wait()
        try:
            while not turn.done():
                left = self._patience_left(request_id, begin)
                if left is not None and left <= 0:
                    raise RelayFullError("the relay pool is full, and no block was released for some time")
                await asyncio.wait([turn], timeout=left)
        finally:
            if turn in self._waiting:
                self._waiting.remove(turn)

    def _patience_left(self, request_id: str | None, begin: float) -> float | None:
        """Return the seconds that a request that waits since ``begin`` may still wait, unless a block is released
        meanwhile.
        """
        patience, now = self.patience, time.monotonic()
        if patience is None:
            return None
        if any(block.request_id == request_id for block in self._blocks.values()):
            return self._moved + patience.holding - now
        left = max(self._moved, begin) + patience.stuck - now
        if left <= 0:
            self._moved = now + patience.still_stuck - patience.stuck
        return left

    def wake_next(self) -> None:
        """Wake the first in the queue."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def get(self, key: int) -> Block | None:
        """Return the block with that key, or ``None`` if it was freed."""
        return self._blocks.get(key)

    @property
    def offered(self) -> bool:
        """True if the bytes of any block were put and not released."""
        return any(block.offered for block in self._blocks.values())

    @property
    def is_waited_for(self) -> bool:
        """True if an allocation waits for memory, or a caller for the release of a block."""
        return bool(self._waiting) or any(block.freed for block in self._blocks.values())

    def at(self, offset: int) -> Block | None:
        """Return the block that begins at ``offset``, or ``None`` if it was freed."""
        return next((block for block in self._blocks.values() if block.offset == offset), None)

    def of(self, request_id: str) -> list[Block]:
        """Return a request's blocks."""
        return [block for block in self._blocks.values() if block.request_id == request_id]

    def free(self, block: Block) -> None:
        """Free a block. Idempotent."""
        if self._blocks.pop(block.key, None) is None:
            return
        self._allocator.free(block.offset, block.nbytes)
        self._moved = time.monotonic()
        for waiting in block.freed:
            if not waiting.done():
                waiting.set_result(None)
        self.wake_next()

    async def until_freed(self, block: Block) -> None:
        """Wait until the block is freed; return at once if it was."""
        if block.key in self._blocks:
            waiting = asyncio.get_running_loop().create_future()
            block.freed.append(waiting)
            self._on_wait()
            await waiting

    def close(self) -> None:
        """Free everything. Pending allocations raise a RelayError."""
        self._closed = True
        for block in list(self._blocks.values()):
            self.free(block)
        waiting, self._waiting = self._waiting, deque()
        for turn in waiting:
            if not turn.done():
                turn.set_result(None)

    @property
    def bytes_in_use(self) -> int:
        return self._allocator.in_use

    def __len__(self) -> int:
        return len(self._blocks)
