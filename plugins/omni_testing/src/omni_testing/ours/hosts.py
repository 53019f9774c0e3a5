"""The suite of launchers on the launcher of hosts, with one host that serves and one that joins: two loopback addresses of this machine."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import ClassVar

import pytest
from attrs import evolve

from omni_core.api import EndpointsConfig, Need, PipelineConfig
from omni_launchers.hosts.curve import CurveKeys
from omni_testing import LauncherConformance

HERE, THERE = "127.0.0.1", "127.0.0.2"


def free_address(host: str) -> str:
    """Return a ``tcp://`` address of a host that nobody listens on."""
    with socket.socket() as free:
        free.bind((host, 0))
        return f"tcp://{host}:{free.getsockname()[1]}"


class Servers:
    """``omni hosts serve`` on one address and ``omni hosts join`` on another, for all tests: they serve run after run."""

    def __init__(self, folder: Path) -> None:
        self.key = str(folder / "run.key")
        CurveKeys.new().write(self.key)
        self.accept, self.there, self.nobody = free_address(HERE), free_address(THERE), free_address(THERE)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *arguments: str) -> None:
        """Run ``omni hosts`` until it has said where it listens."""
        command = [sys.executable, "-m", "omni_core.cli", "hosts", *arguments, "--key", self.key]
        process = self.processes[name] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        assert process.stdout is not None
        assert process.stdout.readline()

    def serve(self) -> None:
        """Start the host that serves."""
        self.start("b", "serve", "--listen", self.there)

    def close(self) -> None:
        """End both."""
        for process in self.processes.values():
            process.terminate()
            process.communicate(timeout=20)


class HostsConformance(LauncherConformance):
    """The launcher ``hosts``."""

    launcher = "omni_launchers.hosts.launcher:HostsLauncher"
    hosts: ClassVar[tuple[str, ...]] = ("b", "c")

    servers: Servers

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _servers(cls, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
        servers = cls.servers = Servers(tmp_path_factory.mktemp("hosts"))
        with closing(servers):
            servers.serve()
            servers.start("c", "join", servers.accept, "--listen", "tcp://127.0.0.3:0", "--as", "c")
            yield

    def config(self, config: PipelineConfig) -> PipelineConfig:
        servers = self.servers
        endpoints = EndpointsConfig(None, HERE, servers.key, servers.accept)
        return evolve(config, endpoints=endpoints, hosts={"b": servers.there, "nobody": servers.nobody})

    def impossible(self) -> Need:
        return Need("impossible", ("impossible",), host="nobody")

    async def lose(self, machine: str) -> None:
        self.servers.processes[machine].kill()

    async def bring_back(self, machine: str) -> None:
        self.servers.processes[machine].communicate()
        self.servers.serve()
