"""Keys from standard input, which join a host once, and runners whose names lead nowhere yet."""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest
from over_hosts import THERE, free_address, two_hosts

from omni_core.errors import ConfigError, StartupError
from omni_core.machines import LauncherOptions, Need
from omni_launchers.hosts import messages, versions
from omni_launchers.hosts.curve import CurveKeys
from omni_launchers.hosts.joining import Joining
from omni_launchers.hosts.launcher import HostsLauncher
from omni_launchers.hosts.server import HostServer

JOIN = (sys.executable, "-m", "omni_core.cli", "hosts", "join")


async def said(head: str, text: str, **streams: Any) -> tuple[int | None, str]:
    """Return exit code and errors of ``omni hosts join --key -`` that reads a text; its standard input stays open."""
    pipe = asyncio.subprocess.PIPE
    process = await asyncio.create_subprocess_exec(
        *(*JOIN, head, "--key", "-", "--as", "b"), **{"stdin": pipe, **streams}, stdout=pipe, stderr=pipe
    )
    if process.stdin is not None:
        process.stdin.write(text.encode())
        if not text:
            process.stdin.close()
    assert process.stderr is not None
    errors = (await asyncio.wait_for(process.stderr.read(), 60)).decode()
    return await asyncio.wait_for(process.wait(), 60), errors


async def test_a_host_with_given_keys_dials_once() -> None:
    head = free_address("127.0.0.1")
    code, errors = await said(head, CurveKeys.new().text())
    assert (code, errors) == (1, f"Error: {head}: no connection: {head}: no process answers there\n")


async def test_keys_that_are_not_given_are_an_error() -> None:
    code, errors = await said("tcp://127.0.0.1:1", "")
    assert (code, errors.startswith("Error: standard input holds no key pair")) == (1, True)


async def test_standard_input_must_stay_open(key_file: Path) -> None:
    with open(key_file) as file:
        code, errors = await said("tcp://127.0.0.1:1", "", stdin=file)
    assert (code, errors) == (1, "Error: --key -: standard input must be a pipe, which stays open for the run\n")


async def test_a_host_with_given_keys_ends_with_its_standard_input() -> None:
    """The runner there does not answer: it is a socket that nobody reads."""
    with socket.create_server(("127.0.0.1", 0)) as head:
        address = f"tcp://127.0.0.1:{head.getsockname()[1]}"
        pipe = asyncio.subprocess.PIPE
        command = (*JOIN, address, "--key", "-", "--as", "b")
        process = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(CurveKeys.new().text().encode())
        assert b"joining" in await asyncio.wait_for(process.stdout.readline(), 60)
        process.stdin.close()
        assert await asyncio.wait_for(process.wait(), 60) == 0


async def test_a_name_that_leads_nowhere_yet_is_asked_for_again(
    key_file: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    loop = asyncio.get_running_loop()
    asked: list[str] = []
    answers = asyncio.Event()

    async def getaddrinfo(host: str, port: int, **options: Any) -> Any:
        asked.append(host)
        if len(asked) < 3:
            raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")
        answers.set()
        return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", ("127.0.0.1", port))]

    monkeypatch.setattr(loop, "getaddrinfo", getaddrinfo)
    server = HostServer("tcp://127.0.0.2:0", CurveKeys.read(key_file))
    joining = Joining(server, "tcp://head.omni.svc:7555", "b")
    try:
        await asyncio.wait_for(answers.wait(), 60)
        assert not joining.refused.done()
        assert "waiting for tcp://head.omni.svc:7555 (head.omni.svc: Name or service not known)" in caplog.text
    finally:
        joining.close()
        await server.close()


async def test_a_name_that_leads_nowhere_refuses_a_host_that_joins_once(key_file: Path) -> None:
    server = HostServer("tcp://127.0.0.2:0", CurveKeys.read(key_file))
    joining = Joining(server, "tcp://no-such-host.invalid:7555", "b", once=True)
    try:
        with pytest.raises(StartupError, match=r"no connection: no-such-host.invalid: "):
            await asyncio.wait_for(joining.refused, 60)
    finally:
        joining.close()
        await server.close()


async def test_a_host_with_given_keys_stays_for_its_run(key_file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection by which it has joined may end before the run's own, which bears a longer silence."""
    with socket.create_server(("127.0.0.1", 0)) as head:  # nobody reads there
        server = HostServer("tcp://127.0.0.2:0", CurveKeys.read(key_file))
        joining = Joining(server, f"tcp://127.0.0.1:{head.getsockname()[1]}", "b", once=True)
        try:
            with monkeypatch.context() as patch:
                patch.setattr(HostServer, "has_runs", True)
                server.on_lost("head://", "silent")
                assert not joining.refused.done()
            server.on_over()
            with pytest.raises(StartupError, match="the run is over"):
                await asyncio.wait_for(joining.refused, 60)
        finally:
            joining.close()
            await server.close()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a file away")
def test_a_key_file_of_another_owner_may_be_open_to_a_group(key_file: Path) -> None:
    """As Kubernetes mounts a secret for a pod that is not root."""
    os.chown(key_file, 12345, -1)
    key_file.chmod(0o440)
    CurveKeys.read(key_file)
    key_file.chmod(0o444)
    with pytest.raises(ConfigError, match="can be read by others"):
        CurveKeys.read(key_file)


async def test_a_stage_that_was_scaled_to_a_host_is_joined_by_its_name(folder: Path, key_file: Path) -> None:
    launcher = HostsLauncher(LauncherOptions("omni://x", folder, two_hosts(folder, key_file)))
    try:
        asks = messages.JoinRun(f"tcp://{THERE}:1", stage="near", versions=versions.installed())
        _, problem, _ = launcher._joining(asks)
        assert "runs on the host of the runner" in problem
        await launcher.add(Need("near.1", ("near",), host="c"))
        host, problem, _ = launcher._joining(asks)
        assert (host is not None and host.name, problem) == ("c", "")
    finally:
        await launcher.release()
