"""Pipelines over two hosts: control over TCP with keys, data over the relays that connect hosts. Here both hosts are
loopback addresses; ``test_namespaces.py`` has two network namespaces.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil
import pytest
from pipelines import make_pipeline

from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import PipelineConfig, RelayConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, RequestFailedError, StartupError
from omni_core.hookspecs import works
from omni_core.launch.prepare import prepare
from omni_core.plugins import load_plugins
from omni_core.protocol.messages import OmniRequest

zmq = pytest.importorskip("zmq")

from over_addresses import THERE, total, two_hosts  # noqa: E402

from omni_launchers.hosts.curve import CurveContext, CurveKeys  # noqa: E402

SECONDS = 60.0
"""Only a failure waits that long."""


@pytest.fixture
def on_path() -> None:
    """The environment of a pipeline over two hosts: a relay connects the hosts."""
    checked = {each.name: answer for hook, each, _, answer in load_plugins().check() if hook == "omni_relays"}
    if not any(works(checked.get(name, "not installed")) for name in ("nixl", "mooncake")):
        pytest.skip("no relay that joins hosts can work here")


@asynccontextmanager
async def host_server(key_file: Path) -> AsyncIterator[tuple[str, asyncio.subprocess.Process]]:
    """Start ``omni hosts serve`` on the other address; return its endpoint and its process."""
    command = [
        sys.executable,
        "-m",
        "omni_core.cli",
        "hosts",
        "serve",
        "--listen",
        f"tcp://{THERE}:0",
        "--key",
        str(key_file),
    ]
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    words = (await asyncio.wait_for(process.stdout.readline(), SECONDS)).decode().split()
    try:
        yield words[2].rstrip(";"), process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.wait(), SECONDS)


async def test_a_pipeline_over_two_hosts_answers_and_leaves_nothing(
    folder: Path, key_file: Path, on_path: None
) -> None:
    async with host_server(key_file) as (address, server):
        async with open_async(two_hosts(folder, key_file, address)) as client:
            children = of_the_runs(server.pid)
            assert client.process_ids["total"] in {each.pid for each in children}
            assert psutil.Process(client.process_ids["total"]).name() == "omni:total"
            await asyncio.gather(*(total(client, count) for count in (1, 10, 500, 3000)))
            await client.submit(OmniRequest({"count": 5}))
            assert set(await client.statistics()) >= {"big", "total", "coordinator"}
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, SECONDS)
        assert not alive, alive
        async with open_async(two_hosts(folder, key_file, address)) as client:  # the server serves run after run
            await total(client, 7)


async def test_a_death_on_the_other_host_is_an_error_that_names_it_and_is_repaired(
    folder: Path, key_file: Path, on_path: None
) -> None:
    async with host_server(key_file) as (address, _), open_async(two_hosts(folder, key_file, address)) as client:
        await total(client, 10)
        pid = client.process_ids["total"]
        waiting = await held(client)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RequestFailedError, match=r"'total'.*SIGKILL|SIGKILL.*'total'"):
            await asyncio.wait_for(waiting, SECONDS)
        await asyncio.wait_for(total(client, 11), SECONDS)


async def held(client: AsyncPipe) -> asyncio.Future[Any]:
    """Return a request that the stage there computes for minutes."""
    waiting = asyncio.ensure_future(client.submit(OmniRequest({"count": 10}, params={"seconds": 600.0})))
    async with asyncio.timeout(SECONDS):
        while not (await client.statistics())["total"]["total"]["in_flight"]:
            await asyncio.sleep(0.02)
    return waiting


def name_of(process: psutil.Process) -> str:
    """Return a process's name, which is empty once it has ended."""
    with suppress(psutil.NoSuchProcess):
        return str(process.name())
    return ""


def lines_of(pid: int) -> dict[psutil.Process, list[str]]:
    """Return the processes below one, and their command lines; those that end meanwhile are left out."""
    found = {}
    for each in psutil.Process(pid).children(recursive=True):
        with suppress(psutil.NoSuchProcess):
            found[each] = each.cmdline()
    return found


def of_the_runs(pid: int) -> list[psutil.Process]:
    """Return the processes below a host's server, without its own directory cleaner, which stays."""
    return [
        each
        for each, line in lines_of(pid).items()
        if not ("omni-directory-cleaner" in line and (_cleaned(line) / "host.sock").exists())
    ]


def _cleaned(line: list[str]) -> Path:
    return Path(line[line.index("omni-directory-cleaner") + 1])


@pytest.mark.full
async def test_another_key_is_refused(folder: Path, key_file: Path, on_path: None) -> None:
    CurveKeys.new().write(folder / "other.key")
    async with host_server(key_file) as (address, server):
        with pytest.raises(StartupError, match=r"hosts\.b: .*same key"):
            async with open_async(two_hosts(folder, folder / "other.key", address)):
                pass
        assert not [each for each in of_the_runs(server.pid) if name_of(each).startswith("omni:")]


async def test_a_peer_without_the_secret_key_is_rejected(folder: Path, key_file: Path, on_path: None) -> None:
    keys = CurveKeys.read(key_file)
    async with host_server(key_file) as (address, server):
        stranger = CurveContext(CurveKeys.new())
        known = stranger.socket(zmq.PUSH)
        known.curve_serverkey = keys.public.encode()
        known.immediate = True
        known.connect(address)
        plain = stranger._context.socket(zmq.PUSH)
        plain.linger = 0
        plain.immediate = True
        plain.connect(address)
        await asyncio.sleep(1)
        with pytest.raises(zmq.Again):
            zmq.Socket.send(known, b"hello", zmq.NOBLOCK)
        known.close()
        plain.close()
        stranger.close()
        async with open_async(two_hosts(folder, key_file, address)) as client:  # others are not disturbed
            await total(client, 3)
        assert server.returncode is None


async def test_a_host_that_does_not_answer_is_named(folder: Path, key_file: Path) -> None:
    with socket.socket() as free:
        free.bind((THERE, 0))
        address = f"tcp://{THERE}:{free.getsockname()[1]}"
    with pytest.raises(StartupError, match=r"hosts\.b: .*no process answers there; is `omni hosts serve"):
        async with open_async(two_hosts(folder, key_file, address)):
            pass


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--listen", "tcp://0.0.0.0:7555"], "without a key"),
        (["--listen", "tcp://127.0.0.1:7555"], "without a key"),
        (["--listen", "tcp://0.0.0.0:7555", "--key", "KEY"], "name one address"),
        (["--listen", "127.0.0.1:7555", "--key", "KEY"], "of the form tcp://HOST:PORT"),
        (["--listen", "tcp://127.0.0.1:1", "--key", "nowhere.key"], "cannot be read"),
    ],
)
def test_serving_without_a_key_or_an_address_is_refused(arguments: list[str], message: str, key_file: Path) -> None:
    given = [str(key_file) if each == "KEY" else each for each in arguments]
    command = [sys.executable, "-m", "omni_core.cli", "hosts", "serve", *given]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert ended.returncode == 1
    assert message in ended.stderr


def test_a_key_file_is_private_and_never_replaced(folder: Path) -> None:
    command = [sys.executable, "-m", "omni_core.cli", "hosts", "key", str(folder / "k")]
    assert subprocess.run(command, capture_output=True, timeout=SECONDS, check=False).returncode == 0
    keys = CurveKeys.read(folder / "k")
    assert (folder / "k").stat().st_mode & 0o777 == 0o600
    again = subprocess.run(command, capture_output=True, text=True, timeout=SECONDS, check=False)
    assert again.returncode == 1
    assert "exists" in again.stderr
    assert CurveKeys.read(folder / "k") == keys
    assert keys.secret not in repr(keys)
    (folder / "k").chmod(0o644)
    with pytest.raises(ConfigError, match="chmod 600"):
        CurveKeys.read(folder / "k")


def test_a_config_with_hosts_is_checked() -> None:
    def problem(**fields: Any) -> str:
        stages = [
            StageConfig(name="a", factory="x:y", process="a", next="b"),
            StageConfig(name="b", factory="x:y", process="b", terminal=True, host="away"),
        ]
        with pytest.raises(ConfigError) as caught:
            validate(PipelineConfig(model_path="none", stages=fields.pop("stages", stages), **fields))
        return str(caught.value)

    assert "stages[b].host: no host is called 'away'; did you mean 'awai'?" in problem(hosts={"awai": "tcp://h:1"})
    both = problem(hosts={"away": "tcp://h:1"})
    assert "endpoints.address: required" in both
    assert "endpoints.key_file: required" in both
    assert "hosts.away: 'h:1' is no address" in problem(hosts={"away": "h:1"})
    shared = [
        StageConfig(name="a", factory="x:y", process="p", next="b"),
        StageConfig(name="b", factory="x:y", process="p", terminal=True, host="away"),
    ]
    assert "different `host` (stages[a].host: this one, stages[b].host: away)" in problem(
        stages=shared, hosts={"away": "tcp://h:1"}
    )


def test_a_relay_of_one_host_is_replaced_or_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = two_hosts(folder, folder / "k", "tcp://b:1")
    registry = load_plugins()
    able = [
        component
        for component, _ in registry.components("omni_relays")
        if getattr(component, "across_hosts", False) and (component.probe is None or component.probe() is None)
    ]
    if able:
        best = max(able, key=lambda each: each.preference).name
        big, end = prepare(config, registry).units
        assert list(big.processes[0].relays) == list(end.processes[0].relays) == [best]
        assert big.processes[0].relay_towards == {end.endpoint: best}
    else:
        with pytest.raises(ConfigError, match=r"no relay that can work here joins them.*omni plugins list"):
            prepare(config, registry)
    with pytest.raises(ConfigError, match=r"stages\[big\]\.relay\.backend: .*'shm' does not join"):
        prepare(two_hosts(folder, folder / "k", "tcp://b:1", relay=RelayConfig(backend="shm")), registry)


def test_a_stage_may_choose_its_relay(folder: Path) -> None:
    stages = [
        StageConfig(
            name="a",
            factory="x:y",
            process="a",
            next="b",
            relay=RelayConfig(backend="mine.relay:Mine", settings={"x": 1}),
        ),
        StageConfig(name="b", factory="x:y", process="b", next="c"),
        StageConfig(name="c", factory="x:y", process="c", terminal=True),
    ]
    a, b, c = prepare(make_pipeline(folder, *stages), load_plugins()).units
    assert list(a.processes[0].relays) == ["mine.relay:Mine"]
    assert list(b.processes[0].relays) == ["mine.relay:Mine", "shm"]
    assert list(c.processes[0].relays) == ["shm"]
    assert a.processes[0].relay_towards == {b.endpoint: "mine.relay:Mine"}
    assert b.processes[0].relay_towards == {c.endpoint: "shm"}
    for unit in (a, b):
        assert unit.processes[0].relays["mine.relay:Mine"].options["settings"] == {"x": 1}
    assert b.processes[0].relays["shm"].options["settings"] == {}
