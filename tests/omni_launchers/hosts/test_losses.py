"""Hosts that join late, are lost with requests in flight, freeze, and come back."""

from __future__ import annotations

import asyncio
import ctypes
import json
import os
import signal
import socket
import time
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from attrs import evolve
from over_hosts import (
    HERE,
    SECONDS,
    THERE,
    ask,
    ended,
    free_address,
    held,
    joining,
    omni_hosts,
    serves_again,
    two_hosts,
)

from omni_core.client import open_async
from omni_core.config.schema import LauncherConfig
from omni_core.errors import RequestFailedError, StartupError
from omni_core.protocol.messages import OmniRequest
from omni_launchers.hosts.curve import CurveKeys

_PIDFD_GETFD = 438


async def test_a_host_that_joins_late_is_lost_and_joins_again_elsewhere(folder: Path, key_file: Path) -> None:
    config = two_hosts(folder, key_file)
    async with AsyncExitStack() as stack:
        opening = asyncio.ensure_future(stack.enter_async_context(open_async(config)))
        await asyncio.sleep(0.5)
        assert not opening.done()
        async with joining(config, key_file) as first:
            pipe = await asyncio.wait_for(opening, SECONDS)
            child = psutil.Process((await ask(pipe, "far"))["pid"])
            assert child.ppid() == first.pid
            near = (await ask(pipe, "near"))["pid"]
            (lost,) = await held(pipe, "far")
            (elsewhere,) = await held(pipe, "near", 1.5)
            first.kill()
            with pytest.raises(RequestFailedError, match="host 'b' is gone"):
                await asyncio.wait_for(lost, SECONDS)
            await ended(child)
            waiting = asyncio.ensure_future(ask(pipe, "far"))
            assert (await asyncio.wait_for(elsewhere, SECONDS))["pid"] == near
            await stack.enter_async_context(joining(config, key_file))
            assert psutil.Process((await asyncio.wait_for(waiting, SECONDS))["pid"]).ppid() != first.pid
            assert (await ask(pipe, "near"))["pid"] == near
            assert (await serves_again(pipe, "far"))["pid"] != child.pid


async def test_a_host_that_freezes_is_lost_and_taken_in_again_when_it_goes_on(folder: Path, key_file: Path) -> None:
    config = two_hosts(folder, key_file)
    async with joining(config, key_file, "--stage", "far") as host, open_async(config) as pipe:
        before = (await ask(pipe, "far"))["pid"]
        frozen = [psutil.Process(before), psutil.Process(host.pid)]
        (lost,) = await held(pipe, "far")
        for process in frozen:
            process.suspend()
        try:
            with pytest.raises(RequestFailedError, match="host 'b' is gone"):
                await asyncio.wait_for(lost, SECONDS)
            await asyncio.wait_for(ask(pipe, "near"), SECONDS)
        finally:
            for process in frozen:
                process.resume()
        answer = await serves_again(pipe, "far")
        assert answer["pid"] != before
        assert psutil.Process(answer["pid"]).ppid() == host.pid
        await ended(frozen[0])


async def test_profiles_and_logs_of_the_other_host_arrive(
    folder: Path, key_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = two_hosts(folder, key_file)
    async with joining(config, key_file), open_async(config) as pipe:
        await pipe.start_profile()
        begin = time.monotonic_ns() / 1e3
        await pipe.submit(OmniRequest({"to": "far", "says": "a line from afar"}))
        end = time.monotonic_ns() / 1e3
        summary = await pipe.stop_profile(folder / "trace.json")
        assert summary.missing == []
    events = json.loads((folder / "trace.json").read_text())["traceEvents"]
    process = next(each["pid"] for each in events if each["ph"] == "M" and each["args"]["name"] == "far")
    times = [each["ts"] for each in events if each["pid"] == process and "ts" in each]
    assert process >> 22 == 1
    assert times
    slack = 2e6  # the two clocks are one, and are compared by messages, which take their time on a busy machine
    assert begin - slack < min(times) <= max(times) < end + slack
    assert "a line from afar" in caplog.text


async def test_a_start_without_the_host_says_who_is_missing(folder: Path, key_file: Path) -> None:
    config = two_hosts(folder, key_file, startup_timeout=2.0)
    command = (
        rf"stage 'far': not ready .*host 'b' \(it has not joined; there: omni hosts join {config.endpoints.accept}"
    )
    with pytest.raises(StartupError, match=command):
        async with open_async(config):
            pass


async def test_a_start_that_is_cancelled_while_it_waits_for_a_host_leaves_nothing(folder: Path, key_file: Path) -> None:
    config = two_hosts(folder, key_file)
    assert config.endpoints.accept is not None
    others = set(psutil.Process().children(recursive=True))
    opening = asyncio.ensure_future(open_async(config).__aenter__())
    await asyncio.sleep(0.5)
    started = set(psutil.Process().children(recursive=True)) - others
    assert started
    opening.cancel()
    await asyncio.wait([opening])
    assert opening.cancelled()
    assert [each for each in folder.iterdir() if each != key_file] == []
    assert not started & set(psutil.Process().children(recursive=True))
    with socket.create_server((HERE, int(config.endpoints.accept.rpartition(":")[2]))):
        pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--as", "c"), "no stage runs on a host called 'c'"),
        (("--stage", "fra"), "no stage is called 'fra'; did you mean 'far'"),
        (("--stage", "near"), "set its `host` there"),
        (("--as", "b", "--digest", "00"), "its config has the digest"),
    ],
)
async def test_a_host_that_does_not_belong_to_the_run_is_told(
    arguments: tuple[str, ...], message: str, folder: Path, key_file: Path
) -> None:
    config = two_hosts(folder, key_file)
    async with AsyncExitStack() as stack:
        opening = asyncio.ensure_future(stack.enter_async_context(open_async(config)))
        async with joining(config, key_file, *arguments) as host:
            _, errors = await asyncio.wait_for(host.communicate(), SECONDS)
            assert host.returncode == 1
            assert message in errors.decode()
        opening.cancel()
        await asyncio.wait([opening])


async def test_a_host_with_another_key_waits_and_disturbs_nobody(folder: Path, key_file: Path) -> None:
    CurveKeys.new().write(folder / "other.key")
    config = two_hosts(folder, key_file)
    async with joining(config, folder / "other.key") as stranger, joining(config, key_file):
        async with open_async(config) as pipe:
            await ask(pipe, "far")
        stranger.send_signal(signal.SIGINT)
        _, errors = await asyncio.wait_for(stranger.communicate(), SECONDS)
        assert "waiting for" in errors.decode()
        assert "joined" not in errors.decode()


async def test_a_runner_that_ends_leaves_nothing_and_the_host_waits_for_the_next(folder: Path, key_file: Path) -> None:
    config = two_hosts(folder, key_file)
    async with joining(config, key_file) as host:
        for _ in range(2):
            async with open_async(config) as pipe:
                child = psutil.Process((await ask(pipe, "far"))["pid"])
                assert child.ppid() == host.pid
            await ended(child)
        assert host.returncode is None
        os.kill(host.pid, 0)


def cut(pid: int, chosen: Callable[[Any], bool]) -> None:
    """Shut down the ``chosen`` connections of a process, as a network may."""
    connections = [each for each in psutil.Process(pid).net_connections("tcp") if each.status == "ESTABLISHED"]
    descriptors = [each.fd for each in connections if each.raddr and chosen(each)]
    assert descriptors
    process = os.pidfd_open(pid)
    for descriptor in descriptors:
        copy = ctypes.CDLL(None, use_errno=True).syscall(_PIDFD_GETFD, process, descriptor, 0)
        if copy < 0:
            pytest.skip(f"connections of other processes cannot be cut here: {os.strerror(ctypes.get_errno())}")
        with socket.socket(fileno=copy) as connection:
            connection.shutdown(socket.SHUT_RDWR)
    os.close(process)


async def test_a_connection_between_two_stages_that_is_cut_loses_no_request(folder: Path, key_file: Path) -> None:
    """Both hosts stay connected with the runner; what was on its way is run again."""
    config = two_hosts(folder, key_file, retries=2)
    async with joining(config, key_file), open_async(config) as pipe:
        before = (await ask(pipe, "far"))["pid"]
        (listening,) = [each for each in psutil.Process(before).net_connections("tcp") if each.status == "LISTEN"]
        (first,) = await held(pipe, "far", 3.0)
        cut(pipe.process_ids["choose"], lambda each: each.raddr.port == listening.laddr.port)
        others = [asyncio.ensure_future(ask(pipe, "far")) for _ in range(4)]
        answers = await asyncio.wait_for(asyncio.gather(first, *others), SECONDS)
        assert before not in {answer["pid"] for answer in answers}
        assert (await ask(pipe, "near"))["pid"] == pipe.process_ids["near"]


async def test_a_host_whose_connection_to_the_runner_is_cut_is_taken_in_again(folder: Path, key_file: Path) -> None:
    """It ends the run, though the connection of the runner to it goes on."""
    address = free_address(THERE)
    config = two_hosts(folder, key_file, address)
    async with omni_hosts("serve", "--listen", address, "--key", str(key_file)) as host, open_async(config) as pipe:
        before = (await ask(pipe, "far"))["pid"]
        cut(host.pid, lambda each: each.laddr.ip.endswith(HERE))
        with suppress(psutil.NoSuchProcess):  # it may have ended by now
            await ended(psutil.Process(before))
        assert (await serves_again(pipe, "far"))["pid"] != before


async def test_a_stage_that_cannot_be_built_on_the_other_host_says_why(folder: Path, key_file: Path) -> None:
    """Though its process has to connect to the runner first."""
    address = free_address(THERE)
    config = two_hosts(folder, key_file, address)
    *others, far = config.stages
    stages = [*others, evolve(far, factory="host_stages:broken")]
    config = evolve(config, stages=stages, launcher=LauncherConfig("late:Late"))
    async with omni_hosts("serve", "--listen", address, "--key", str(key_file)):
        with pytest.raises(StartupError, match=r"stage 'far' could not be started: ValueError: no weights are here"):
            async with open_async(config):
                pass
