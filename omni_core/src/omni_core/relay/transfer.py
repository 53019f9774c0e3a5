"""Payloads and stream chunks between processes: small ones ride in the control message, large ones in the relay.

The control message goes out as soon as the relay has the bytes, never after the receiver has taken them: a backend whose
slots are freed by the receiver's read would otherwise wait for a read that nobody was told to start (seed 001).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import partial
from typing import Any

from omni_core.control.lanes import Later
from omni_core.control.plane import ControlPlane
from omni_core.errors import RelayFullError
from omni_core.protocol import lazy_torch
from omni_core.protocol.codec import EncodedValue, decode, encode_split
from omni_core.protocol.messages import DataReadyMessage
from omni_core.protocol.tensors import empty
from omni_core.relay.base import Relay
from omni_core.relay.table import Relays

INLINE_BYTES = 32 * 1024
"""Out-of-band bytes up to this size travel in the control message itself. At 64 KiB a relay streams twice as many chunks a second
(36,000 against 17,000), at the price of a sixth more latency for a single one; measured with shm.
"""


class Transfer:
    """Sends and reads values for the stages of one process.

    Args:
        same_gpu: by stage, the endpoints of the processes where it uses the GPU that this process uses.
    """

    def __init__(
        self, control: ControlPlane, relays: Relays, same_gpu: Mapping[str, Collection[str]] | None = None
    ) -> None:
        self._control = control
        self._relays = relays
        self._same_gpu = same_gpu or {}

    def send(self, endpoint: str, value: Any, **message: Any) -> tuple[int, Later | None]:
        """Send ``value`` in a :class:`DataReadyMessage` made of ``message``: its size in bytes, and what must be awaited.

        Raises:
            CodecError: something in the value cannot be sent.
        """
        same_gpu = endpoint in self._same_gpu.get(message["stage"], ())
        encoded = encode_split(value, same_gpu=same_gpu, device=self._relays.device_towards(endpoint))
        size = len(encoded.header) + encoded.nbytes
        if encoded.nbytes <= INLINE_BYTES:
            return size, self._post_inline(endpoint, encoded, message)
        name, relay = self._relays.towards(endpoint)
        memory = relay.reserve(encoded.nbytes, message["request_id"])
        if memory is None:
            return size, partial(self._send_by_relay, name, relay, endpoint, encoded, message)
        encoded.write_into(memory)
        return size, self._post_offer(endpoint, encoded, name, relay.commit(memory), message)

    def _post(self, endpoint: str, message: DataReadyMessage) -> Later | None:
        """Send; what must be awaited before more of the same request is sent, if the peer is behind."""
        self._control.send(endpoint, message, (message.request_id, message.stage))
        return self._control.room(endpoint)

    def _post_inline(self, endpoint: str, encoded: EncodedValue, message: dict[str, Any]) -> Later | None:
        inline = encoded.joined() if encoded.nbytes else None
        tensors = encoded.has_tensors
        ready = DataReadyMessage(header=encoded.header, inline=inline, has_tensors=tensors, **message)
        return self._post(endpoint, ready)

    def _post_offer(
        self, endpoint: str, encoded: EncodedValue, relay: str, metadata: Any, message: dict[str, Any]
    ) -> Later | None:
        place = [relay, encoded.nbytes, metadata]
        tensors = encoded.has_tensors
        ready = DataReadyMessage(header=encoded.header, relay_metadata=place, has_tensors=tensors, **message)
        return self._post(endpoint, ready)

    async def _send_by_relay(
        self, name: str, relay: Relay, endpoint: str, encoded: EncodedValue, message: dict[str, Any]
    ) -> None:
        try:
            metadata = await self._put(relay, encoded, message["request_id"])
        except RelayFullError:  # copied twice, but in nobody's way
            later = self._post_inline(endpoint, encoded, message)
        else:
            later = self._post_offer(endpoint, encoded, name, metadata, message)
        if later is not None:
            await later()

    @staticmethod
    async def _put(relay: Relay, encoded: EncodedValue, request_id: str) -> Any:
        if relay.has_empty:
            memory = await relay.empty(encoded.nbytes, request_id)
        else:
            memory = empty(encoded.nbytes, relay.device)
        encoded.write_into(memory)
        return (await relay.put_async(memory, request_id)).metadata

    def read(self, message: DataReadyMessage) -> Any:
        """The value of a message whose bytes can be read at once (inline, or a relay with views).

        Raises:
            CodecError, RelayError: the value cannot be read.
        """
        assert message.header is not None
        if message.relay_metadata is None:
            return decode(message.header, None if message.inline is None else memoryview(message.inline))
        relay, _, metadata = message.relay_metadata
        view = self._relays.named(relay).get_view(metadata, message.request_id)
        return decode(message.header, view)

    def reads_at_once(self, message: DataReadyMessage) -> bool:
        """Whether :meth:`read` serves this message; otherwise :meth:`read_later` does."""
        if message.has_tensors and not lazy_torch.is_here():
            return False
        return message.relay_metadata is None or self._relays.named(message.relay_metadata[0]).has_view

    async def read_later(self, message: DataReadyMessage) -> Any:
        """The value of a message whose bytes the relay has to copy into memory of ours, or of the first with a tensor.

        Raises:
            CodecError, RelayError: the value cannot be read. ImportError: it holds a tensor, and there is no torch.
        """
        assert message.header is not None
        if message.has_tensors:
            await lazy_torch.bring()
        if self.reads_at_once(message):
            return self.read(message)
        name, nbytes, metadata = message.relay_metadata
        relay = self._relays.named(name)
        memory = empty(nbytes, relay.device)
        operation = await relay.get_async(metadata, memory, message.request_id)
        await operation.wait_for_completion()
        return decode(message.header, memory)
