"""Implementations with one deliberate mistake each. The suites must catch every one; peers import this module too."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from itertools import count
from typing import Any, ClassVar

from omni_core.errors import RelayError
from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage
from omni_core.scheduling.simple import SimpleScheduler
from omni_relay_shm.relay import ShmRelay


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
    async def _turn(self, first: bool = False) -> None:
        raise RelayError("the pool is full")


class WaitsForEver(ShmRelay):
    def _check(self, nbytes: int) -> None:
        return  # what never fits waits for room


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
            block = next(iter(self._blocks.values()))
            asyncio.get_running_loop().call_soon(self._copy, tensor, block)
        return operation

    def _copy(self, source: bytearray, block: Any) -> None:
        self._own().data(block.offset, len(source))[:] = source


class LeavesAThread(ShmRelay):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        threading.Thread(target=time.sleep, args=(30,), daemon=True).start()


class Polls(ShmRelay):
    def __init__(self, options: Any) -> None:
        super().__init__(options)
        self._poll = asyncio.get_running_loop().call_soon(self._look)

    def _look(self) -> None:
        self._poll = asyncio.get_running_loop().call_later(0.0001, self._look)

    def close(self) -> None:
        self._poll.cancel()
        super().close()


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
    def _finish(self, message: OutgoingMessage) -> None:
        super()._finish(message)
        self.outbox.put(message)


class IgnoresAbort(Wrong):
    def abort(self, request_id: str) -> None:
        return


class SwallowsErrors(Wrong):
    def _finish(self, message: OutgoingMessage) -> None:
        if message.type == "error":
            message = OutgoingMessage(message.request_id, "result", None)
        super()._finish(message)


class DiesOfAnError(Wrong):
    def _outcome(self, payload: StagePayload) -> OutgoingMessage:
        return OutgoingMessage(payload.request_id, "result", self._compute(payload))


class NeverStops(Wrong):
    def stop(self) -> None:
        return


class SpinsWhenIdle(Wrong):
    def _serve_once(self) -> bool:
        while not len(self.inbox) and not self.inbox.closed:
            continue
        return super()._serve_once()


def changes_its_input(payload: StagePayload) -> Any:
    result = compute(payload)
    payload.data["n"] = -1
    return result


class MutatesItsInput(Wrong):
    function = staticmethod(changes_its_input)


class MixesUpCompany(Wrong):
    """Gives a request the result of the one that waits behind it."""

    def _run(self, batch: list[StagePayload]) -> None:
        waiting: list[IncomingMessage] = self.inbox.drain()
        results = [compute(each.data if isinstance(each, IncomingMessage) else each) for each in [*batch, *waiting]
                   if "fail" not in (each.data.data if isinstance(each, IncomingMessage) else each.data)]  # fmt: skip
        for message in waiting:
            self.inbox.put(message)
        with self._lock:
            self._known.update(payload.request_id for payload in batch)
        for payload in batch:
            outcome = self._outcome(payload)
            if outcome.type == "result":
                outcome = OutgoingMessage(payload.request_id, "result", results[-1])
            self._finish(outcome)


class KeepsEverything(Wrong):
    def statistics(self) -> dict[str, float]:
        return {"running": 1.0}
