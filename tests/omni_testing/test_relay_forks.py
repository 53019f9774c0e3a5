"""The other processes of relay tests, where they are forked."""

from __future__ import annotations

import asyncio
import os
import signal
import time

import pytest

pytest.importorskip("torch")

from omni_testing import relay_forks
from omni_testing.relay_forks import ForkedProcess
from omni_testing.relay_peer import LINE_BYTES, Peer, PeerError

RELAY = "omni_relay_shm.relay:ShmRelay"


async def peer(name: str) -> Peer:
    folder = f"/tmp/{name}-{os.getpid()}"
    options = {"slot_size_mb": 1, "credits": 2, "namespace": name, "directory": folder}
    return await Peer.start(RELAY, {**options, "owner": name, "rank": 1, "world_size": 2})


def parent_of(process: ForkedProcess) -> int:
    with open(f"/proc/{process.pid}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


async def test_each_is_a_process_of_its_own_with_its_own_errors_and_end() -> None:
    first, second = await peer("first"), await peer("second")
    assert isinstance(first.process, ForkedProcess)
    assert isinstance(second.process, ForkedProcess)
    assert parent_of(first.process) == parent_of(second.process) != os.getpid()
    with pytest.raises(PeerError, match="KeyError"):
        await first.ask("release", hold="nothing")
    await first.kill()
    await first.kill()
    with pytest.raises(ProcessLookupError):
        first.process.kill()
    end = time.monotonic() + 2
    while os.path.exists(f"/proc/{first.process.pid}"):
        assert time.monotonic() < end, "it is waited for by nobody"
        await asyncio.sleep(0.01)
    assert (await second.ask("statistics"))["slots_in_use"] == 0
    waiting = asyncio.ensure_future(second.ask("idle", seconds=60))
    await asyncio.sleep(0.05)
    os.kill(second.process.pid, signal.SIGKILL)
    with pytest.raises(PeerError, match="ended"):
        await waiting
    await second.kill()


async def test_several_are_forked_at_once() -> None:
    peers = await asyncio.gather(*[peer(f"number{number}") for number in range(8)])
    assert len({each.process.pid for each in peers}) == 8
    assert [(await each.ask("statistics"))["slots_in_use"] for each in peers] == [0] * 8
    await peers[3].kill()
    assert [(await each.ask("statistics"))["slots_in_use"] for each in peers if each is not peers[3]] == [0] * 7
    for each in peers:
        await each.kill()


async def test_it_has_the_environment_of_its_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("OMNI_TEST_OF_FORKS", raising=False)
    old = await peer("old")
    monkeypatch.setenv("OMNI_TEST_OF_FORKS", "here")
    new = await peer("new")
    for each, expected in ((old, False), (new, True)):
        with open(f"/proc/{each.process.pid}/environ") as file:
            assert ("OMNI_TEST_OF_FORKS=here" in file.read()) == expected
        assert (await each.ask("statistics"))["slots_in_use"] == 0
        await each.kill()


async def test_a_killed_server_is_replaced() -> None:
    await (await peer("before")).kill()
    assert relay_forks._server is not None
    relay_forks._server._process.kill()
    relay_forks._server._process.wait()
    after = await peer("after")
    assert (await after.ask("statistics"))["slots_in_use"] == 0
    await after.kill()


async def test_arguments_that_it_cannot_read_end_that_process_alone() -> None:
    wrong = await ForkedProcess.start("no.such:Relay", "00", limit=LINE_BYTES)
    assert await wrong.stdout.readline() == b""
    await wrong.wait()
    right = await peer("right")
    assert (await right.ask("statistics"))["slots_in_use"] == 0
    await right.kill()
