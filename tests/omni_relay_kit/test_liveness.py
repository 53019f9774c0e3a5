"""Peer liveness: a process that has ended is distinguished from one that runs, and from a later one with its number."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from attrs import evolve

from omni_core.errors import PeerDiedError
from omni_relay_kit.liveness import Incarnation


def test_this_process_runs() -> None:
    mine = Incarnation.of_this_process()
    mine.check("me")
    assert mine.pid == os.getpid()
    assert Incarnation(*mine.plain()) == mine


def test_a_process_that_has_ended_is_an_error_even_before_its_parent_looks() -> None:
    code = "from omni_relay_kit.liveness import Incarnation; print(Incarnation.of_this_process().plain(), flush=True); input()"
    child = subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert child.stdin is not None
    assert child.stdout is not None
    incarnation = Incarnation(*eval(child.stdout.readline()))
    incarnation.check("child")
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # dead, and not reaped
    with pytest.raises(PeerDiedError, match=r"\(child\)"):
        incarnation.check("child")
    child.wait()
    with pytest.raises(PeerDiedError):
        incarnation.check("child")
    child.stdin.close()
    child.stdout.close()


def test_a_later_process_with_the_same_number_is_another() -> None:
    mine = Incarnation.of_this_process()
    with pytest.raises(PeerDiedError):
        evolve(mine, started=mine.started - 1).check("predecessor")


def test_a_process_of_another_host_cannot_be_told_from_here() -> None:
    elsewhere = evolve(Incarnation.of_this_process(), host="another boot", started=1)
    assert not elsewhere.is_here
    elsewhere.check("elsewhere")
