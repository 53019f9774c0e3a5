"""Implementations with one deliberate mistake each. The suites must catch every one; peers import this module too."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar

from omni_core.errors import PeerDiedError, RelayError
from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_core.scheduling.simple import SimpleScheduler
from omni_relay_shm.relay import ShmRelay, _Done


# --- relays ------------------------------------------------------------------------------------------------------------
class LosesTheSecondPut(ShmRelay):
    last: Any = None

    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> Any:
        operation = await super().put_async(tensor, request_id, dst_rank)
        unread = self.last is not None and self.statistics()["slots_in_use"] > 1
        self.last = operation if not unread else self.last
        return self.last


class LeaksOnAbort(ShmRelay):
    def cleanup(self, request_id: str) -> None:
        return


class WakesUpLate(ShmRelay):
    def _on_release(self) -> None:
        return  # a waiting put is not told that there is room


class ForgetsEarlyReleases(ShmRelay):
    async def wait_until_freed(self, block: Any) -> None:
        freed = asyncio.get_running_loop().create_future()  # without looking whether that has happened already
        block.freed.append(freed)
        await freed


class CompletesAtOnce(ShmRelay):
    async def wait_until_freed(self, block: Any) -> None:
        return


class RefusesWhenFull(ShmRelay):
    async def _allocate(self, nbytes: int, request_id: str | None) -> Any:
        self._own()
        if (block := self._pool.try_allocate(nbytes, request_id)) is None:
            raise RelayError("the pool is full")
        return self._in_slot(block)


class WaitsForEver(ShmRelay):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._pool._check = lambda nbytes: None  # type: ignore[method-assign]  # what never fits waits for room


class SendsGarbage(ShmRelay):
    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> Any:
        data = bytearray(memoryview(tensor).cast("B")) if memoryview(tensor).nbytes else bytearray()
        if len(data) > 50_000:
            data[-1] ^= 1
        return await super().put_async(data, request_id, dst_rank)


class ReadsLate(ShmRelay):
    """Keeps a reference to the source instead of its bytes."""

    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> Any:
        operation = await super().put_async(tensor, request_id, dst_rank)
        if isinstance(tensor, bytearray):
            block = next(iter(self._slots.values())).block
            asyncio.get_running_loop().call_soon(self._copy, tensor, block)
        return operation

    def _copy(self, source: bytearray, block: Any) -> None:
        self._own().data(block.offset, len(source))[:] = source


class LeavesAThread(ShmRelay):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()


class ZeroesTheTail(ShmRelay):
    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> Any:
        data = bytearray(memoryview(tensor).cast("B"))
        data[-len(data) // 16 :] = bytes(len(data[-len(data) // 16 :]))
        return await super().put_async(data, request_id, dst_rank)


class TravelsInItsMetadata(ShmRelay):
    """Sends the bytes along with what describes them."""

    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> Any:
        operation = await super().put_async(tensor, request_id, dst_rank)
        operation.metadata = [*operation.metadata, bytes(memoryview(tensor).cast("B"))]
        return operation

    def get_view(self, metadata: Any, request_id: str | None = None) -> memoryview:
        return super().get_view(metadata[:-1], request_id)


class BelievesAnything(ShmRelay):
    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> Any:
        if not isinstance(metadata, list):
            return _Done(metadata)
        return await super().get_async(metadata, dest_tensor, request_id)


class MistakesTheirsForMine(ShmRelay):
    """Mistakes its own put for the peer's with the same number."""

    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> Any:
        operation = await super().get_async(metadata, dest_tensor, request_id)
        mine = next((slot.block for slot in self._slots.values() if slot.number == metadata[5]), None)
        if mine is not None and mine.nbytes == len(dest_tensor):
            dest_tensor[:] = self._own().data(mine.offset, mine.nbytes)
        return operation


class EndsWithItsWaiter(ShmRelay):
    """Withdraws the put when a caller that waits for it is cancelled."""

    async def wait_until_freed(self, block: Any) -> None:
        try:
            await super().wait_until_freed(block)
        except asyncio.CancelledError:
            self.cleanup(block.request_id)
            raise


class KeepsWhatACancelledGetHeld(ShmRelay):
    kept: ClassVar[list[Any]] = []

    async def get_async(self, metadata: Any, dest_tensor: Any, request_id: str | None = None) -> Any:
        view = self.get_view(metadata, request_id)
        try:
            await asyncio.sleep(0.01)
        except asyncio.CancelledError:
            self.kept.append(view)
            raise
        memoryview(dest_tensor)[:] = view
        return _Done(metadata)


class MournsForEver(ShmRelay):
    """Stops reading from all peers after one has died."""

    mourning = False

    def _reach(self, *place: Any) -> Any:
        if self.mourning:
            raise PeerDiedError("a peer has died")
        try:
            return super()._reach(*place)
        except PeerDiedError:
            self.mourning = True
            raise

    def _let_go(self, token: bytes) -> None:
        self.mourning = True
        super()._let_go(token)


class OpensAgain(ShmRelay):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self.options = options

    def close(self) -> None:
        super().close()
        super().__init__(self.options)


class LosesWhatShouldOutliveIt(ShmRelay):
    bytes_outlive_sender = True


class LeavesADescriptor(ShmRelay):
    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> Any:
        os.open(os.devnull, os.O_RDONLY)
        return await super().put_async(tensor, request_id, dst_rank)


class Polls(ShmRelay):
    pause: ClassVar[float] = 0.0001

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._poll = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._poll = asyncio.get_running_loop().call_later(self.pause, self._look)

    def close(self) -> None:
        self._poll.cancel()
        super().close()


class PollsSlowly(Polls):
    """Polls too seldom to show in its CPU time."""

    pause = 0.05


class WritableViews(ShmRelay):
    def get_view(self, metadata: Any, request_id: str | None = None) -> memoryview:
        return memoryview(bytearray(super().get_view(metadata, request_id)))


# --- projections ---------------------------------------------------------------------------------------------------------
def changes_the_payload(payload: StagePayload) -> Any:
    payload.data["seen"] = True
    return {"n": payload.data["n"]}


def cannot_be_sent(payload: StagePayload) -> Any:
    return {"n": object()}


def hands_on_its_container(payload: StagePayload) -> Any:
    return payload.data


def differs_each_time(payload: StagePayload) -> Any:
    return {"n": next(_numbers)}


_numbers = count()


# --- schedulers ----------------------------------------------------------------------------------------------------------
def compute(payload: StagePayload) -> Any:
    if "fail" in payload.data:
        raise ValueError("a bad request")
    time.sleep(payload.data.get("sleep", 0.0))
    return {"double": 2 * payload.data["n"]}


def entry(payload: StagePayload) -> Any:
    """The first stage of a pipeline: its inputs become data."""
    return dict(payload.request.inputs)


class Wrong(SimpleScheduler):
    """A scheduler that computes as it should, to be spoilt."""

    function: ClassVar[Callable[[StagePayload], Any]] = staticmethod(compute)

    def __init__(self) -> None:
        super().__init__(type(self).function)


class AnswersTwice(Wrong):
    def put_out(self, message: OutgoingMessage) -> None:
        super().put_out(message)
        self.outbox.put(message)


class IgnoresAbort(Wrong):
    def abort(self, request_id: str) -> None:
        return


class AdmitsWhatWasAborted(Wrong):
    """An abort between reading a message and admitting it is forgotten."""

    def _run(self, batch: list[StagePayload]) -> None:
        self._aborted.clear()
        super()._run(batch)


class SwallowsErrors(Wrong):
    def put_out(self, message: OutgoingMessage) -> None:
        if message.type == "error":
            message = OutgoingMessage(message.request_id, "result", None)
        super().put_out(message)


class DiesOfAnError(Wrong):
    def _outcome(self, payload: StagePayload) -> OutgoingMessage:
        return OutgoingMessage(payload.request_id, "result", self._compute(payload))


class NeverStops(Wrong):
    def stop(self) -> None:
        return


class LooksNowAndThen(Wrong):
    def turn(self) -> bool:
        while not len(self.inbox) and not self.inbox.closed:
            time.sleep(0.02)
        return super().turn()


class SpinsWhenIdle(Wrong):
    def turn(self) -> bool:
        while not len(self.inbox) and not self.inbox.closed:
            continue
        return super().turn()


def changes_its_input(payload: StagePayload) -> Any:
    result = compute(payload)
    payload.data["n"] = -1
    return result


class MutatesItsInput(Wrong):
    function = staticmethod(changes_its_input)


class MixesUpCompany(Wrong):
    """Gives a request the result of the next one in the queue."""

    def _run(self, batch: list[StagePayload]) -> None:
        waiting: list[IncomingMessage] = self.inbox.drain()
        results = [compute(each.data if isinstance(each, IncomingMessage) else each) for each in [*batch, *waiting]
                   if "fail" not in (each.data.data if isinstance(each, IncomingMessage) else each.data)]  # fmt: skip
        for message in waiting:
            self.inbox.put(message)
        for payload in batch:
            outcome = self._outcome(payload)
            if outcome.type == "result":
                outcome = OutgoingMessage(payload.request_id, "result", results[-1])
            self.put_out(outcome)


class KeepsEverything(Wrong):
    def statistics(self) -> dict[str, float]:
        return {"running": 1.0}
