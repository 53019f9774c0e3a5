"""A link between two network namespaces that the tests make slow, lossy, or cut while it is used: run as a program.

Joins two TUN devices, named on its command line, and forwards each packet that one of them is given to the other one. It reads settings
from standard input, a line of JSON for each change, and answers each with a line. It needs no kernel module: ``tc netem`` is not in every
kernel.
"""

from __future__ import annotations

import contextlib
import fcntl
import heapq
import json
import os
import random
import selectors
import struct
import sys
import time
from itertools import count
from typing import Any

from attrs import define, evolve, field, frozen

_TUNSETIFF = 0x400454CA
_IFF_TUN, _IFF_NO_PI = 0x0001, 0x1000
_PACKET_BYTES = 65536
_TCP = 6


@frozen
class Way:
    """The properties of one direction.

    Attributes:
        delay, jitter: seconds that a packet takes, and the most that is added to them by chance. Packets keep their order.
        loss: the share of packets that are lost.
        rate: bytes per second; 0: no limit. queue: bytes that wait at most; what comes then is lost.
        is_cut: every packet is lost.
    """

    delay: float = 0.0
    jitter: float = 0.0
    loss: float = 0.0
    rate: float = 0.0
    queue: int = 256 * 1024
    is_cut: bool = False


@define
class _Direction:
    device: int
    """The device that its packets leave by."""
    way: Way = field(factory=Way)
    free_at: float = 0.0
    """The time when the last packet that was taken has left the sender, at ``rate``."""
    last: float = 0.0
    """The time when the last packet that was taken arrives."""


class Link:
    """Forwards packets between two devices. ``seed``: which packets are lost."""

    def __init__(self, names: tuple[str, str], seed: int = 7) -> None:
        devices = [_open_device(name) for name in names]
        self._directions = {devices[0]: _Direction(devices[1]), devices[1]: _Direction(devices[0])}
        self._names = dict(zip(("forth", "back"), devices, strict=True))
        self._random = random.Random(seed)
        self._waiting: list[tuple[float, int, int, bytes]] = []
        self._numbers = count()
        self._flows: set[bytes] = set()
        self._forgotten: set[bytes] = set()

    def run(self) -> None:
        """Forward until standard input ends."""
        selector = selectors.DefaultSelector()
        for device in self._directions:
            selector.register(device, selectors.EVENT_READ)
        selector.register(0, selectors.EVENT_READ)
        while True:
            pause = max(self._waiting[0][0] - time.monotonic(), 0.0) if self._waiting else None
            for key, _ in selector.select(pause):
                if key.fd != 0:
                    self._take(key.fd)
                elif line := sys.stdin.buffer.raw.readline():  # type: ignore[attr-defined]
                    self._change(json.loads(line))
                else:
                    return
            now = time.monotonic()
            while self._waiting and self._waiting[0][0] <= now:
                _, _, device, packet = heapq.heappop(self._waiting)
                _write(device, packet)

    def _change(self, settings: dict[str, Any]) -> None:
        if settings.pop("forget", False):
            self._forgotten |= self._flows
        for name, changes in settings.items():
            direction = self._directions[self._names[name]]
            direction.way = evolve(direction.way, **changes)
        print("ok", flush=True)

    def _take(self, device: int) -> None:
        direction = self._directions[device]
        way = direction.way
        for _ in range(64):
            try:
                packet = os.read(device, _PACKET_BYTES)
            except BlockingIOError:
                return
            flow = _flow(packet)
            if flow is not None:
                self._flows.add(flow)
            if way.is_cut or flow in self._forgotten or self._random.random() < way.loss:
                continue
            now = time.monotonic()
            leaves = max(direction.free_at, now)
            if way.rate:
                if (leaves - now) * way.rate > way.queue:
                    continue
                leaves = direction.free_at = leaves + len(packet) / way.rate
            due = max(direction.last, leaves + way.delay + way.jitter * self._random.random())
            direction.last = due
            if due <= now:
                _write(direction.device, packet)
            else:
                heapq.heappush(self._waiting, (due, next(self._numbers), direction.device, packet))


def _flow(packet: bytes) -> bytes | None:
    """Return what identifies the TCP connection of an IPv4 packet, in either direction."""
    if len(packet) < 40 or packet[0] >> 4 != 4 or packet[9] != _TCP:
        return None
    header = (packet[0] & 15) * 4
    ends = sorted((packet[12:16] + packet[header : header + 2], packet[16:20] + packet[header + 2 : header + 4]))
    return b"".join(ends)


def _open_device(name: str) -> int:
    """Make a TUN device; it lives as long as the descriptor, in whichever namespace it is moved to."""
    device = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(device, _TUNSETIFF, struct.pack("16sH22x", name.encode(), _IFF_TUN | _IFF_NO_PI))
    return device


def _write(device: int, packet: bytes) -> None:
    with contextlib.suppress(OSError):  # the device is down, or its queue is full: as a network, drop it
        os.write(device, packet)


if __name__ == "__main__":
    link = Link((sys.argv[1], sys.argv[2]))
    print("ready", flush=True)
    link.run()
