"""The book-keeping of a relay's pool: who has which bytes, who waits for some, in which order. The bytes are the relay's."""

from __future__ import annotations

import asyncio
from collections import deque
from itertools import count

from attrs import define, field

from omni_core.errors import RelayError
from omni_relay_kit.allocator import Allocator


@define(eq=False)
class Block:
    """One allocation. ``key`` is never used again; ``offered``: its bytes were put; ``freed`` are waiting for its end."""

    key: int
    offset: int
    nbytes: int
    request_id: str | None
    offered: bool = False
    freed: list[asyncio.Future[None]] = field(factory=list)


class BoundedPool:
    """Blocks of a pool of ``size`` bytes, given out in the order of asking. Used from one event loop.

    Args:
        owner: the process, and side: which of its stages' settings bound the pool; both for messages.
    """

    def __init__(self, size: int, owner: str, side: str = "sending") -> None:
        self.size = size
        self._owner = owner
        self._side = side
        self._allocator = Allocator(size)
        self._blocks: dict[int, Block] = {}
        self._waiting: deque[asyncio.Future[None]] = deque()
        self._keys = count(1)
        self._closed = False

    async def allocate(self, nbytes: int, request_id: str | None) -> Block:
        """A block of at least ``nbytes`` bytes; waits while there is no room.

        Raises:
            RelayError: it can never fit, or the pool was closed.
        """
        first = False
        while (block := self._try(nbytes, request_id, first)) is None:
            await self._turn(first)
            first = True
        self._wake_next()
        return block

    def try_allocate(self, nbytes: int, request_id: str | None) -> Block | None:
        """Like :meth:`allocate`, at once; ``None`` where that would have to wait."""
        return self._try(nbytes, request_id, first=False)

    def _try(self, nbytes: int, request_id: str | None, first: bool) -> Block | None:
        if Allocator.rounded(nbytes) > self.size:
            raise RelayError(
                f"{nbytes} bytes can never fit the relay pool of {self.size} bytes in process {self._owner!r}; "
                f"raise relay.slot_size_mb or relay.credits of the {self._side} stage"
            )
        if self._closed:
            raise RelayError("the relay is closed")
        offset = self._allocator.allocate(nbytes) if first or not self._waiting else None
        if offset is None:
            return None
        block = Block(next(self._keys), offset, nbytes, request_id)
        self._blocks[block.key] = block
        return block

    async def _turn(self, first: bool) -> None:
        """Sleep until something was freed. The one whose turn it was keeps its place."""
        turn = asyncio.get_running_loop().create_future()
        if first:
            self._waiting.appendleft(turn)
        else:
            self._waiting.append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if turn in self._waiting:
                self._waiting.remove(turn)
            self._wake_next()
            raise

    def _wake_next(self) -> None:
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                turn.set_result(None)
                return

    def get(self, key: int) -> Block | None:
        """The block of that key, while it lives."""
        return self._blocks.get(key)

    @property
    def offered(self) -> bool:
        """Whether any block's bytes were put and are not given back."""
        return any(block.offered for block in self._blocks.values())

    def at(self, offset: int) -> Block | None:
        """The block that begins at ``offset``, while it lives."""
        return next((block for block in self._blocks.values() if block.offset == offset), None)

    def of(self, request_id: str) -> list[Block]:
        """A request's blocks."""
        return [block for block in self._blocks.values() if block.request_id == request_id]

    def free(self, block: Block) -> None:
        """Give a block back. Idempotent."""
        if self._blocks.pop(block.key, None) is None:
            return
        self._allocator.free(block.offset, block.nbytes)
        for waiting in block.freed:
            if not waiting.done():
                waiting.set_result(None)
        self._wake_next()

    async def until_freed(self, block: Block) -> None:
        """Return when the block is given back; at once if it was."""
        if block.key in self._blocks:
            waiting = asyncio.get_running_loop().create_future()
            block.freed.append(waiting)
            await waiting

    def close(self) -> None:
        """Free everything; who waits gets a RelayError."""
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
