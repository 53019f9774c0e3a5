"""The host server: starts and watches processes for the pipelines of other hosts.

An owner of the keys may start any program that this user may start, as a launch spec names what is imported. A run whose
runner is gone is ended, with all its processes and files here.
"""

from __future__ import annotations

import asyncio
import logging
import shutil
from collections.abc import Callable
from typing import Any

from attrs import define, field

from omni_core.api import ConfigError, LocalMachine, StartupError, SupervisedProcess
from omni_core.runtime_api import (
    ControlPlane,
    DirectoryCleaner,
    Sparing,
    StageProcess,
    Tasks,
    decode,
    run_directory,
    split_address,
)
from omni_launchers.hosts import messages, versions
from omni_launchers.hosts.curve import CurveKeys, CurveNetwork, open_listener

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())

_TOLD_SECONDS = 5.0
"""The time for the message that a run is over."""


@define
class _Run:
    """A session of a run: its processes and its folder on this host."""

    opened: messages.OpenRun
    machine: LocalMachine
    cleaner: DirectoryCleaner
    processes: dict[int, StageProcess] = field(factory=dict)


class HostServer:
    """Serves runs from its start until :meth:`close`. Made on an event loop.

    Args:
        address: ``tcp://HOST:PORT``, the address to listen on; its host is also the address of the processes here.

    Attributes:
        on_message: called with messages that are not about a run here.
        on_lost: likewise, of connections.
        on_over: called when the last run here has ended.
        digest: that of the only config to work for; empty: any.

    Raises:
        ConfigError: the address cannot be listened on.
    """

    def __init__(self, address: str, keys: CurveKeys) -> None:
        self._host, port = split_address(address)
        network = self._network = CurveNetwork(keys, open_listener(self._host, port), silence=None)
        self.address = network.address
        self.on_message: Callable[[Any], None] = lambda message: None
        self.on_lost: Callable[[str, str], None] = lambda endpoint, reason: None
        self.on_over: Callable[[], None] = lambda: None
        self.digest = ""
        self._runs: dict[str, _Run] = {}
        self._closing = Tasks()
        self._telling = Tasks()
        self._directory = run_directory(None)
        self._cleaner = DirectoryCleaner(self._directory)
        endpoint = f"ipc://{self._directory}/host.sock"
        self.control = ControlPlane(endpoint, self._on_message, network=network, on_lost=self._lost)
        self.control.listen()

    def _on_message(self, message: Any) -> None:
        if isinstance(message, messages.OpenRun):
            self._open(message)
        elif isinstance(message, messages.LaunchProcess):
            self._launch(message)
        elif isinstance(message, messages.EndProcess):
            self._end(message)
        elif isinstance(message, messages.FindPort):
            self._telling.start(self._find_port(message.run))
        elif isinstance(message, messages.CloseRun):
            if message.run in self._runs:
                self.control.tell(message.run, messages.RunClosed(message.run))
            self._close_run(message.run)
        else:
            self.on_message(message)

    def _open(self, message: messages.OpenRun) -> None:
        older = [name for name, run in self._runs.items() if _same(run.opened, message)]
        if any(_attempt(name) > _attempt(message.run) for name in older):
            return  # it has come late, by an older connection
        self._network.silences[message.address] = message.silence
        self.control.peer_is_up(message.run, message.address)
        for name in older:
            logger.warning("a run is opened here again; what is left of it is ended")
            self._close_run(name)
        try:
            if problem := versions.difference(message.versions, versions.installed()):
                raise ConfigError(problem)
            if self.digest and message.digest != self.digest:
                raise ConfigError(f"it works for the config with the digest {self.digest} only, not {message.digest}")
            directory = run_directory(None)
        except ConfigError as error:
            self.control.tell(message.run, messages.RunOpened(message.run, problem=str(error)))
            return
        machine = LocalMachine(directory, self._host, lambda: open_listener(self._host))
        self._runs[message.run] = _Run(message, machine, DirectoryCleaner(directory))
        self.control.tell(message.run, messages.RunOpened(message.run, str(directory), self._host))
        logger.warning("a run of %s begins here, as host %r (config %s)", message.address, message.host, message.digest)

    def _lost(self, endpoint: str, reason: str) -> None:
        if endpoint in self._runs:
            logger.warning("a run is over: its runner is gone (%s)", reason)
            address = self._runs[endpoint].opened.address
            self._close_run(endpoint)
            self._telling.start(self._say_closed(endpoint, address))
        else:
            self.on_lost(endpoint, reason)

    async def _say_closed(self, run: str, address: str) -> None:
        """Tell the runner that the run is over here: it may be there, and only this connection have ended."""
        endpoint = f"closed://{run}"
        self.control.peer_is_up(endpoint, address)
        self.control.tell(endpoint, messages.RunClosed(run))
        await asyncio.sleep(_TOLD_SECONDS)
        self.control.drop(endpoint)

    def _close_run(self, name: str) -> None:
        run = self._runs.pop(name, None)
        if run is not None:
            self._closing.start(self._finish(name, run))

    async def _finish(self, name: str, run: _Run) -> None:
        for process in run.processes.values():
            process.kill()
        await asyncio.gather(*(process.ended for process in run.processes.values()))
        run.machine.close()
        await asyncio.to_thread(shutil.rmtree, run.machine.directory, ignore_errors=True)
        await asyncio.to_thread(run.cleaner.dismiss)
        self.control.drop(name)
        if not any(each.opened.address == run.opened.address for each in self._runs.values()):
            self._network.silences.pop(run.opened.address, None)
        if not self._runs:
            self.on_over()

    @property
    def has_runs(self) -> bool:
        """True while there is a run here."""
        return bool(self._runs)

    def _launch(self, message: messages.LaunchProcess) -> None:
        name, number = message.run, message.number
        run = self._runs.get(name)
        if run is None:
            return

        def ended(process: SupervisedProcess) -> None:
            run.processes.pop(number, None)
            assert process.code is not None
            self.control.tell(name, messages.ProcessEnded(name, number, process.code))

        def launched(future: asyncio.Future[None]) -> None:
            if not future.cancelled():
                self.control.tell(name, messages.ProcessStarted(name, number, process.pid, process.address))

        def wrote(line: str) -> None:
            self.control.tell(name, messages.ProcessWrote(name, number, line))

        try:
            process = run.processes[number] = run.machine.start(decode(message.spec), ended, wrote)
        except Exception as error:
            problem = f"{type(error).__name__}: {error}"
            self.control.tell(name, messages.ProcessStarted(name, number, problem=problem))
        else:
            process.launched.add_done_callback(launched)

    async def _find_port(self, name: str) -> None:
        if (run := self._runs.get(name)) is not None:
            try:
                found = messages.PortFound(name, await run.machine.free_port())
            except StartupError as error:
                found = messages.PortFound(name, problem=str(error))
            self.control.tell(name, found)

    def _end(self, message: messages.EndProcess) -> None:
        run = self._runs.get(message.run)
        process = None if run is None else run.processes.get(message.number)
        if process is not None:
            (process.kill if message.kill else process.say_stop)()

    async def close(self) -> None:
        """End every run that is left, and every process of it."""
        for name in list(self._runs):
            self._close_run(name)
        for telling in self._telling:
            telling.cancel()
        if self._closing:
            await asyncio.wait(self._closing)
        self.control.close()
        shutil.rmtree(self._directory, ignore_errors=True)
        self._cleaner.dismiss()


def _same(one: messages.OpenRun, other: messages.OpenRun) -> bool:
    return (one.of, one.host) == (other.of, other.host)


def _attempt(session: str) -> int:
    """Return the number of an opening, from the name of its session."""
    return int(session.split("~", 2)[1])
