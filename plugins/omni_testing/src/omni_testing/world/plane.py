"""A simulated network: connections with delays, bounded room and deaths. Each keeps its order; nothing else does."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from random import Random

from omni_core.runtime_api import OnFrame, parse_frame
from omni_testing.world.clock import Clock, Loop


class Plane:
    """The ends of all processes, by address.

    Attributes:
        room: frames that a connection holds unread.
        is_near: as between processes of one machine, a write to a dead process fails at once; else it is lost until the loss is told.
    """

    def __init__(self, clock: Clock, random: Random) -> None:
        self.clock = clock
        self.random = random
        self.room = random.choice((3, 20, 1000))
        self.is_near = random.random() < 0.5
        self.slowest = random.choice((0.0, 0.001, 0.015))
        self.ends: dict[str, End] = {}
        self.frames = 0

    def delay(self) -> float:
        """The time that a frame takes: mostly short."""
        chance = self.random.random()
        return 1e-4 * chance if chance < 0.9 else self.slowest * self.random.random()


class End:
    """A process's end: what its control plane has for a :class:`~omni_core.control.network.Network`."""

    def __init__(self, plane: Plane, loop: Loop, address: str) -> None:
        self.address = address
        self.loop = loop
        self._plane = plane
        self._on_frame: OnFrame | None = None
        self._unread: list[tuple[Wire, bytes]] = []
        self._wires: list[Wire] = []
        plane.ends[address] = self

    def listen(self, on_frame: OnFrame) -> None:
        self._on_frame = on_frame
        for wire, data in self._unread:
            self.loop.call_soon(self.read, wire, data)

    def open(self, address: str, on_lost: Callable[[str], None]) -> Wire:
        other = self._plane.ends.get(address)
        wire = Wire(self._plane, self.loop, other, on_lost)
        if other is None:
            wire.break_off("nobody listens")
        else:
            other._wires.append(wire)
        return wire

    def close(self) -> None:
        self._plane.ends.pop(self.address, None)

    def died(self) -> None:
        """The process has ended: all connections to it do."""
        self.close()
        for wire in self._wires:
            wire.break_off("the connection was reset")

    def cut(self, random: Random) -> None:
        """End a connection to the process, though both sides live."""
        open_wires = [wire for wire in self._wires if wire.is_open and wire.loop.is_alive]
        if open_wires:
            random.choice(open_wires).break_off("the connection was cut", is_cut=True)

    def read(self, wire: Wire, data: bytes) -> None:
        """Take a frame in the process's turn; those that came before it listens wait."""
        if self._on_frame is None:
            self._unread.append((wire, data))
        else:
            wire.was_read()
            self._on_frame(*parse_frame(memoryview(data)))


class Wire:
    """A connection: what a sender has for a :class:`~omni_core.control.network.Link`."""

    def __init__(self, plane: Plane, loop: Loop, end: End | None, on_lost: Callable[[str], None]) -> None:
        self.loop = loop
        self.is_open = True
        self._is_cut = False
        self._plane = plane
        self._end = end
        self._on_lost = on_lost
        self._unread = 0
        self._part = b""
        self._connected = plane.clock.now + plane.delay() if end is not None else math.inf
        self._last = self._connected
        self._writable: Callable[[], None] | None = None
        self._is_due = False

    def write(self, parts: Sequence[memoryview]) -> int:
        plane = self._plane
        if not self.loop.is_alive:  # a coroutine of a dead process is being collected
            raise BlockingIOError
        if not self.is_open and (plane.is_near or self._is_cut):
            raise BlockingIOError if self._is_cut else BrokenPipeError
        if plane.clock.now < self._connected or self._unread >= plane.room:
            raise BlockingIOError
        data = bytes(parts[0]) if len(parts) == 1 else b"".join(parts)
        if plane.random.random() < 0.02 and len(data) > 1:  # a part of a frame
            data = data[: plane.random.randrange(1, len(data))]
        whole = self._part + data
        length = 12 + int.from_bytes(whole[4:8], "little") + int.from_bytes(whole[8:12], "little")
        if len(whole) < 12 or len(whole) < length:
            self._part = whole
        else:
            self._part = b""
            self._unread += 1
            if self.is_open and self._end is not None:
                plane.frames += 1
                self._last = max(self._last, plane.clock.now + plane.delay())
                self._end.loop.call_at(self._last, self._end.read, self, whole)
        return len(data)

    def was_read(self) -> None:
        """The other side has read a frame."""
        self._unread -= 1
        self._tell()

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        self._writable = callback
        self._tell()

    def _tell(self) -> None:
        has_room = self._unread < self._plane.room or not self.is_open
        is_up = self._connected < math.inf and not self._is_cut and self.loop.is_alive
        if self._writable is not None and not self._is_due and is_up and has_room:
            self._is_due = True
            self.loop.call_at(max(self._connected, self._plane.clock.now), self._call)

    def _call(self) -> None:
        self._is_due = False
        if self._writable is not None:
            self._writable()
            self._tell()

    def break_off(self, reason: str, *, is_cut: bool = False) -> None:
        """The connection ends, which its sender is told a little later. ``is_cut``: both processes live."""
        if self.is_open:
            self.is_open, self._is_cut = False, is_cut
            self._unread = 0
            self._tell()
            if self.loop.is_alive:
                self.loop.call_later(0.05 * self._plane.random.random(), self._lost, reason)

    def _lost(self, reason: str) -> None:
        if self._on_lost is not None:
            self._on_lost(reason)

    def close(self) -> None:
        self._writable = None
