"""The machine of the runner itself, and the launcher that uses no other."""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from pathlib import Path
from random import sample

from attrs import evolve, frozen

from omni_core.config.addresses import join_address
from omni_core.errors import StartupError
from omni_core.machines.launcher import Grant, Launcher, LauncherOptions, Need, RunMachine
from omni_core.processes.family import MARK, run_mark
from omni_core.processes.process import StageProcess, SupervisedProcess
from omni_core.processes.run_directory import restore_directory
from omni_core.protocol.specs import ProcessSpec
from omni_core.services import FORK_SERVER, ForkServer


class LocalMachine(RunMachine):
    """This machine: processes are forks of a server of the run, where one is installed, or fresh interpreters.

    Args:
        listen: makes a listening TCP socket for each process, where the run has other machines.
    """

    def __init__(
        self,
        directory: Path,
        host: str = "127.0.0.1",
        listen: Callable[[], socket.socket] | None = None,
        name: str = "",
    ) -> None:
        self.name, self.directory, self.host = name, str(directory), host
        self._listen = listen
        make = FORK_SERVER.load()
        self._forks: ForkServer | None = make() if make is not None else None

    def start(
        self,
        spec: ProcessSpec,
        on_exit: Callable[[SupervisedProcess], None],
        on_line: Callable[[str], None] | None = None,
    ) -> StageProcess:
        """As :meth:`RunMachine.start`; ``on_line`` is called with each line of its log."""
        restore_directory(self.directory)
        spec = evolve(spec, own_env={**spec.own_env, MARK: run_mark(self.directory)})
        listener = None if self._listen is None else self._listen()
        address = "" if listener is None else join_address(*listener.getsockname()[:2])
        with listener or nullcontext():  # closed, unless the process has it
            fork = None if self._forks is None else self._forks.fork
            process = StageProcess(spec, on_exit, listener, on_line, fork)
        process.address = address
        return process

    async def free_port(self) -> int:
        # Below those that systems give to connections: nobody takes it before the ranks do.
        for port in sample(range(20_000, 32_768), 64):
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            with suppress(OSError), socket.create_server((self.host, port), family=family):
                return port
        raise StartupError(f"no TCP port between 20000 and 32767 is free on {self.host}")

    def close(self) -> None:
        """End the fork server. Processes go on."""
        if self._forks is not None:
            self._forks.close()


@frozen
class NoSettings:
    """The settings of a launcher that has none."""


class LocalLauncher(Launcher):
    """Starts every process on this machine."""

    def __init__(self, options: LauncherOptions) -> None:
        options.read_settings(NoSettings)
        self.here: LocalMachine = LocalMachine(options.directory)

    async def acquire(self, needs: Sequence[Need]) -> None:
        for need in needs:
            if need.host is not None:
                raise StartupError(f"{need.unit} is to run on host {need.host!r}, and the launcher is local")

    async def add(self, need: Need) -> None:
        await self.acquire([need])

    async def place(self, unit: str) -> Grant:
        return Grant(self.here)

    async def release(self) -> None:
        self.here.close()
