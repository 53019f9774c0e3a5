"""Pipelines over two hosts whose network is slow, loses packets, or is cut, wholly, in one direction or for the connections of a moment."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest
from network_harness import Network, ask, joining, network_relays, serves_again, serving, two_hosts

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import LauncherConfig
from omni_core.errors import ConfigError, RequestFailedError
from omni_core.protocol.process_messages import PeerCutReport

pytestmark = pytest.mark.full

SOON = LauncherConfig("hosts", {"silence": 1.5})
"""A host counts as lost sooner than by default, which makes a test shorter."""


def begin(
    pipe: AsyncPipe, seeds: Sequence[int], seconds: float = 0.0, count: int = 50_000
) -> list[asyncio.Future[Any]]:
    return [asyncio.ensure_future(ask(pipe, "far", seed, count, seconds)) for seed in seeds]


async def all_are_lost(requests: Sequence[asyncio.Future[Any]], within: float) -> None:
    """Wait until every request has failed, with an error that names the host and its stage."""
    errors = await asyncio.wait_for(asyncio.gather(*requests, return_exceptions=True), within)
    assert {type(each) for each in errors} == {RequestFailedError}
    assert all("in stage 'far'" in str(each) and "host 'b'" in str(each) for each in errors), errors


async def nothing_is_left(pipe: AsyncPipe) -> None:
    """Wait until no process holds anything of a request."""

    def held(statistics: Any) -> dict[str, Any]:
        counters = {name: dict(each) for name, each in statistics.items() if name != "coordinator"}
        found: dict[str, Any] = {name: each.pop("relay", {}).get("slots_in_use", 0) for name, each in counters.items()}
        for each in counters.values():
            for name, counter in each.items():
                for key in ("in_flight", "queued", "sends_pending"):
                    found[f"{name}.{key}"] = counter.get(key, 0)
        return {name: number for name, number in found.items() if number}

    async with asyncio.timeout(60):
        while held(await pipe.statistics()):
            await asyncio.sleep(0.1)


@pytest.mark.parametrize("by", ["message", "relay"])
async def test_answers_are_equal_over_a_network_with_delay_jitter_and_loss(
    by: str, network: Network, folder: Path, key_file: Path
) -> None:
    config = two_hosts(folder, key_file, None, network_relays() if by == "relay" else None)
    async with joining(network, key_file):
        network.both(delay=0.04, jitter=0.01, loss=0.015)
        async with open_async(config) as pipe:
            pid = (await ask(pipe, "far"))["pid"]
            answers = await asyncio.gather(*(ask(pipe, "far", seed, 10 + 6_000 * seed) for seed in range(10)))
            assert {each["pid"] for each in answers} == {pid}
            network.both(delay=0.0, jitter=0.0, loss=0.0)
            await nothing_is_left(pipe)


async def test_a_message_that_takes_longer_than_a_lost_host_is_waited_for(
    network: Network, folder: Path, key_file: Path
) -> None:
    async with AsyncExitStack() as stack:
        address, _ = await stack.enter_async_context(serving(network, key_file))
        pipe = await stack.enter_async_context(open_async(two_hosts(folder, key_file, address)))
        pid = (await ask(pipe, "far"))["pid"]
        network.forth(rate=250e3)
        start = time.monotonic()
        assert (await asyncio.wait_for(ask(pipe, "far", 1, 350_000), 60))["pid"] == pid
        assert time.monotonic() - start > 5  # else it was not slow


async def test_a_process_that_is_busy_for_longer_than_a_lost_host_is_waited_for(
    network: Network, folder: Path, key_file: Path
) -> None:
    """It reads no message, and more wait for it than ZMQ takes, but its host is there."""
    async with joining(network, key_file), open_async(two_hosts(folder, key_file, None)) as pipe:
        pid = (await ask(pipe, "far"))["pid"]
        busy = asyncio.ensure_future(ask(pipe, "far", seconds=-5.0))
        await asyncio.sleep(0.2)
        answers = await asyncio.wait_for(asyncio.gather(busy, *begin(pipe, range(200), count=20_000)), 60)
        assert {each["pid"] for each in answers} == {pid}


async def test_a_cut_that_is_shorter_than_the_silence_of_a_lost_host_loses_nothing(
    network: Network, folder: Path, key_file: Path
) -> None:
    config = two_hosts(folder, key_file, None, launcher=LauncherConfig("hosts", {"silence": 15}))
    async with joining(network, key_file), open_async(config) as pipe:
        pid = (await ask(pipe, "far"))["pid"]
        held = begin(pipe, range(4), 0.2)
        await asyncio.sleep(0.1)
        network.both(is_cut=True)
        held += begin(pipe, range(4, 8))
        await asyncio.sleep(4.5)
        assert not any(each.done() for each in held)
        network.both(is_cut=False)
        answers = await asyncio.wait_for(asyncio.gather(*held), 60)
        assert {each["pid"] for each in answers} == {pid}


async def test_a_cut_of_20_seconds(network: Network, folder: Path, key_file: Path) -> None:
    """Requests that the host held fail by name, others go on, and the host's stages serve again when the network does."""
    async with joining(network, key_file), open_async(two_hosts(folder, key_file, None)) as pipe:
        before = await ask(pipe, "far")
        sockets = len(psutil.Process().net_connections("tcp"))
        lost = begin(pipe, range(4), 0.5)
        await asyncio.sleep(0.2)
        network.both(is_cut=True)
        start = time.monotonic()
        lost += begin(pipe, range(4, 8))
        near = [await asyncio.wait_for(ask(pipe, "near"), 15)]
        await all_are_lost(lost, 18)
        held = begin(pipe, range(8, 12))
        while time.monotonic() < start + 20:
            near.append(await asyncio.wait_for(ask(pipe, "near", len(near), seconds=0.1), 15))
        assert not any(each.done() for each in held)
        network.both(is_cut=False)
        answers = await asyncio.wait_for(asyncio.gather(*held), 60)
        assert {each["pid"] for each in near} == {pipe.process_ids["near"]}
        assert before["pid"] not in {each["pid"] for each in answers}
        assert {each["last"] for each in answers} == {before["last"]}
        await nothing_is_left(pipe)
        async with asyncio.timeout(60):
            while len(psutil.Process().net_connections("tcp")) > sockets:
                await asyncio.sleep(0.1)
        assert (await pipe.statistics())["coordinator"]["requests"]["failed"] == len(lost)


async def test_requests_whose_payloads_were_on_their_way_when_the_network_was_cut_run_again(
    network: Network, folder: Path, key_file: Path
) -> None:
    there, back = network_relays()
    config = two_hosts(folder, key_file, None, (back, there), launcher=SOON, retries=2)
    async with joining(network, key_file), open_async(config) as pipe:
        await ask(pipe, "far")
        network.both(rate=1e6)
        held = begin(pipe, range(3), count=500_000)  # for seconds, in one direction and then in the other
        await asyncio.sleep(3.0)
        assert not all(each.done() for each in held)
        network.both(is_cut=True, rate=0)
        await asyncio.wait_for(asyncio.gather(*(ask(pipe, "near", seconds=0.5) for _ in range(7))), 60)
        network.both(is_cut=False)
        await asyncio.wait_for(asyncio.gather(*held), 60)
        await asyncio.wait_for(asyncio.gather(*begin(pipe, range(6), count=1_000_000)), 60)
        await nothing_is_left(pipe)
        counts = (await pipe.statistics())["coordinator"]["requests"]
        assert counts["failed"] == 0
        assert counts["retried"] > 0


async def test_a_network_that_is_cut_in_one_direction(network: Network, folder: Path, key_file: Path) -> None:
    async with joining(network, key_file), open_async(two_hosts(folder, key_file, None, launcher=SOON)) as pipe:
        for way in (network.forth, network.back):
            pid = (await ask(pipe, "far"))["pid"]
            lost = begin(pipe, range(4), 1.0)
            await asyncio.sleep(0.2)
            way(is_cut=True)
            await all_are_lost(lost, 60)
            held = begin(pipe, range(3))
            await asyncio.wait_for(ask(pipe, "near", seconds=0.5), 60)
            assert not any(each.done() for each in held)
            way(is_cut=False)
            answers = await asyncio.wait_for(asyncio.gather(*held), 60)
            assert pid not in {each["pid"] for each in answers}
        await nothing_is_left(pipe)


async def test_connections_that_a_router_has_forgotten_are_made_again(
    network: Network, folder: Path, key_file: Path
) -> None:
    """Not one of their packets arrives any more, in either direction; those of new connections do."""
    config = two_hosts(folder, key_file, None, launcher=SOON, retries=1)
    async with joining(network, key_file), open_async(config) as pipe:
        pid = (await ask(pipe, "far"))["pid"]
        held = begin(pipe, range(1), 1.0)
        await asyncio.sleep(0.2)
        network.forget()
        (answer,) = await asyncio.wait_for(asyncio.gather(*held), 60)
        assert answer["pid"] != pid
        await nothing_is_left(pipe)


async def test_a_host_that_wakes_up_after_it_was_lost_does_no_harm(
    network: Network, folder: Path, key_file: Path
) -> None:
    config = two_hosts(folder, key_file, None, launcher=SOON, retries=2)
    async with joining(network, key_file) as (_, host), open_async(config) as pipe:
        before = await ask(pipe, "far")
        alone = pipe.process_ids
        held = begin(pipe, range(4), 0.3)
        await asyncio.sleep(0.4)
        stopped = host.freeze()
        of_the_run = [each for each in stopped if each.name().startswith("omni:")]
        assert of_the_run
        await asyncio.wait_for(asyncio.gather(*(ask(pipe, "near", seconds=0.5) for _ in range(7))), 60)
        assert not all(each.done() for each in held)
        host.thaw(stopped)
        answers = await asyncio.wait_for(asyncio.gather(*held), 60)
        assert (await serves_again(pipe, 60))["pid"] != before["pid"]
        pipe._runner._units.handle(
            PeerCutReport(pipe._runner._units["last"].spec.endpoint, "late", "far", before["pid"])
        )
        await asyncio.sleep(1.5)
        assert {each["last"] for each in answers} == {before["last"]}
        assert {**pipe.process_ids, "far": 0} == {**alone, "far": 0}
        await nothing_is_left(pipe)
        counts = (await pipe.statistics())["coordinator"]["requests"]
        assert counts["completed"] == counts["admitted"]
        await asyncio.to_thread(psutil.wait_procs, of_the_run, 60)
        assert not any(each.is_running() for each in of_the_run)


async def test_a_silence_that_makes_no_sense_is_refused(folder: Path, key_file: Path) -> None:
    for settings, message in (({"silence": 0.1}, "silence"), ({"silense": 5}, "did you mean 'silence'")):
        config = two_hosts(folder, key_file, None, launcher=LauncherConfig("hosts", settings))
        with pytest.raises(ConfigError, match=f"launcher.settings.*{message}"):
            async with open_async(config):
                pass
