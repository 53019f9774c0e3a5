"""Transfer with a relay and a control plane in memory: the way that bytes take, the waits, and the time on the event
loop.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Coroutine
from typing import Any

import numpy as np
import pytest

from omni_core.errors import CodecError, RelayError, RelayFullError
from omni_core.protocol.messages import DataReadyMessage, OmniRequest, StagePayload
from omni_core.relay import transfer as transfer_module
from omni_core.relay.transfer import Encodings, Sent, Transfer


class Control:
    """Records the messages sent."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, DataReadyMessage, tuple[str, str]]] = []
        self.near = {"peer"}

    def is_near(self, endpoint: str) -> bool:
        return endpoint in self.near

    def send(self, endpoint: str, message: DataReadyMessage, work: tuple[str, str]) -> None:
        self.sent.append((endpoint, message, work))


class Operation:
    def __init__(self, metadata: Any, waits: list[str], kind: str) -> None:
        self.metadata, self._waits, self._kind = metadata, waits, kind

    async def wait_for_completion(self, timeout: float | None = None) -> None:
        self._waits.append(self._kind)
        await asyncio.sleep(0)


class MemoryRelay:
    """A relay in this process with ``room`` puts at a time."""

    device = "cpu"

    def __init__(self, *, room: int = 1, has_empty: bool = True, has_view: bool = True) -> None:
        self.room, self.has_empty, self.has_view = room, has_empty, has_view
        self.freed = asyncio.Event()
        self.is_stuck = False
        self.offered: list[Any] = []
        self.calls: list[str] = []

    def reserve(self, nbytes: int, request_id: str | None = None) -> memoryview | None:
        if not self.has_empty or len(self.offered) >= self.room:
            return None
        return memoryview(bytearray(nbytes))

    def commit(self, memory: memoryview) -> int:
        self.offered.append(memory)
        return len(self.offered) - 1

    async def empty(self, nbytes: int, request_id: str | None = None) -> memoryview:
        async with asyncio.timeout(10):  # as any relay may, and only in a task
            if self.is_stuck:
                raise RelayFullError("for ever")
            await self.freed.wait()
        return memoryview(bytearray(nbytes))

    async def put_async(self, tensor: Any, request_id: str | None = None, dst_rank: int | None = None) -> Operation:
        async with asyncio.timeout(10):
            return Operation(self.commit(tensor), self.calls, "put")

    def get_view(self, metadata: int, request_id: str | None = None) -> memoryview:
        return memoryview(self.offered[metadata]).toreadonly()

    async def get_async(self, metadata: int, dest_tensor: Any, request_id: str | None = None) -> Operation:
        async with asyncio.timeout(10):
            dest_tensor[:] = self.offered[metadata]
        return Operation(None, self.calls, "get")

    def cleanup(self, request_id: str) -> None:
        self.calls.append("cleanup")


class OneRelay:
    """A table with one relay, which reaches ``peer``."""

    def __init__(self, relay: MemoryRelay) -> None:
        self._relay = relay

    def device_towards(self, endpoint: str) -> str:
        return "cpu"

    def towards(self, endpoint: str) -> tuple[str, MemoryRelay]:
        if endpoint != "peer":
            raise RelayError(f"no relay reaches {endpoint}")
        return "memory", self._relay

    def named(self, name: str) -> MemoryRelay:
        assert name == "memory"
        return self._relay


def at_once(step: Coroutine[Any, Any, Any]) -> Any:
    """Return the result of a coroutine that does not wait."""
    with pytest.raises(StopIteration) as ended:
        step.send(None)
    return ended.value.value


def make(relay: MemoryRelay) -> tuple[Transfer, Control]:
    control = Control()
    return Transfer(control, OneRelay(relay)), control  # type: ignore[arg-type]


MESSAGE = {"request_id": "r", "stage": "b", "from_stage": "a"}
LARGE = {"samples": np.arange(50_000, dtype=np.float32)}


def send(transfer: Transfer, value: Any, endpoint: str = "peer") -> Coroutine[Any, Any, Sent]:
    return transfer.send(endpoint, value, **MESSAGE)


async def test_small_values_are_inline_and_sent_and_read_at_once() -> None:
    transfer, control = make(MemoryRelay())
    for value in ({"words": ["a", 1]}, {"samples": np.arange(1000, dtype=np.float32)}):
        sent = at_once(send(transfer, value))
        endpoint, message, work = control.sent.pop()
        assert (endpoint, work, message.relay_metadata) == ("peer", ("r", "b"), None)
        assert (sent.by, sent.waited) == ("inline", 0.0)
        assert sent.nbytes == len(message.header or b"") + len(message.inline or b"")
        assert str(at_once(transfer.read(message))) == str(value)


async def test_a_value_for_several_stages_is_encoded_once() -> None:
    transfer, control = make(MemoryRelay(room=2))
    encodings: Encodings = {}
    for value in (LARGE, LARGE, {"words": 1}):
        at_once(transfer.send("peer", value, encodings, **MESSAGE))
    first, second, other = (message.header for _, message, _ in control.sent)
    assert first is second
    assert other != first
    assert len(encodings) == 2
    for _, message, _ in control.sent[:2]:
        np.testing.assert_array_equal(at_once(transfer.read(message))["samples"], LARGE["samples"])


async def test_handles_of_gpu_memory_are_made_for_each_stage() -> None:
    control = Control()
    transfer = Transfer(control, OneRelay(MemoryRelay()), {"b": ["peer"]})  # type: ignore[arg-type]
    encodings: Encodings = {}
    for _ in range(2):
        at_once(transfer.send("peer", {"words": 1}, encodings, **MESSAGE))
    assert not encodings
    assert control.sent[0][1].header is not control.sent[1][1].header


async def test_a_peer_on_another_machine_gets_no_handles_though_its_device_has_the_same_number() -> None:
    control = Control()
    transfer = Transfer(control, OneRelay(MemoryRelay()), {"b": ["peer"]})  # type: ignore[arg-type]
    control.near.clear()  # it has moved
    encodings: Encodings = {}
    at_once(transfer.send("peer", {"words": 1}, encodings, **MESSAGE))
    assert encodings


async def test_a_value_beyond_the_configured_size_goes_by_the_relay() -> None:
    few, many = ({"samples": np.arange(count, dtype=np.float32)} for count in (1, 1000))
    cases = [
        (few, 0, "memory"),
        (few, 4, "inline"),
        (many, 0, "memory"),
        (many, 3999, "memory"),
        (many, 4000, "inline"),
    ]
    for value, inline_bytes, by in cases:
        control, relay = Control(), MemoryRelay()
        transfer = Transfer(control, OneRelay(relay), inline_bytes=inline_bytes)  # type: ignore[arg-type]
        assert at_once(send(transfer, value)).by == by


async def test_large_values_go_by_the_relay_at_once_while_its_pool_has_room() -> None:
    transfer, control = make(MemoryRelay())
    sent = at_once(send(transfer, LARGE))
    ((_, message, _),) = control.sent
    assert message.inline is None
    assert message.relay_metadata == ["memory", 200_000, 0]
    assert (sent.by, sent.waited) == ("memory", 0.0)
    assert np.array_equal(at_once(transfer.read(message))["samples"], LARGE["samples"])


async def test_gets_are_awaited_and_puts_are_not() -> None:
    """As the contract says: the slot of a put is freed by the relay itself, without a cleanup."""
    relay = MemoryRelay(has_empty=False, has_view=False)
    transfer, control = make(relay)
    await asyncio.gather(send(transfer, LARGE))
    ((_, message, _),) = control.sent
    await asyncio.gather(transfer.read(message))
    assert relay.calls == ["get"]


async def test_a_full_pool_is_waited_for_in_a_task() -> None:
    relay = MemoryRelay(room=0)
    transfer, control = make(relay)
    sending = asyncio.ensure_future(send(transfer, LARGE))
    for _ in range(3):
        await asyncio.sleep(0)  # it waits by now, however busy the machine is
    await asyncio.sleep(0.01)
    assert not control.sent
    relay.freed.set()
    sent = await sending
    assert sent.by == "memory"
    assert sent.waited >= 0.01
    assert np.array_equal((await transfer.read(control.sent[0][1]))["samples"], LARGE["samples"])


async def test_what_waits_for_a_relay_continues_in_a_task_first() -> None:
    transfer, _ = make(MemoryRelay(room=0))
    step = send(transfer, LARGE)
    assert step.send(None) is None  # a bare yield, which asks for a task; not a future
    step.close()


async def test_a_pool_that_may_never_have_room_is_bypassed() -> None:
    relay = MemoryRelay(room=0)
    relay.is_stuck = True
    transfer, control = make(relay)
    assert (await send(transfer, LARGE)).by == "inline"
    assert control.sent[0][1].header.nbytes == 200_000
    assert np.array_equal((await transfer.read(control.sent[0][1]))["samples"], LARGE["samples"])


async def test_relays_without_memory_to_write_into_and_without_views_are_copied_through() -> None:
    transfer, control = make(MemoryRelay(has_empty=False, has_view=False))
    assert (await send(transfer, LARGE)).by == "memory"
    assert np.array_equal((await transfer.read(control.sent[0][1]))["samples"], LARGE["samples"])


async def test_a_large_value_for_a_peer_without_relay_is_an_error() -> None:
    transfer, _ = make(MemoryRelay())
    with pytest.raises(RelayError, match="nowhere"):
        await send(transfer, LARGE, "nowhere")


async def test_a_value_that_cannot_be_sent_is_named() -> None:
    transfer, control = make(MemoryRelay())
    with pytest.raises(CodecError, match=r"\['deep'\]\[1\]"):
        await send(transfer, {"deep": [0, object()]})
    assert not control.sent


async def test_values_of_many_objects_are_encoded_and_decoded_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: dict[str, int] = {}

    def watched(name: str) -> Callable[..., Any]:
        function = getattr(transfer_module, name)

        def call(*arguments: Any, **options: Any) -> Any:
            threads[name] = threading.get_ident()
            return function(*arguments, **options)

        return call

    for name in ("encode_split", "decode"):
        monkeypatch.setattr(transfer_module, name, watched(name))
    transfer, control = make(MemoryRelay())
    value = [("word", index) for index in range(200_000)]
    await send(transfer, StagePayload("r", OmniRequest(), value))
    message = control.sent[0][1]
    assert (await transfer.read(message)).data == value
    assert threading.get_ident() not in threads.values()
    at_once(send(transfer, {"small": 1}))
    assert threads["encode_split"] == threading.get_ident()
