"""The other process of :class:`omni_testing.RelayConformance`: runs commands from its standard input, one per line. Without arguments:
the process that forks these.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import sys
import time
from contextlib import suppress
from typing import Any

from omni_core.api import Relay, RelayOptions, load
from omni_core.runtime_api import decode, encode
from omni_testing.idleness import wake_ups
from omni_testing.relay_forks import ForkedProcess, can_fork, serve

LINE_BYTES = 2**26
"""The longest answer."""


class PeerError(Exception):
    """An error of the other process."""


class Peer:
    """A process with a relay of its own, as the test sees it."""

    def __init__(self, process: asyncio.subprocess.Process | ForkedProcess) -> None:
        self.process = process
        self._turn = asyncio.Lock()

    @classmethod
    async def start(cls, relay: str, options: dict[str, Any]) -> Peer:
        """Start a process whose relay is built from ``options``, the fields of ``RelayOptions``."""
        arguments = (relay, encode(options).hex())
        if can_fork():
            return cls(await ForkedProcess.start(*arguments, limit=LINE_BYTES))
        command = [sys.executable, "-m", __name__, *arguments]
        pipe = asyncio.subprocess.PIPE
        return cls(await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe, limit=LINE_BYTES))

    async def ask(self, name: str, **arguments: Any) -> Any:
        """Have it do something (a method of :class:`_Obedient`), one thing after the other; what it answers. Raises PeerError."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        async with self._turn:
            try:
                self.process.stdin.write(encode((name, arguments)).hex().encode() + b"\n")
                line = await self.process.stdout.readline()
            except ConnectionError:  # it has ended before it read
                line = b""
        if not line:
            raise PeerError("the peer has ended")
        state, answer = decode(bytes.fromhex(line.decode()))
        if state == "error":
            raise PeerError(answer)
        return answer

    async def kill(self) -> None:
        """End it as a crash would. Idempotent."""
        with suppress(ProcessLookupError):
            self.process.kill()
        await self.process.wait()


class _Obedient:
    """Holds a relay, what it has put, and the views that it was told to keep."""

    def __init__(self, reference: str, options: dict[str, Any]) -> None:
        self.relay: Relay = load(reference)(RelayOptions(**options))
        self.held: dict[str, Any] = {}

    async def put(self, data: bytes, request_id: str) -> Any:
        return (await self.relay.put_async(data, request_id)).metadata

    async def cleanup(self, request_id: str) -> None:
        self.relay.cleanup(request_id)

    async def statistics(self) -> dict[str, float]:
        return self.relay.statistics()

    async def descriptors(self) -> int:
        return len(os.listdir("/proc/self/fd"))

    async def digest(self, metadata: Any, nbytes: int, hold: str = "") -> str:
        """The SHA-256 of what ``metadata`` describes; as a view that is kept under ``hold``, where the relay has views."""
        memory = await self._take(metadata, nbytes)
        if hold:
            self.held[hold] = memory
        return hashlib.sha256(memory).hexdigest()

    async def tensors(self, header: bytes, metadata: Any, nbytes: int) -> dict[str, Any]:
        """The tensors of a payload whose large bytes come by relay (see :func:`described`)."""
        return described(decode(header, memoryview(await self._take(metadata, nbytes))))

    async def _take(self, metadata: Any, nbytes: int) -> Any:
        if self.relay.has_view:
            return self.relay.get_view(metadata)
        memory = bytearray(nbytes)
        await (await self.relay.get_async(metadata, memory)).wait_for_completion()
        return memory

    async def release(self, hold: str) -> None:
        del self.held[hold]

    async def idle(self, seconds: float) -> tuple[float, int]:
        """CPU time that passes in this process while it sleeps, and how often its event loop wakes up."""
        begin, woken = time.process_time(), wake_ups()
        await asyncio.sleep(seconds)
        return time.process_time() - begin, wake_ups() - woken


def described(tensors: dict[str, Any]) -> dict[str, Any]:
    """By name: dtype, shape and the SHA-256 of the bytes in logical order."""
    import torch

    made = {}
    for name, tensor in tensors.items():
        data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
        made[name] = [str(tensor.dtype), list(tensor.shape), hashlib.sha256(data).hexdigest()]
    return made


async def obey(relay: str, options: str) -> None:
    """Build the relay, and run commands until the standard input ends."""
    questions, answers = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # libraries may print
    peer = _Obedient(relay, decode(bytes.fromhex(options)))
    while line := await asyncio.to_thread(questions.readline):
        name, arguments = decode(bytes.fromhex(line))
        try:
            answer = ("ok", await getattr(peer, name)(**arguments))
        except Exception as error:
            answer = ("error", f"{type(error).__name__}: {error}")
        answers.write(encode(answer).hex() + "\n")
        answers.flush()
    peer.held.clear()
    peer.relay.close()


def main(*arguments: str) -> None:
    asyncio.run(obey(*arguments))


if __name__ == "__main__":
    if sys.argv[1:]:
        main(*sys.argv[1:])
    else:
        serve(main)
