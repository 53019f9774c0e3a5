"""The contract of connections: one to a peer, and a run's way to its other machines. Without other machines there is none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

OnFrame = Callable[[memoryview, memoryview], None]
"""Takes document and raw bytes of a frame; the document is valid during the call only."""


class Link(Protocol):
    """The sending end of one connection."""

    def write(self, parts: Sequence[memoryview]) -> int:
        """Write parts of one frame; how many bytes were taken. Raises BlockingIOError: none now. OSError: none any more."""

    def when_writable(self, callback: Callable[[], None] | None) -> None:
        """Call ``callback`` whenever something can be written; ``None``: no more."""

    def close(self) -> None: ...


class Network(Protocol):
    """A process's way to processes on other machines, and theirs to it. Encrypted, and only for those who own the run's keys.

    In a stage process it is made by the target of a :class:`~omni_core.protocol.specs.NetworkSpec`, called with its options and the
    descriptor of the listening socket that the process has inherited (``None``: it has none).
    """

    address: str
    """By which processes on other machines reach this one."""

    def listen(self, on_frame: OnFrame) -> None:
        """Begin to receive."""

    def open(self, address: str, on_lost: Callable[[str], None]) -> Link:
        """Connect; the link takes bytes once that has succeeded. ``on_lost``: called once, with the reason, when it has ended or
        cannot be made.
        """

    def close(self) -> None:
        """Close the listening socket. Every link is closed before."""
