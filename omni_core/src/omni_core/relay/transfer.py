"""Transfer of payloads and stream chunks between processes: small ones ride in the control message, large ones in the relay.

The control message goes out as soon as the relay has the bytes, never after the receiver has taken them: a backend whose
slots are freed by the receiver's read would otherwise wait for a read that nothing had told the receiver to start.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping
from typing import Any

from attrs import define

from omni_core.control.lanes import in_task, in_thread
from omni_core.control.plane import ControlPlane
from omni_core.errors import RelayFullError
from omni_core.protocol import lazy_torch
from omni_core.protocol.buffers import empty
from omni_core.protocol.codec import EncodedValue, decode, encode_split
from omni_core.protocol.messages import DataReadyMessage, StagePayload
from omni_core.relay.base import Relay
from omni_core.relay.table import Relays

INLINE_BYTES = 32 * 1024
"""Out-of-band bytes up to this size travel in the control message itself. At 64 KiB a relay streams twice as many chunks a second
(36,000 against 17,000), at the price of a sixth more latency for a single one; measured with shm.
"""

LARGE_NODES = 10_000
"""Objects in a value from which on it is encoded in a thread: the event loop is never held for more than about 20 ms."""

LARGE_HEADER_BYTES = 2**18
"""Bytes of an encoded value, those of its large tensors not counted, from which on it is decoded in a thread."""

_CONTAINERS = frozenset({dict, list, tuple, set, frozenset})


@define
class Sent:
    """A value that was sent: its size in bytes, the relay it went by (or ``"inline"``), and seconds waited for the relay's pool."""

    nbytes: int
    by: str = "inline"
    waited: float = 0.0


class Transfer:
    """Sends and reads values for the stages of one process. Its coroutines are steps of :class:`~omni_core.control.lanes.Lanes`.

    Args:
        same_gpu: by stage, the endpoints of the processes where it uses the GPU that this process uses.
    """

    def __init__(
        self, control: ControlPlane, relays: Relays, same_gpu: Mapping[str, Collection[str]] | None = None
    ) -> None:
        self._control = control
        self._relays = relays
        self._same_gpu = same_gpu or {}

    async def send(self, endpoint: str, value: Any, **message: Any) -> Sent:
        """Send ``value`` in a :class:`DataReadyMessage` made of ``message``.

        Waits while the relay's pool is full. Await :meth:`ControlPlane.room` before more of the same request is sent.

        Raises:
            CodecError: something in the value cannot be sent.
            RelayError: the value can never fit the relay's pool, or no relay reaches the endpoint.
        """
        same_gpu = endpoint in self._same_gpu.get(message["stage"], ())
        device = self._relays.device_towards(endpoint)
        if is_large(value):
            encoded = await in_thread(lambda: encode_split(value, same_gpu=same_gpu, device=device))
        else:
            encoded = encode_split(value, same_gpu=same_gpu, device=device)
        size = len(encoded.header) + encoded.nbytes
        if encoded.nbytes <= INLINE_BYTES:
            self._post(endpoint, encoded, message, inline=encoded.joined() if encoded.nbytes else None)
            return Sent(size)
        name, relay = self._relays.towards(endpoint)
        memory = relay.reserve(encoded.nbytes, message["request_id"])
        if memory is not None:
            encoded.write_into(memory)
            self._post(endpoint, encoded, message, relay_metadata=[name, encoded.nbytes, relay.commit(memory)])
            return Sent(size, name)
        begin = time.monotonic()
        await in_task()
        try:
            metadata = await self._put(relay, encoded, message["request_id"])
        except RelayFullError:  # copied twice, but it holds up no other transfer
            self._post(endpoint, encoded, message, inline=encoded.joined())
            return Sent(size, waited=time.monotonic() - begin)
        self._post(endpoint, encoded, message, relay_metadata=[name, encoded.nbytes, metadata])
        return Sent(size, name, time.monotonic() - begin)

    def _post(self, endpoint: str, encoded: EncodedValue, message: dict[str, Any], **bytes_at: Any) -> None:
        ready = DataReadyMessage(header=encoded.header, has_tensors=encoded.has_tensors, **bytes_at, **message)
        self._control.send(endpoint, ready, (ready.request_id, ready.stage))

    @staticmethod
    async def _put(relay: Relay, encoded: EncodedValue, request_id: str) -> Any:
        if relay.has_empty:
            memory = await relay.empty(encoded.nbytes, request_id)
        else:
            memory = empty(encoded.nbytes, relay.device)
        encoded.write_into(memory)
        return (await relay.put_async(memory, request_id)).metadata

    async def read(self, message: DataReadyMessage) -> Any:
        """Return the value of a message.

        Waits for torch to be imported where the value holds tensors, and for relays without views.

        Raises:
            CodecError, RelayError: the value cannot be read.
            ImportError: it holds a tensor, and torch is not installed.
        """
        assert message.header is not None
        if message.relay_metadata is None:
            buffer: Any = None if message.inline is None else memoryview(message.inline)
        else:
            name, nbytes, metadata = message.relay_metadata
            relay = self._relays.named(name)
            if relay.has_view:
                buffer = relay.get_view(metadata, message.request_id)
            else:
                await in_task()
                buffer = empty(nbytes, relay.device)
                operation = await relay.get_async(metadata, buffer, message.request_id)
                await operation.wait_for_completion()
        return await read_document(message.header, message.has_tensors, buffer)


async def read_document(document: bytes, has_tensors: bool, buffer: Any = None) -> Any:
    """Decode a value (see :func:`~omni_core.protocol.codec.decode`), in a thread if it is large.

    Waits for torch to be imported where the value holds the first tensors that this process gets.
    """
    if has_tensors and not lazy_torch.is_here():
        await in_task()
        await lazy_torch.bring()
    if len(document) > LARGE_HEADER_BYTES:
        return await in_thread(decode, document, buffer)
    return decode(document, buffer)


def is_large(value: Any, limit: int = LARGE_NODES) -> bool:
    """Return True if the containers in ``value`` hold more than ``limit`` objects. Looks at few more than that many."""
    value = value.data if type(value) is StagePayload else value
    count = 0
    containers = [value] if type(value) in _CONTAINERS else []
    for container in containers:
        count += len(container)
        if count > limit:
            return True
        items = container.values() if type(container) is dict else container
        if not _CONTAINERS.isdisjoint(map(type, items)):
            containers += [item for item in items if type(item) in _CONTAINERS]
    return False
