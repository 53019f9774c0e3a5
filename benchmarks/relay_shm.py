"""The shm relay beside one fresh shared-memory block per transfer, and beside a plain memory copy.

    python benchmarks/relay_shm.py [--quick] [--json FILE]

One transfer: the producer offers N bytes, a second process gets them and answers. Both ways use the same pipe for control and
alternate; the copy is libc's, into warm memory, in this process.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import time
from multiprocessing.connection import Connection
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path
from typing import Any

import click
import numpy as np
from report import Row, compare, json_option, publish, quick_option

from omni_core.transport.relay import RelayOptions
from omni_relay_shm.relay import ShmRelay

SIZES = {"64 KiB": 2**16, "1 MiB": 2**20, "16 MiB": 2**24, "64 MiB": 2**26}


def receive(connection: Connection) -> None:
    """The other process: maps or copies what it is told of, looks at both ends, answers."""
    relay = ShmRelay(RelayOptions())
    while (message := connection.recv()) is not None:
        kind, place, size = message
        if kind == "relay":
            view = relay.get_view(place)
            answer = (view[0], view[size - 1])
            del view
        else:
            block = SharedMemory(name=place)
            copy = bytearray(block.buf[:size])
            block.close()
            block.unlink()
            answer = (copy[0], copy[-1])
        connection.send(answer)


async def by_relay(relay: ShmRelay, connection: Connection, data: Any) -> float:
    begin = time.perf_counter()
    operation = await relay.put_async(data)
    connection.send(("relay", operation.metadata, len(data)))
    connection.recv()
    return time.perf_counter() - begin


def by_block(connection: Connection, data: Any) -> float:
    begin = time.perf_counter()
    block = SharedMemory(create=True, size=len(data))
    block.buf[: len(data)] = data
    connection.send(("block", block.name, len(data)))
    connection.recv()
    seconds = time.perf_counter() - begin
    block.close()
    return seconds


def by_copy(target: Any, data: Any) -> float:
    begin = time.perf_counter()
    np.copyto(target, data)
    return time.perf_counter() - begin


async def measure(connection: Connection, rounds: int) -> list[Row]:
    relay, rows = ShmRelay(RelayOptions(slot_size_mb=128, credits=2)), []
    for name, size in SIZES.items():
        data = np.random.default_rng(0).integers(0, 255, size, dtype=np.uint8)
        target, count = np.zeros_like(data), max(3, min(rounds, rounds * 2**22 // size))
        await by_relay(relay, connection, data), by_block(connection, data), by_copy(target, data)
        ours, blocks, copies = [], [], []
        for _ in range(count):
            ours.append(await by_relay(relay, connection, data) * 1e6)
            blocks.append(by_block(connection, data) * 1e6)
            copies.append(by_copy(target, data) * 1e6)
        rows.append(compare(f"{name} transfer", "us", ours, blocks, "a fresh block each", higher_is_better=False))
        rows.append(compare(f"{name} in memory copies", "us", ours, copies, "numpy copy, warm", higher_is_better=False))
    relay.close()
    return rows


@click.command()
@quick_option
@json_option
def main(quick: bool, json_path: Path | None) -> None:
    """shm relay."""
    ours, theirs = multiprocessing.Pipe()
    other = multiprocessing.get_context("spawn").Process(target=receive, args=(theirs,), daemon=True)
    other.start()
    rows = asyncio.run(measure(ours, 30 if quick else 300))
    ours.send(None)
    other.join(5)
    publish(rows, json_path)


if __name__ == "__main__":
    main()
