"""The relay of a world: few slots in the memory of the sender."""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Any

from omni_core.api import PeerDiedError, Relay, RelayError, RelayOperation, RelayOptions


class Pool(Relay):
    """A relay with few slots in the memory of the sender: they die with it."""

    has_empty = True
    has_view = True

    def __init__(self, options: RelayOptions) -> None:
        loop: Any = asyncio.get_running_loop()
        self._loop = loop
        self._address = loop.process.address
        self._most = options.settings["slots"]
        self._pools: dict[str, Pool] = loop.process.world.pools
        self._pools[self._address] = self
        self._slots: dict[int, tuple[bytearray, str | None]] = {}
        self._count = 0
        self._waiting: deque[asyncio.Future[None]] = deque()

    def reserve(self, nbytes: int, request_id: str | None = None) -> Any | None:
        if len(self._slots) >= self._most:
            return None
        memory = bytearray(nbytes)
        self._count += 1
        self._slots[self._count] = memory, request_id
        return memoryview(memory)

    def commit(self, memory: Any) -> Any:
        number = next(number for number, slot in self._slots.items() if slot[0] is memory.obj)
        return [self._address, number]

    async def empty(self, nbytes: int, request_id: str | None = None) -> Any:
        while (memory := self.reserve(nbytes, request_id)) is None:
            waiter = self._loop.create_future()
            self._waiting.append(waiter)
            await waiter
        return memory

    async def put_async(
        self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None
    ) -> RelayOperation:
        done = _Done()
        done.metadata = self.commit(tensor)
        return done

    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> RelayOperation:
        raise NotImplementedError

    def get_view(self, metadata: Any, request_id: str | None = None) -> memoryview:
        address, number = metadata
        pool = self._pools.get(address)
        if pool is None or not pool._loop.is_alive:
            raise PeerDiedError(f"{address} has ended")
        if number not in pool._slots:
            raise RelayError(f"slot {number} of {address} was freed")
        memory, _ = pool._slots.pop(number)
        pool._let_go_on()
        return memoryview(bytes(memory))

    def cleanup(self, request_id: str) -> None:
        for number in [number for number, slot in self._slots.items() if slot[1] == request_id]:
            del self._slots[number]
        self._let_go_on()

    def _let_go_on(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for each in waiting:
            if not each.done():
                each.set_result(None)

    def close(self) -> None:
        self._pools.pop(self._address, None)

    def statistics(self) -> dict[str, float]:
        return {"slots_in_use": float(len(self._slots))}


class _Done(RelayOperation):
    async def wait_for_completion(self, timeout: float | None = None) -> None:
        return
