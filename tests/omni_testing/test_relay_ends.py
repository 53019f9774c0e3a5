"""Shared memory that a relay has left is told from that of programs which run beside its suite."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from omni_testing.relay.ends import _left

SHARED = Path("/dev/shm")

pytestmark = pytest.mark.skipif(not SHARED.is_dir(), reason="no /dev/shm")

HOLD = """
import mmap, sys
with open(sys.argv[1], "r+b") as file, mmap.mmap(file.fileno(), 0):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.fixture
def memory() -> Iterator[Path]:
    path = SHARED / f"omni-test-{os.getpid()}-{os.urandom(4).hex()}"
    path.write_bytes(bytes(mmap.PAGESIZE))
    yield path
    path.unlink()


def test_memory_that_nobody_uses_is_left(memory: Path) -> None:
    assert _left({"other"}, {"other", memory.name}) == {memory.name}
    assert not _left({memory.name}, {memory.name})


def test_memory_that_this_process_or_one_of_its_own_uses_is_left(memory: Path) -> None:
    with open(memory, "r+b") as file, mmap.mmap(file.fileno(), 0):
        assert _left(set(), {memory.name}) == {memory.name}
    with _holding([sys.executable, "-c", HOLD, str(memory)]):
        assert _left(set(), {memory.name}) == {memory.name}


def test_memory_that_another_program_uses_is_not(memory: Path) -> None:
    """One whose parent has ended is no descendant of this process, unless this is the first of its container."""
    if os.getpid() == 1:
        pytest.skip("all are descendants of process 1")
    command = ["sh", "-c", 'exec 3<&0; "$@" <&3 &', "sh", sys.executable, "-c", HOLD, str(memory)]
    with _holding(command) as shell:
        shell.wait(10)
        assert not _left(set(), {memory.name})


def _holding(command: list[str]) -> subprocess.Popen[str]:
    """A program that holds shared memory until its input ends."""
    holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert holder.stdout is not None
    assert holder.stdout.readline() == "held\n"
    return holder
