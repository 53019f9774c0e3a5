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
from omni_core.protocol.codec import (
    LARGE_DOCUMENT_BYTES,
    OUT_OF_BAND_BYTES,
    Body,
    EncodedValue,
    decode,
    encode_split,
    is_large,
)
from omni_core.protocol.messages import DataReadyMessage, SubmitMessage
from omni_core.protocol.tensors import empty
from omni_core.relay.base import Relay
from omni_core.relay.table import Relays

INLINE_BYTES = 32 * 1024
"""Out-of-band bytes up to this size travel in the control message itself, unless a stage's ``relay.inline_bytes`` is another.

At 64 KiB a relay streams twice as many chunks a second (36,000 against 17,000), at the price of a sixth more latency for a single one;
measured with shm.
"""

LARGE_HEADER_BYTES = 2**18
"""Bytes of an encoded value, those of its large tensors not counted, from which on it is decoded in a thread."""


Encodings = dict[tuple[int, str], EncodedValue]
"""Encoded values, by the ``id`` of the value and the device on which its bytes are gathered."""


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
        inline_bytes: replaces :data:`INLINE_BYTES`.
    """

    def __init__(
        self,
        control: ControlPlane,
        relays: Relays,
        same_gpu: Mapping[str, Collection[str]] | None = None,
        inline_bytes: int | None = None,
    ) -> None:
        self._control = control
        self._relays = relays
        self._same_gpu = same_gpu or {}
        self._inline_bytes = INLINE_BYTES if inline_bytes is None else inline_bytes
        self._apart_from = min(self._inline_bytes + 1, OUT_OF_BAND_BYTES)

    async def send(self, endpoint: str, value: Any, encodings: Encodings | None = None, **message: Any) -> Sent:
        """Send ``value`` in a :class:`DataReadyMessage` made of ``message``.

        A value for several stages is encoded once, if each call gets the same ``encodings`` and the value lives until the last.

        Waits while the relay's pool is full. Await :meth:`ControlPlane.room` before more of the same request is sent.

        Raises:
            CodecError: something in the value cannot be sent.
            RelayCapacityError: the value can never fit the relay's pool. RelayError: no relay reaches the endpoint.
        """
        same_gpu = endpoint in self._same_gpu.get(message["stage"], ()) and self._control.is_near(endpoint)
        device = self._relays.device_towards(endpoint)
        encoded = None if encodings is None or same_gpu else encodings.get((id(value), device))
        if encoded is None:
            if is_large(value):
                encoded = await in_thread(encode_split, value, same_gpu, device, False, self._apart_from)
            else:
                encoded = encode_split(value, same_gpu, device, True, self._apart_from)
            if encodings is not None and not same_gpu:  # a handle is made for one reader
                encodings[id(value), device] = encoded
        relay_metadata, inline, by, waited = None, None, "inline", 0.0
        is_large_header = len(encoded.header) >= LARGE_DOCUMENT_BYTES
        header: Body = EncodedValue(encoded.header) if is_large_header else bytes(encoded.header)
        if encoded.nbytes > self._inline_bytes:
            name, relay = self._relays.towards(endpoint)
            memory = relay.reserve(encoded.nbytes, message["request_id"])
            if memory is not None:
                encoded.write_into(memory)
                metadata = relay.commit(memory)
            else:
                begin = time.monotonic()
                metadata = await self._put(relay, encoded, message["request_id"])
                waited = time.monotonic() - begin
            if metadata is not None:
                relay_metadata, by = [name, encoded.nbytes, metadata], name
        if encoded.nbytes and relay_metadata is None:
            inline = encoded.joined()
            if len(inline) >= LARGE_DOCUMENT_BYTES:
                header = EncodedValue(encoded.header)
                header.add(memoryview(inline), inline)
                inline = None
        ready = DataReadyMessage(
            header=header,
            inline=inline,
            relay_metadata=relay_metadata,
            has_tensors=encoded.has_tensors,
            **message,
        )
        self._control.send(endpoint, ready, (ready.request_id, ready.stage))
        return Sent(len(encoded.header) + encoded.nbytes, by, waited)

    @staticmethod
    async def _put(relay: Relay, encoded: EncodedValue, request_id: str) -> Any | None:
        """Wait for room and write into the relay. Returns the metadata of the put; ``None`` if there may never be room."""
        await in_task()
        try:
            if relay.has_empty:
                memory = await relay.empty(encoded.nbytes, request_id)
            else:
                memory = empty(encoded.nbytes, relay.device)
            encoded.write_into(memory)
            return (await relay.put_async(memory, request_id)).metadata
        except RelayFullError:
            return None  # sent inline then: copied twice, but it holds up no other transfer

    async def read(self, message: DataReadyMessage | SubmitMessage) -> Any:
        """Return the value of a message.

        Waits for torch to be imported where the value holds tensors, and for relays without views.

        Raises:
            CodecError, RelayError: the value cannot be read.
            ImportError: it holds a tensor, and torch is not installed.
        """
        if message.has_tensors and not lazy_torch.is_here():
            await in_task()
            await lazy_torch.bring()
        document: Body = b""
        buffer: Any = None
        if isinstance(message, SubmitMessage):
            document = message.body
        elif message.header is not None:
            document = message.header
            if message.inline is not None:
                buffer = memoryview(message.inline)
            elif message.relay_metadata is not None:
                name, nbytes, metadata = message.relay_metadata
                relay = self._relays.named(name)
                if relay.has_view:
                    buffer = relay.get_view(metadata, message.request_id)
                else:
                    await in_task()
                    buffer = empty(nbytes, relay.device)
                    operation = await relay.get_async(metadata, buffer, message.request_id)
                    await operation.wait_for_completion()
        if len(document) > LARGE_HEADER_BYTES:
            return await in_thread(decode, document, buffer)
        return decode(document, buffer)
