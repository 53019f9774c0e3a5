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
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest
from pipelines import make_pipeline

from omni_core.client import Client, open_pipeline
from omni_core.config.schema import EndpointsConfig, PipelineConfig, RelayConfig, StageConfig
from omni_core.config.validation import validate
from omni_core.errors import ConfigError, RequestFailedError, StartupError
from omni_core.hookspecs import works
from omni_core.launch.prepare import prepare
from omni_core.machines.addresses import MachineAddress, MachineAddresses
from omni_core.plugins import load_plugins
from omni_core.protocol.messages import OmniRequest

zmq = pytest.importorskip("zmq")

from omni_core.control.curve import CurveContext, CurveKeys  # noqa: E402

STAGES = Path(__file__).parent
HERE, THERE = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def key_file(folder: Path) -> Path:
    CurveKeys.new().write(folder / "run.key")
    return folder / "run.key"


@pytest.fixture
def on_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """The environment of a pipeline over two hosts: its stages are importable, and a relay connects the hosts."""
    checked = {each.name: answer for hook, each, _, answer in load_plugins().check() if hook == "omni_relays"}
    if not any(works(checked.get(name, "not installed")) for name in ("nixl", "mooncake")):
        pytest.skip("no relay that joins hosts can work here")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(STAGES), os.environ.get("PYTHONPATH", "")]))


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
    words = (await asyncio.wait_for(process.stdout.readline(), 20)).decode().split()
    try:
        yield words[2].rstrip(";"), process
    finally:
        if process.returncode is None:
            process.send_signal(signal.SIGINT)
            await asyncio.wait_for(process.wait(), 20)


def two_hosts(folder: Path, key_file: Path, address: str, **fields: Any) -> PipelineConfig:
    """Send a request in which ``big`` here makes a number of values and ``total`` there adds them up."""
    relay = fields.pop("relay", None)
    return PipelineConfig(
        model_path="none",
        stages=[
            StageConfig(name="big", factory="pipeline_stages:big", process="big", next="total", relay=relay),
            StageConfig(
                name="total", factory="pipeline_stages:patient_total", process="total", terminal=True, host="b"
            ),
        ],
        endpoints=EndpointsConfig(str(folder), HERE, str(key_file)),
        hosts={"b": address},
        **fields,
    )


async def total(client: Client, count: int) -> None:
    answer = await client.submit(OmniRequest({"count": count}))
    assert answer["total"] == pytest.approx(count * (count - 1) / 2, rel=1e-6)


async def test_a_pipeline_over_two_hosts_answers_and_leaves_nothing(
    folder: Path, key_file: Path, on_path: None
) -> None:
    async with host_server(key_file) as (address, server):
        async with open_pipeline(two_hosts(folder, key_file, address)) as client:
            children = [each for each in psutil.Process(server.pid).children(recursive=True) if not of_the_server(each)]
            assert "omni:total" in {each.name() for each in children}
            await asyncio.gather(*(total(client, count) for count in (1, 10, 500, 3000)))
            await client.submit(OmniRequest({"count": 5}))
            assert set(await client.statistics()) >= {"big", "total", "coordinator"}
        for _ in range(100):
            if not any(each.is_running() and each.status() != "zombie" for each in children):
                break
            await asyncio.sleep(0.05)
        assert not any(each.is_running() and each.status() != "zombie" for each in children)
        async with open_pipeline(two_hosts(folder, key_file, address)) as client:  # the server serves run after run
            await total(client, 7)


@pytest.mark.parametrize("name", ["nixl", "mooncake"])
async def test_large_payloads_use_a_relay_between_hosts(name: str, folder: Path, key_file: Path, on_path: None) -> None:
    problems = {each.name: problem for _, each, _, problem in load_plugins().check()}
    if problems.get(name, "not installed") is not None:
        pytest.skip(f"{name}: {problems.get(name, 'not installed')}")
    async with host_server(key_file) as (address, _):
        config = two_hosts(folder, key_file, address, relay=RelayConfig(backend=name, slot_size_mb=16))
        async with open_pipeline(config) as client:
            await asyncio.gather(*(total(client, 100_000 + number) for number in range(20)))
            await total(client, 3_000_000)
            for _ in range(100):
                pool = (await client.statistics())["big"]["relay"]
                if not pool["slots_in_use"]:
                    break
                await asyncio.sleep(0.05)
            assert pool == {"slots_in_use": 0, "bytes_in_use": 0}


async def test_a_death_on_the_other_host_is_an_error_that_names_it_and_is_repaired(
    folder: Path, key_file: Path, on_path: None
) -> None:
    async with host_server(key_file) as (address, _), open_pipeline(two_hosts(folder, key_file, address)) as client:
        await total(client, 10)
        pid = client.process_ids["total"]
        waiting = asyncio.ensure_future(client.submit(OmniRequest({"count": 10}, params={"seconds": 30.0})))
        await asyncio.sleep(0.3)
        os.kill(pid, signal.SIGKILL)
        with pytest.raises(RequestFailedError, match=r"'total'.*SIGKILL|SIGKILL.*'total'"):
            await asyncio.wait_for(waiting, 2)
        await asyncio.wait_for(total(client, 11), 20)


async def test_requests_fail_when_their_host_is_lost(folder: Path, key_file: Path, on_path: None) -> None:
    async with (
        host_server(key_file) as (address, server),
        open_pipeline(two_hosts(folder, key_file, address)) as client,
    ):
        await total(client, 10)
        child = psutil.Process(client.process_ids["total"])
        folders = cleaners_of(server.pid)
        assert len(folders) == 2  # the server's own, and the run's
        waiting = asyncio.ensure_future(client.submit(OmniRequest({"count": 10}, params={"seconds": 30.0})))
        await asyncio.sleep(0.3)
        server.kill()
        await server.wait()
        with pytest.raises(RequestFailedError, match="host 'b' is gone"):
            await asyncio.wait_for(waiting, 2)
        child.wait(5)  # processes there do not outlive it
        for _ in range(100):
            if not any(each.exists() for each in folders):
                break
            await asyncio.sleep(0.05)
        assert not any(each.exists() for each in folders)


async def test_a_killed_runner_leaves_nothing_on_the_other_host(folder: Path, key_file: Path, on_path: None) -> None:
    async with host_server(key_file) as (address, server):
        script = (
            "import asyncio, sys\n"
            "sys.path.insert(0, sys.argv[1])\n"
            "from pathlib import Path\n"
            "from test_hosts import two_hosts\n"
            "from omni_core.client import open_pipeline\n"
            "async def main():\n"
            "    async with open_pipeline(two_hosts(Path(sys.argv[2]), Path(sys.argv[3]), sys.argv[4])):\n"
            "        print('up', flush=True)\n"
            "        await asyncio.sleep(60)\n"
            "asyncio.run(main())\n"
        )
        arguments = [sys.executable, "-c", script, str(STAGES), str(folder), str(key_file), address]
        runner = await asyncio.create_subprocess_exec(*arguments, stdout=asyncio.subprocess.PIPE)
        assert runner.stdout is not None
        assert await asyncio.wait_for(runner.stdout.readline(), 30) == b"up\n"
        children = [each for each in psutil.Process(server.pid).children(recursive=True) if not of_the_server(each)]
        folders = [each for each in cleaners_of(server.pid) if list(each.glob("*.sock")) != [each / "host.sock"]]
        assert folders
        assert all(each.is_dir() for each in folders)
        runner.kill()
        await runner.wait()
        _, alive = await asyncio.to_thread(psutil.wait_procs, children, 5)
        assert not alive, alive
        assert not any(each.exists() for each in folders)


def cleaners_of(pid: int) -> list[Path]:
    """The folders that are removed when a process or one of its runs ends."""
    lines = [each.cmdline() for each in psutil.Process(pid).children()]
    return [Path(line[-1]) for line in lines if "omni-directory-cleaner" in line]


def of_the_server(process: psutil.Process) -> bool:
    """Return True if a child of a host's server is its own directory cleaner, which stays."""
    line = process.cmdline()
    return "omni-directory-cleaner" in line and (Path(line[-1]) / "host.sock").exists()


async def test_another_key_is_refused(folder: Path, key_file: Path, on_path: None) -> None:
    CurveKeys.new().write(folder / "other.key")
    async with host_server(key_file) as (address, server):
        with pytest.raises(StartupError, match=r"hosts\.b: .*same key"):
            async with open_pipeline(two_hosts(folder, folder / "other.key", address)):
                pass
        assert not [each for each in psutil.Process(server.pid).children() if each.name().startswith("omni:")]


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
        async with open_pipeline(two_hosts(folder, key_file, address)) as client:  # others are not disturbed
            await total(client, 3)
        assert server.returncode is None


async def test_a_host_that_does_not_answer_is_named(folder: Path, key_file: Path) -> None:
    with socket.socket() as free:
        free.bind((THERE, 0))
        address = f"tcp://{THERE}:{free.getsockname()[1]}"
    with pytest.raises(StartupError, match=r"hosts\.b: .*no process answers there; is `omni hosts serve"):
        async with open_pipeline(two_hosts(folder, key_file, address)):
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
    ended = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 1
    assert message in ended.stderr


def test_a_key_file_is_private_and_never_replaced(folder: Path) -> None:
    command = [sys.executable, "-m", "omni_core.cli", "hosts", "key", str(folder / "k")]
    assert subprocess.run(command, capture_output=True, timeout=30, check=False).returncode == 0
    keys = CurveKeys.read(folder / "k")
    assert (folder / "k").stat().st_mode & 0o777 == 0o600
    again = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
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
    assert "its stages have different `host` (a: this one, b: away)" in problem(
        stages=shared, hosts={"away": "tcp://h:1"}
    )


def test_a_relay_of_one_host_is_replaced_or_rejected(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = two_hosts(folder, folder / "k", "tcp://b:1")
    places = MachineAddresses(
        MachineAddress("/r/here", HERE, ["tcp://h:1"]),
        "tcp://h:2",
        {"b": MachineAddress("/r/there", THERE, ["tcp://b:2"])},
    )
    registry = load_plugins()
    able = [
        component
        for component, _ in registry.components("omni_relays")
        if getattr(component, "across_hosts", False) and (component.probe is None or component.probe() is None)
    ]
    if able:
        best = max(able, key=lambda each: each.preference).name
        big, end = prepare(config, registry, places).units
        assert list(big.processes[0].relays) == list(end.processes[0].relays) == [best]
        assert big.processes[0].relays[best].options["host"] == HERE
        assert end.processes[0].relays[best].options["host"] == THERE
        assert big.processes[0].routes == {end.endpoint: "tcp://b:2"}
        assert end.processes[0].routes == {big.endpoint: "tcp://h:1", "ipc:///r/here/coordinator.sock": "tcp://h:2"}
    else:
        with pytest.raises(ConfigError, match=r"no relay that can work here joins them.*omni plugins list"):
            prepare(config, registry, places)
    with pytest.raises(ConfigError, match=r"stages\[big\]\.relay\.backend: .*'shm' does not join"):
        prepare(two_hosts(folder, folder / "k", "tcp://b:1", relay=RelayConfig(backend="shm")), registry, places)


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
    a, b, c = prepare(make_pipeline(folder, *stages), load_plugins(), MachineAddresses(MachineAddress("/r"))).units
    assert list(a.processes[0].relays) == ["mine.relay:Mine"]
    assert list(b.processes[0].relays) == ["mine.relay:Mine", "shm"]
    assert list(c.processes[0].relays) == ["shm"]
    assert a.processes[0].relay_towards == {b.endpoint: "mine.relay:Mine"}
    assert b.processes[0].relay_towards == {c.endpoint: "shm"}
    for unit in (a, b):
        assert unit.processes[0].relays["mine.relay:Mine"].options["settings"] == {"x": 1}
    assert b.processes[0].relays["shm"].options["settings"] == {}
