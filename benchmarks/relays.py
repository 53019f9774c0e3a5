"""Every installed relay, compared with one fresh shared-memory block per transfer, and with a plain memory copy.

    python benchmarks/relays.py [--relay shm] [--peer PYTHON] [--quick] [--json FILE]

One transfer: the producer offers N bytes, a second process has them and answers. All ways use the same pipe for control
and alternate; the copy is numpy's, into warm memory, in this process. ``--peer`` names the Python of a virtual
environment that holds sglang-omni 0.1.9: its relays of the same names run beside ours, if their libraries are installed
there.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import tempfile
import time
from collections.abc import Awaitable, Callable
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import click
import numpy as np
from peer_relays import PEER_NAME, PeerRelay
from report import Row, compare, json_option, publish, quick_option

from omni_core.hookspecs import works
from omni_core.plugins import load_plugins
from omni_core.references import load
from omni_core.relay.base import Relay, RelayOptions

SIZES = {"64 KiB": 2**16, "1 MiB": 2**20, "16 MiB": 2**24, "64 MiB": 2**26}


def usable() -> dict[str, str]:
    """Return the relays that can work here: name to target."""
    checked = load_plugins().check()
    return {each.name: each.target for hook, each, _, answer in checked if hook == "omni_relays" and works(answer)}


async def reads(connection: Connection) -> Any:
    """Return the next message, without blocking the event loop."""
    loop = asyncio.get_running_loop()
    readable = loop.create_future()
    loop.add_reader(connection.fileno(), readable.set_result, None)
    try:
        await readable
    finally:
        loop.remove_reader(connection.fileno())
    return connection.recv()


def receive(connection: Connection, targets: dict[str, str], directory: str) -> None:
    """The other process: maps or copies what it is sent, reads the first and last bytes, answers."""
    asyncio.run(_receive(connection, targets, directory))


async def _receive(connection: Connection, targets: dict[str, str], directory: str) -> None:
    relays = {name: make(target, "receiver", directory) for name, target in targets.items()}
    memory = bytearray(max(SIZES.values()))
    while (message := await reads(connection)) is not None:
        kind, place, size = message
        if kind == "block":
            block = SharedMemory(name=place)
            memory[:size] = block.buf[:size]
            block.close()
            block.unlink()
            answer = (memory[0], memory[size - 1])
        elif relays[kind].has_view:
            view = relays[kind].get_view(place)
            answer = (view[0], view[size - 1])
            del view
        else:
            destination = memoryview(memory)[:size]
            await (await relays[kind].get_async(place, destination)).wait_for_completion()
            answer = (destination[0], destination[size - 1])
        connection.send(answer)
    for relay in relays.values():
        relay.close()


def make(target: str, owner: str, directory: str) -> Relay:
    relay: Relay = load(target)(RelayOptions(slot_size_mb=128, credits=2, owner=owner, directory=directory))
    return relay


def by_relay(name: str, relay: Relay, connection: Connection) -> Callable[[Any], Awaitable[float]]:
    async def transfer(data: Any) -> float:
        begin = time.perf_counter()
        operation = await relay.put_async(data)
        connection.send((name, operation.metadata, len(data)))
        await reads(connection)
        seconds = time.perf_counter() - begin
        await operation.wait_for_completion(10)
        return seconds

    return transfer


async def by_block(connection: Connection, data: Any) -> float:
    begin = time.perf_counter()
    block = SharedMemory(create=True, size=len(data))
    block.buf[: len(data)] = data
    connection.send(("block", block.name, len(data)))
    await reads(connection)
    seconds = time.perf_counter() - begin
    block.close()
    return seconds


def by_copy(target: Any, data: Any) -> float:
    begin = time.perf_counter()
    np.copyto(target, data)
    return time.perf_counter() - begin


async def start_peers(python: Path | None, names: list[str]) -> list[PeerRelay]:
    """Return the peer's relays of these names that can work here; print which cannot."""
    if python is None:
        return []
    peers = []
    for name in names:
        peer = PeerRelay(python, name)
        problem = await peer.start()
        if problem is None:
            peers.append(peer)
        else:
            click.echo(f"{PEER_NAME} has no {name} relay here: {problem}", err=True)
            await peer.stop()
    return peers


async def measure(
    connection: Connection, targets: dict[str, str], directory: str, rounds: int, python: Path | None
) -> list[Row]:
    relays = {name: make(target, "sender", directory) for name, target in targets.items()}
    peers = await start_peers(python, [name for name in targets if name != "nccl"])  # its nccl relay needs CUDA
    ways = {name: by_relay(name, relay, connection) for name, relay in relays.items()}
    rows = []
    try:
        for label, size in SIZES.items():
            rows += await measure_size(connection, label, size, ways, peers, rounds)
    finally:
        for relay in relays.values():
            relay.close()
        for peer in peers:
            await peer.stop()
    return rows


async def measure_size(
    connection: Connection,
    label: str,
    size: int,
    ways: dict[str, Callable[[Any], Awaitable[float]]],
    peers: list[PeerRelay],
    rounds: int,
) -> list[Row]:
    data = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
    target, count = np.zeros_like(data), max(7, min(rounds, rounds * 2**22 // size))
    times: dict[str, list[float]] = {}

    def note(name: str, seconds: float) -> None:
        times.setdefault(name, []).append(seconds * 1e6)

    for number in range(count + 2):
        for name, way in ways.items():
            await way(data)  # the first after a pause warms up; the peer has one too
            note(name, await way(data))
        note("a fresh block each", await by_block(connection, data))
        note("one memory copy", by_copy(target, data))
        for peer in peers:
            note(f"{PEER_NAME} {peer.name}", await peer.seconds(size, fresh=True))
            note(f"{PEER_NAME} {peer.name}, warm tensors", await peer.seconds(size, fresh=False))
        if number == 1:  # these touched the pages
            times.clear()
    return [
        compare(f"{name}, {label}", "us", times[name], times[other], other, higher_is_better=False)
        for name in ways
        for other in times
        if other in ("a fresh block each", "one memory copy") or other.startswith(f"{PEER_NAME} {name}")
    ]


@click.command()
@click.option(
    "--relay", "names", multiple=True, help="Measure this relay only; may be repeated. Default: all that can work here."
)
@click.option(
    "--peer",
    "python",
    type=click.Path(path_type=Path, exists=True),
    help="The Python of an environment with sglang-omni 0.1.9.",
)
@quick_option
@json_option
def main(names: tuple[str, ...], python: Path | None, quick: bool, json_path: Path | None) -> None:
    """Relays between two processes."""
    targets = {name: target for name, target in usable().items() if not names or name in names}
    if not targets:
        raise click.UsageError(f"no such relay can work here; there are: {', '.join(usable()) or 'none'}")
    with tempfile.TemporaryDirectory(prefix="omni-bench-") as directory:
        ours, theirs = multiprocessing.Pipe()
        context = multiprocessing.get_context("spawn")
        other = context.Process(target=receive, args=(theirs, targets, directory), daemon=True)
        other.start()
        rows = asyncio.run(measure(ours, targets, directory, 30 if quick else 300, python))
        ours.send(None)
        other.join(5)
    publish(rows, json_path)


if __name__ == "__main__":
    main()
