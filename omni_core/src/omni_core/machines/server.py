"""``omni hosts serve``: starts and watches processes for the pipelines of other hosts.

An owner of the keys may start any program that this user may start, as a launch spec names what is imported. A run whose
runner is gone is ended, with all its processes and files here.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
import socket
from pathlib import Path
from typing import Any

from attrs import define, field

from omni_core import __version__
from omni_core.config.addresses import join_address, split_address
from omni_core.control.curve import CurveContext, CurveKeys, open_listener
from omni_core.control.lanes import Tasks
from omni_core.control.plane import ControlPlane, RemoteRoutes
from omni_core.errors import ConfigError
from omni_core.processes.fork_server import ForkServer
from omni_core.processes.process import StageProcess, SupervisedProcess
from omni_core.processes.run_directory import DirectoryCleaner, run_directory
from omni_core.protocol import machines
from omni_core.protocol.codec import decode

logger = logging.getLogger(__name__)


@define
class _Run:
    """The processes, sockets and folder of one run on this host."""

    name: str
    host: str
    directory: Path
    cleaner: DirectoryCleaner
    listeners: list[socket.socket]
    processes: dict[int, StageProcess] = field(factory=dict)
    forks: ForkServer = field(factory=ForkServer)


class HostServer:
    """Serves runs from its start until :meth:`close`. Made on an event loop.

    Args:
        address: ``tcp://HOST:PORT``, the address to listen on; its host is also the address of the processes here.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, address: str, keys: CurveKeys) -> None:
        self._host, port = split_address(address)
        self._listener = open_listener(self._host, port)
        self._routes: dict[str, str] = {}
        self._runs: dict[str, _Run] = {}
        self._closing = Tasks()
        self._directory = run_directory(None)
        self._cleaner = DirectoryCleaner(self._directory)
        remote = RemoteRoutes(CurveContext(keys), self._listener, self._routes, self._runner_is_gone)
        self._control = ControlPlane(f"ipc://{self._directory}/host.sock", self._on_message, remote)
        self._control.listen()

    @property
    def address(self) -> str:
        """The address that it listens on."""
        return join_address(self._host, self._listener.getsockname()[1])

    def _on_message(self, message: Any) -> None:
        if isinstance(message, machines.OpenRun):
            self._open(message)
        elif isinstance(message, machines.LaunchProcess):
            self._launch(message)
        elif isinstance(message, machines.EndProcess):
            self._end(message)
        elif isinstance(message, machines.CloseRun):
            if message.run in self._runs:
                self._control.tell(message.run, machines.RunClosed(message.run, self._runs[message.run].host))
            self._close_run(message.run)
        else:
            logger.error("a host cannot handle a %s", type(message).__name__)

    # --- runs --------------------------------------------------------------------------------------------------------
    def _open(self, message: machines.OpenRun) -> None:
        self._routes[message.run] = message.address
        try:
            if message.version != __version__:
                installed = f"omni-core {__version__} is installed there, and {message.version} here"
                raise ConfigError(f"{installed}; make them equal")
            listeners = [open_listener(self._host) for _ in range(message.processes)]
            directory = run_directory(None)
        except ConfigError as error:
            self._control.tell(message.run, machines.RunOpened(message.run, message.host, problem=str(error)))
            return
        self._runs[message.run] = _Run(message.run, message.host, directory, DirectoryCleaner(directory), listeners)
        listening = [join_address(*listener.getsockname()[:2]) for listener in listeners]
        self._control.tell(
            message.run, machines.RunOpened(message.run, message.host, str(directory), self._host, listening)
        )
        logger.warning("a run of %s begins here: %d processes", message.address, message.processes)

    def _runner_is_gone(self, run: str, reason: str) -> None:
        if run in self._runs:
            logger.warning("a run is over: its runner is gone (%s)", reason)
            self._close_run(run)

    def _close_run(self, name: str) -> None:
        run = self._runs.pop(name, None)
        if run is not None:
            self._closing.start(self._finish(run))

    async def _finish(self, run: _Run) -> None:
        for process in run.processes.values():
            process.kill()
        await asyncio.gather(*(process.ended for process in run.processes.values()))
        run.forks.close()
        for listener in run.listeners:
            listener.close()
        await asyncio.to_thread(shutil.rmtree, run.directory, ignore_errors=True)
        await asyncio.to_thread(run.cleaner.dismiss)
        self._control.drop(run.name)
        self._routes.pop(run.name, None)

    # --- processes ---------------------------------------------------------------------------------------------------
    def _launch(self, message: machines.LaunchProcess) -> None:
        run = self._runs.get(message.run)
        if run is None:
            return
        number = message.number

        def ended(process: SupervisedProcess) -> None:
            run.processes.pop(number, None)
            assert process.code is not None
            self._control.tell(run.name, machines.ProcessEnded(run.name, run.host, number, process.code))

        def launched(future: asyncio.Future[None]) -> None:
            if not future.cancelled():
                self._control.tell(run.name, machines.ProcessStarted(run.name, run.host, number, process.pid))

        def wrote(line: str) -> None:
            self._control.tell(run.name, machines.ProcessWrote(run.name, run.host, number, line))

        try:
            spec = decode(message.spec)
            listener = run.listeners[message.listener]
            process = run.processes[number] = StageProcess(spec, ended, listener, wrote, run.forks.fork)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            self._control.tell(run.name, machines.ProcessStarted(run.name, run.host, number, problem=problem))
        else:
            process.launched.add_done_callback(launched)

    def _end(self, message: machines.EndProcess) -> None:
        run = self._runs.get(message.run)
        process = None if run is None else run.processes.get(message.number)
        if process is not None:
            (process.kill if message.kill else process.say_stop)()

    async def close(self) -> None:
        """End every run that is left, and every process of it."""
        for name in list(self._runs):
            self._close_run(name)
        if self._closing:
            await asyncio.wait(self._closing)
        self._control.close()
        self._listener.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._cleaner.dismiss()
