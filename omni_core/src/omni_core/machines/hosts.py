"""The hosts of a run as its runner sees them: this one, and those where ``omni hosts serve`` starts processes for it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from omni_core import __version__
from omni_core.config.addresses import join_address
from omni_core.config.placement import PlannedProcess, plan
from omni_core.config.schema import PipelineConfig
from omni_core.control.curve import CurveContext, CurveKeys, open_listener
from omni_core.control.plane import ControlPlane, RemoteRoutes
from omni_core.errors import StartupError
from omni_core.machines.addresses import MachineAddress, MachineAddresses
from omni_core.processes.fork_server import ForkServer
from omni_core.processes.process import Launch, StageProcess, SupervisedProcess
from omni_core.protocol import machines
from omni_core.protocol.codec import encode
from omni_core.protocol.specs import ProcessSpec

_ANSWER_SECONDS = 10.0
_CLOSE_SECONDS = 1.0
_LOST = -9
"""The exit code of a process whose host is gone: the process ends with the host, or as soon as the host notices."""


class Hosts:
    """Opens the hosts of a run, starts processes there, and knows their addresses.

    Args:
        directory: this host's folder for the run.
    """

    def __init__(self, config: PipelineConfig, directory: Path) -> None:
        self._config = config
        self._directory = str(directory)
        self._planned = plan(config)
        self._listeners: list[socket.socket] = []
        names = {process.host for process in self._planned if process.host is not None}
        self._others = {name: _Host(name, config.hosts[name]) for name in sorted(names)}
        self.keys: CurveKeys | None = None
        self._coordinator: socket.socket | None = None
        self._forks = ForkServer()

    def remote_routes(self) -> RemoteRoutes | None:
        """The control plane's routes to the other hosts, if there are any.

        Raises:
            ConfigError: the key file or this host's address cannot be used, or pyzmq is missing.
        """
        endpoints = self._config.endpoints
        if not self._others or endpoints.address is None or endpoints.key_file is None:
            return None
        self.keys = CurveKeys.read(endpoints.key_file)
        self._coordinator = open_listener(endpoints.address)
        self._listeners = [open_listener(endpoints.address) for process in self._planned if process.host is None]
        routes = {host.endpoint: host.address for host in self._others.values()}
        return RemoteRoutes(CurveContext(self.keys), self._coordinator, routes, self._lost)

    async def open(self, control: ControlPlane) -> MachineAddresses:
        """Let every other host make room for its processes.

        Raises:
            StartupError: a host does not answer, refuses our key, or cannot make room.
        """
        here = MachineAddress(self._directory)
        if self._coordinator is None:
            return MachineAddresses(here)
        address = self._config.endpoints.address or ""
        here = MachineAddress(self._directory, address, [_address(listener) for listener in self._listeners])
        coordinator = _address(self._coordinator)
        run = f"ipc://{self._directory}/coordinator.sock"
        counts = {name: len(self._of(name)) for name in self._others}
        opening = [host.open(control, run, coordinator, counts[name]) for name, host in self._others.items()]
        addresses = await asyncio.gather(*opening)
        return MachineAddresses(here, coordinator, dict(zip(self._others, addresses, strict=True)))

    def _of(self, host: str | None) -> list[PlannedProcess]:
        return [process for process in self._planned if process.host == host]

    def launch(self, host: str | None) -> Launch:
        """The function that starts processes on a host."""
        numbers = {process.name: number for number, process in enumerate(self._of(host))}
        if host is not None:
            other = self._others[host]
            return lambda spec, on_exit: other.launch(spec, numbers[spec.name], on_exit)
        if not self._listeners:
            return partial(StageProcess, fork=self._forks.fork)
        return lambda spec, on_exit: StageProcess(
            spec, on_exit, self._listeners[numbers[spec.name]], fork=self._forks.fork
        )

    def handle(self, message: Any) -> bool:
        """Handle a message of a host. Returns False if it is for others."""
        if isinstance(message, machines.HostMessage):
            self._others[message.host].handle(message)
            return True
        return False

    def _lost(self, endpoint: str, reason: str) -> None:
        for host in self._others.values():
            if host.endpoint == endpoint:
                host.lost(reason)

    async def close(self) -> None:
        """End the fork server. Tell every other host that the run is over, and wait briefly until it has heard: closing a socket
        drops what it holds.
        """
        self._forks.close()
        closing = [each for host in self._others.values() if (each := host.close()) is not None]
        if closing:
            await asyncio.wait(closing, timeout=_CLOSE_SECONDS)
        for listener in (*self._listeners, *([self._coordinator] if self._coordinator else [])):
            listener.close()
        self._listeners.clear()
        self._coordinator = None


def _address(listener: socket.socket) -> str:
    return join_address(*listener.getsockname()[:2])


class _Host:
    """One other host, through its ``omni hosts serve``."""

    def __init__(self, name: str, address: str) -> None:
        self.name = name
        self.address = address
        self.endpoint = f"host://{name}"
        self._numbers = count(1)
        self._processes: dict[int, _RemoteProcess] = {}
        self._control: ControlPlane | None = None
        self._run = ""
        self._opened: asyncio.Future[machines.RunOpened] | None = None
        self._closed: asyncio.Future[None] | None = None
        self._problem = ""

    async def open(self, control: ControlPlane, run: str, address: str, processes: int) -> MachineAddress:
        self._control, self._run = control, run
        self._opened = asyncio.get_running_loop().create_future()
        control.send(self.endpoint, machines.OpenRun(run, self.name, address, processes, __version__))
        try:
            async with asyncio.timeout(_ANSWER_SECONDS):
                answer = await self._opened
        except TimeoutError:
            problem = f"no answer from {self.address} within {_ANSWER_SECONDS:g} s"
            raise StartupError(f"hosts.{self.name}: {problem}") from None
        if answer.problem:
            raise StartupError(f"hosts.{self.name}: {answer.problem}")
        return MachineAddress(answer.directory, answer.address, answer.listening)

    def launch(self, spec: ProcessSpec, listener: int, on_exit: Callable[[SupervisedProcess], None]) -> _RemoteProcess:
        if self._problem:
            raise OSError(f"host {self.name!r} is gone: {self._problem}")
        number = next(self._numbers)
        process = self._processes[number] = _RemoteProcess(spec, self, number, on_exit)
        self.say(machines.LaunchProcess(self._run, number, listener, spec.name, encode(spec)))
        return process

    def say(self, message: Any) -> None:
        assert self._control is not None
        self._control.send(self.endpoint, message)

    def end(self, number: int, kill: bool) -> None:
        self.say(machines.EndProcess(self._run, number, kill))

    def handle(self, message: machines.HostMessage) -> None:
        if isinstance(message, machines.RunClosed):
            self._end_close()
            return
        if isinstance(message, machines.RunOpened):
            if self._opened is not None and not self._opened.done():
                self._opened.set_result(message)
            return
        process = self._processes.get(message.number)
        if process is None:
            return
        if isinstance(message, machines.ProcessStarted):
            process.has_pid(message.pid)
            if message.problem:
                process.keep(f"it could not be started: {message.problem}")
                self._over(message.number, 1)
        elif isinstance(message, machines.ProcessWrote):
            process.keep(message.line)
        else:
            self._over(message.number, message.code)

    def _over(self, number: int, code: int) -> None:
        self._processes.pop(number).end(code)

    def lost(self, reason: str) -> None:
        """The connection to it has ended, or could not be made."""
        if self._opened is not None and not self._opened.done():
            advice = f"is `omni hosts serve --listen {self.address} --key FILE` running there, with the same key?"
            self._opened.set_result(machines.RunOpened(self._run, self.name, problem=f"{reason}; {advice}"))
            return
        self._problem = reason
        self._end_close()
        for number in list(self._processes):
            self._processes[number].lost = f"its host {self.name!r} is gone: {reason}"
            self._over(number, _LOST)

    def close(self) -> asyncio.Future[None] | None:
        """Tell the host that the run is over; done when it has heard. ``None``: there is no connection."""
        if self._control is None or self._problem or self._opened is None or not self._opened.done():
            return None
        if self._opened.cancelled() or self._opened.result().problem:
            return None
        self._closed = asyncio.get_running_loop().create_future()
        self.say(machines.CloseRun(self._run))
        return self._closed

    def _end_close(self) -> None:
        if self._closed is not None and not self._closed.done():
            self._closed.set_result(None)


class _RemoteProcess(SupervisedProcess):
    """A process on another host."""

    def __init__(
        self, spec: ProcessSpec, host: _Host, number: int, on_exit: Callable[[SupervisedProcess], None]
    ) -> None:
        super().__init__(spec)
        self.where = f" on host {host.name!r}"
        self.lost = ""
        self._host = host
        self._number = number
        self._on_exit = on_exit

    @property
    def reason(self) -> str:
        return self.lost or super().reason

    def say_stop(self) -> None:
        if self.running:
            self._host.end(self._number, kill=False)

    def kill(self) -> None:
        if self.running:
            self._host.end(self._number, kill=True)

    def has_pid(self, pid: int) -> None:
        """Its host has started it."""
        self.pid = pid
        self.launched.set_result(None)

    def end(self, code: int) -> None:
        """Its host says that it has ended."""
        self.code = code
        self.launched.cancel()
        self.ended.set_result(None)
        self._on_exit(self)
