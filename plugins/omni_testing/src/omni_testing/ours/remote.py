"""The suite of launchers on ``ssh``, with an sshd of its own on this machine, and on ``slurm``, with a stand-in for ``srun``."""

from __future__ import annotations

import getpass
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import ClassVar

import pytest
from attrs import evolve

from omni_core.api import EndpointsConfig, LauncherConfig, PipelineConfig
from omni_testing import LauncherConformance

HERE = "127.0.0.1"
ADDRESSES = {"b": "127.0.0.2", "c": "127.0.0.3"}
"""Loopback addresses of this machine in place of hosts."""

MARK = "TEST_OF_HOSTS"
"""The variable by which the processes of a test's hosts are known, with the test's folder as its value."""

SRUN = """
import os, signal, subprocess, sys

options = {"--nodes=1", "--ntasks=1", "--overlap", "--cpu-bind=none", "--kill-on-bad-exit=1", "--unbuffered"}
nodes, *arguments = sys.argv[1:]
node = ""
while arguments[0].startswith("--"):
    option = arguments.pop(0)
    name, _, value = option.partition("=")
    if name in ("--nodelist", "--relative"):
        node = value
    elif option not in options:
        sys.exit(f"srun: unrecognized option '{option}'")
if node not in nodes.split(","):
    sys.exit(f"srun: error: Unable to create step for job 7: Requested node configuration is not available ({node})")
step = subprocess.Popen(arguments, env={**os.environ, "SLURMD_NODENAME": node}, start_new_session=True)
signal.signal(signal.SIGTERM, lambda *_: step.terminate())
code = step.wait()
if code:
    print(f"srun: error: {node}: task 0: Exited with exit code {code}", file=sys.stderr)
sys.exit(code if code >= 0 else 128 - code)
"""
"""A ``srun`` whose nodes are all this machine. It knows the options that the launcher gives, and no others."""


def find_sshd() -> str:
    """Return the path of an sshd; skips the test where there is none."""
    found = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin:/usr/local/sbin")
    if found is None or shutil.which("ssh") is None:
        pytest.skip("needs ssh and sshd: apt-get install openssh-client openssh-server")
    return found


class Sshd:
    """An sshd on a free port of the loopback interface, with keys that only this object knows, and a client's config for it.

    Args:
        folder: private, for its files.
        hosts: names that lead to it.
        variables: of what it runs.
    """

    def __init__(
        self, folder: Path, hosts: tuple[str, ...] = tuple(ADDRESSES), variables: Mapping[str, str] | None = None
    ) -> None:
        program = find_sshd()
        self.folder = folder
        for name in ("host", "user"):
            subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)], check=True)
        with socket.socket() as free:
            free.bind((HERE, 0))
            port = free.getsockname()[1]
        server = {
            "ListenAddress": HERE,
            "Port": port,
            "HostKey": folder / "host",
            "AuthorizedKeysFile": folder / "user.pub",
            "PidFile": "none",
            "StrictModes": "no",
            "PasswordAuthentication": "no",
            "KbdInteractiveAuthentication": "no",
            **({"SetEnv": " ".join(f'"{name}={value}"' for name, value in variables.items())} if variables else {}),
        }
        client = {
            "HostName": HERE,
            "Port": port,
            "User": getpass.getuser(),
            "IdentityFile": folder / "user",
            "IdentitiesOnly": "yes",
            "UserKnownHostsFile": folder / "known",
        }
        for name, options in (("sshd.conf", server), ("ssh.conf", client)):
            lines = "".join(f"{key} {value}\n" for key, value in options.items())
            (folder / name).write_text(lines if name == "sshd.conf" else f"Host {' '.join(hosts)}\n{lines}")
        (folder / "known").write_text(f"[{HERE}]:{port} {(folder / 'host.pub').read_text()}")
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # its processes without privileges live there
        command = [os.path.abspath(program), "-D", "-e", "-f", str(folder / "sshd.conf")]
        with open(folder / "sshd.log", "wb") as log:
            self.process = subprocess.Popen(command, stderr=log)
        self._wait(port)

    def _wait(self, port: int) -> None:
        for _ in range(200):
            with suppress(OSError), socket.create_connection((HERE, port), 1):
                return
            assert self.process.poll() is None, (self.folder / "sshd.log").read_text()
            time.sleep(0.05)
        pytest.fail(f"the sshd does not listen: {(self.folder / 'sshd.log').read_text()}")

    @property
    def client(self) -> list[str]:
        """The client's command."""
        return ["ssh", "-F", str(self.folder / "ssh.conf")]

    def close(self) -> None:
        """End it."""
        self.process.terminate()
        self.process.wait(20)


def omni(folder: Path) -> str:
    """Return the shell's words for ``omni`` on a host of a test."""
    variables = dict(os.environ)
    path = shlex.quote(variables.get("PYTHONPATH", ""))
    return f"env {MARK}={folder} PYTHONPATH={path} {sys.executable} -m omni_core.cli --log-level info"


def servers(folder: Path, host: str) -> list[int]:
    """Return the pids of the host servers that a test's launcher has started for a host."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (process / "cmdline").read_bytes().split(b"\0")
            is_ours = f"{MARK}={folder}".encode() in (process / "environ").read_bytes().split(b"\0")
            if is_ours and b"join" in words and words[words.index(b"join") :].count(host.encode()):
                found.append(int(process.name))
    return found


def make_srun(folder: Path, nodes: str = "b,c") -> list[str]:
    """Write the stand-in, and return its command."""
    (folder / "srun").write_text(SRUN)
    return [sys.executable, str(folder / "srun"), nodes]


class _RemoteConformance(LauncherConformance):
    """The common part of both suites."""

    hosts: ClassVar[tuple[str, ...]] = ("b", "c")
    folder: Path

    @pytest.fixture(autouse=True, scope="class")
    @classmethod
    def _folder(cls) -> Iterator[None]:
        with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
            cls.folder = Path(folder)
            cls.settings = {"omni": omni(cls.folder), "addresses": ADDRESSES}
            yield from cls.around()

    @classmethod
    def around(cls) -> Iterator[None]:
        """Complete the settings, around all tests."""
        raise NotImplementedError

    def config(self, config: PipelineConfig) -> PipelineConfig:
        launcher = LauncherConfig(self.launcher, self.settings)
        return evolve(config, endpoints=EndpointsConfig(address=HERE), launcher=launcher)

    async def lose(self, machine: str) -> None:
        for pid in servers(self.folder, machine):
            os.kill(pid, signal.SIGKILL)


class SshConformance(_RemoteConformance):
    """The launcher ``ssh``."""

    launcher = "omni_launchers.remote.ssh:SshLauncher"

    @classmethod
    def around(cls) -> Iterator[None]:
        sshd = Sshd(cls.folder)
        cls.settings = {**cls.settings, "ssh": sshd.client}
        yield
        sshd.close()


class SlurmConformance(_RemoteConformance):
    """The launcher ``slurm``."""

    launcher = "omni_launchers.remote.slurm:SlurmLauncher"

    @classmethod
    def around(cls) -> Iterator[None]:
        cls.settings = {**cls.settings, "srun": make_srun(cls.folder)}
        yield
