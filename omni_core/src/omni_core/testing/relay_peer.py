"""The other process of :class:`omni_core.testing.RelayConformance`: obeys commands on its standard input, one per line."""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from typing import Any

from omni_core.protocol.codec import decode, encode
from omni_core.references import load
from omni_core.transport.relay import Relay, RelayOptions


class _Peer:
    """Holds a relay, what it has put, and the views that it was told to keep."""

    def __init__(self, reference: str, options: dict[str, Any]) -> None:
        self.relay: Relay = load(reference)(RelayOptions(**options))
        self.held: dict[str, Any] = {}

    async def put(self, data: bytes, request_id: str) -> Any:
        return (await self.relay.put_async(data, request_id)).metadata

    async def digest(self, metadata: Any, nbytes: int, hold: str = "") -> str:
        """The SHA-256 of what ``metadata`` describes; as a view that is kept under ``hold``, where the relay has views."""
        if self.relay.has_view:
            memory: Any = self.relay.get_view(metadata)
        else:
            memory = bytearray(nbytes)
            await (await self.relay.get_async(metadata, memory)).wait_for_completion()
        if hold:
            self.held[hold] = memory
        return hashlib.sha256(memory).hexdigest()

    async def release(self, hold: str) -> None:
        del self.held[hold]

    async def idle_seconds(self, seconds: float) -> float:
        """CPU time that passes in this process while it sleeps."""
        begin = time.process_time()
        await asyncio.sleep(seconds)
        return time.process_time() - begin


async def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    peer = _Peer(sys.argv[1], decode(bytes.fromhex(sys.argv[2])))
    while line := await asyncio.to_thread(sys.stdin.readline):
        name, arguments = decode(bytes.fromhex(line))
        try:
            answer = ("ok", await getattr(peer, name)(**arguments))
        except Exception as error:
            answer = ("error", f"{type(error).__name__}: {error}")
        answers.write(encode(answer).hex() + "\n")
        answers.flush()
    peer.held.clear()
    peer.relay.close()


if __name__ == "__main__":
    asyncio.run(main())
