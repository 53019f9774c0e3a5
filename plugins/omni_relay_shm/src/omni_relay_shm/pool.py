"""The memory that two processes share: a header, a table of slots, and the data (all in one anonymous memfd).

Each word of a slot is written by one side only, so that a release needs no message: the owner writes ``generation``,
the reader ``holder`` and ``released``. Where both sides must see each other's last store (owner stores A and reads B
while the reader stores B and reads A), a full memory barrier is needed; Python offers none, so :func:`fence` takes an
uncontended lock, whose atomic operation is one on x86-64 and an acquire-release pair on 64-bit Arm.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import threading
from enum import IntEnum

from omni_core.api import RelayError

PAGE = 4096
SLOTS = 16384
"""The most slots: blocks in use plus recently withdrawn offers. Only used pages of the table take memory."""
SLOT_WORDS = 4
HEADER_BYTES = 64
TOKEN_BYTES = 16
DATA_START = -(-(HEADER_BYTES + SLOTS * SLOT_WORDS * 4) // PAGE) * PAGE

_fence_lock = threading.Lock()


def fence() -> None:
    """A full memory barrier."""
    with _fence_lock:
        pass


class Word(IntEnum):
    """The words of a slot, 32 bits each."""

    GENERATION = 0  # owner: the slot's current use; a reader of an earlier one is late
    HOLDER = 1  # reader: its pid while it holds a view
    RELEASED = 2  # reader: the generation that it has released


class PoolMemory:
    """A mapping of one pool, the owner's or a reader's.

    Layout: 16 bytes token, a word that is 1 while the owner waits for a release, padding; the slot table; the data.
    """

    def __init__(self, descriptor: int, size: int) -> None:
        self.map = mmap.mmap(descriptor, DATA_START + size)
        self._words = memoryview(self.map)[: HEADER_BYTES + SLOTS * SLOT_WORDS * 4].cast("I")

    @property
    def token(self) -> bytes:
        return self.map[:TOKEN_BYTES]

    def set_token(self, token: bytes) -> None:
        self.map[:TOKEN_BYTES] = token

    @property
    def owner_waits(self) -> bool:
        return self._words[TOKEN_BYTES // 4] != 0

    @owner_waits.setter
    def owner_waits(self, value: bool) -> None:
        self._words[TOKEN_BYTES // 4] = int(value)

    def read(self, slot: int, word: Word) -> int:
        return self._words[HEADER_BYTES // 4 + slot * SLOT_WORDS + word]

    def write(self, slot: int, word: Word, value: int) -> None:
        self._words[HEADER_BYTES // 4 + slot * SLOT_WORDS + word] = value

    def data(self, offset: int, nbytes: int) -> memoryview:
        start = DATA_START + offset
        return memoryview(self.map)[start : start + nbytes]

    def close(self) -> None:
        """Unmap now, or when the last exported view is released."""
        self._words.release()
        try:
            self.map.close()
        except BufferError:
            return  # a view is still in use; dropping our reference lets the last view unmap


def create(size: int) -> tuple[int, PoolMemory]:
    """Create a pool of ``size`` data bytes: its descriptor and the owner's mapping. It has no name, so nothing can be
    left behind.

    Raises:
        RelayError: the system has not enough memory.
    """
    descriptor = -1
    try:
        descriptor = os.memfd_create("omni-relay-shm", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(descriptor, DATA_START + size)
        # A process that has its size changed by mistake would kill all others by SIGBUS.
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)
        memory = PoolMemory(descriptor, size)
    except OSError as error:
        if descriptor >= 0:
            os.close(descriptor)
        raise RelayError(
            f"no shared memory for a pool of {size >> 20} MiB ({error.strerror}): free some, or lower the stage's "
            "relay.slot_size_mb or relay.credits"
        ) from error
    memory.set_token(os.urandom(TOKEN_BYTES))
    return descriptor, memory
