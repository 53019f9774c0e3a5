"""Runs one relay of sglang-omni 0.1.9 between two processes, in its own virtual environment; the peer of ``relays.py``.

    VENV/bin/python benchmarks/peer_relays.py shm|nixl|mooncake

Started by ``PeerRelay``; answers each line of JSON on its stdin, ``{"size": bytes, "fresh": bool}``, with the seconds
from the put until the other process has the bytes and has answered, over the same kind of pipe as ours. ``fresh``: as
the peer's stages call it, which concatenate into a new tensor before the put and fill a new one at the get; otherwise
both tensors exist and are warm. Its progress thread burns a core, so both processes are suspended while it is not their
turn. At module level: the standard library only.
"""

from __future__ import annotations

import asyncio
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from subprocess import PIPE
from typing import Any

PEER_NAME = "sglang-omni 0.1.9"
START_SECONDS, ANSWER_SECONDS = 120, 60
SETTLE_SECONDS = 0.003


class PeerRelay:
    """The peer's relay of that name, from the benchmark's side."""

    def __init__(self, python: Path, name: str) -> None:
        self.name = name
        self._python = python
        self._process: Any = None
        self._log: Any = tempfile.TemporaryFile()  # noqa: SIM115  # stop() closes it

    async def start(self) -> str | None:
        """Start both processes. Return the error if it cannot work here."""
        environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
        self._process = await asyncio.create_subprocess_exec(
            str(self._python), __file__, self.name,
            stdin=PIPE, stdout=PIPE, stderr=self._log, env=environment, start_new_session=True,
        )  # fmt: skip
        answer = await self._answer(START_SECONDS)
        self._signal(signal.SIGSTOP)
        return answer.get("error")

    async def seconds(self, size: int, *, fresh: bool) -> float:
        """Measure one transfer, after one that warms up."""
        self._signal(signal.SIGCONT)
        await asyncio.sleep(SETTLE_SECONDS)
        for _ in range(2):
            self._process.stdin.write(json.dumps({"size": size, "fresh": fresh}).encode() + b"\n")
            answer = await self._answer(ANSWER_SECONDS)
            if "error" in answer:
                raise RuntimeError(f"{PEER_NAME}'s {self.name} relay: {answer['error']}")
        self._signal(signal.SIGSTOP)
        return float(answer["seconds"])

    async def _answer(self, seconds: float) -> dict[str, Any]:
        line = await asyncio.wait_for(self._process.stdout.readline(), seconds)
        answer: dict[str, Any] = json.loads(line) if line else {"error": self._last_words()}
        return answer

    def _last_words(self) -> str:
        self._log.seek(0)
        lines = self._log.read().decode(errors="replace").strip().splitlines()
        return lines[-1] if lines else "it ended without a message"

    def _signal(self, number: int) -> None:
        try:
            os.killpg(self._process.pid, number)
        except ProcessLookupError:
            return

    async def stop(self) -> None:
        if self._process is not None:
            self._signal(signal.SIGKILL)
            await self._process.wait()
        self._log.close()


# --- the served side, in the peer's environment ----------------------------------------------------------------------
def make(name: str, owner: str) -> Any:
    from sglang_omni.relay.base import create_relay

    return create_relay(name, engine_id=owner, slot_size_mb=128, credits=2, device="cpu", hostname="127.0.0.1")


async def readable(connection: Connection) -> Any:
    loop = asyncio.get_running_loop()
    there = loop.create_future()
    loop.add_reader(connection.fileno(), there.set_result, None)
    try:
        await there
    finally:
        loop.remove_reader(connection.fileno())
    return connection.recv()


def receive(connection: Connection, name: str) -> None:
    os.dup2(2, 1)  # libraries print to stdout, which is for answers
    asyncio.run(_receive(connection, name))


async def _receive(connection: Connection, name: str) -> None:
    import torch

    relay = make(name, "receiver")
    warm: dict[int, Any] = {}
    connection.send("ready")
    while True:
        metadata, size, fresh = await readable(connection)
        if not fresh and size not in warm:
            warm[size] = torch.zeros(size, dtype=torch.uint8)
        target = torch.zeros(size, dtype=torch.uint8) if fresh else warm[size]
        operation = await relay.get_async(metadata, target, "r")
        await operation.wait_for_completion()
        connection.send((int(target[0]), int(target[-1])))


async def serve(connection: Connection, name: str, answers: Any) -> None:
    import torch

    relay = make(name, "sender")
    await readable(connection)
    tensors: dict[int, Any] = {}

    def answer(message: dict[str, Any]) -> None:
        answers.write(json.dumps(message) + "\n")
        answers.flush()

    answer({"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        asked = json.loads(line)
        size = asked["size"]
        if size not in tensors:
            tensors[size] = torch.randint(0, 255, (size,), dtype=torch.uint8)
        data = tensors[size]
        begin = time.perf_counter()
        operation = await relay.put_async(torch.cat([data]) if asked["fresh"] else data, "r")
        done = asyncio.ensure_future(operation.wait_for_completion(10))
        await asyncio.sleep(0)  # its mooncake relay loses the notice of a receiver that is done before this has begun
        connection.send((operation.metadata, size, asked["fresh"]))
        ends = await readable(connection)
        seconds = time.perf_counter() - begin
        if ends != (int(data[0]), int(data[-1])):
            raise RuntimeError("other bytes arrived")
        if hasattr(operation, "receiver_done"):
            operation.mark_receiver_done()
        await done
        answer({"seconds": seconds})


def main() -> None:
    name = sys.argv[1]
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=receive, args=(theirs, name), daemon=True)
    other.start()
    theirs.close()
    try:
        asyncio.run(serve(ours, name, answers))
    except Exception as error:
        answers.write(json.dumps({"error": f"{type(error).__name__}: {error}"}) + "\n")
        answers.flush()
    os._exit(0)  # some engines do not stop


if __name__ == "__main__":
    main()
