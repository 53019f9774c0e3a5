"""One other host as a launcher sees it: opened for a run through the server there, lost, and opened again."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from itertools import count

from omni_core.api import ProcessSpec, RunMachine, StartupError, SupervisedProcess
from omni_core.runtime_api import ControlPlane, Sparing, encode
from omni_launchers.hosts import messages
from omni_launchers.hosts.curve import SILENCE_SECONDS

logger = logging.getLogger(__name__)
logger.addFilter(Sparing())

ANSWER_SECONDS = 10.0
"""The time that a host has to answer when it is opened."""

FIRST_PAUSE, LONGEST_PAUSE = 0.25, 2.0
"""Seconds between two attempts to open a host that is lost: the first pause, doubled up to the longest."""

KILL_SECONDS = 20.0
"""The time that a host has to end a process. After it the host counts as lost: it may have lost the run, or the way to this side."""

_LOST = -9
"""The exit code of a process whose host is gone: the process ends with the host, or as soon as the host notices."""


class Host:
    """One host of a run.

    Args:
        run: the run's name.
        name: the host's.
        reply_to: the ``tcp://`` address of ``control``, which sends to the host.
        versions, digest: those of this side.
        address: where its server listens; ``None`` until it joins.
        advice: follows the message that no connection could be made.
        missing: what it is called in messages while it has no address.
        silence: that of the run's connections, in seconds.
    """

    def __init__(
        self,
        run: str,
        name: str,
        control: ControlPlane,
        reply_to: str,
        versions: Mapping[str, str],
        digest: str,
        address: str | None = None,
        advice: str = "",
        missing: str = "",
        silence: float = SILENCE_SECONDS,
    ) -> None:
        self.name = name
        self.address = address
        self.endpoint = f"host://{name}"
        self.problem = missing
        """The reason why the host cannot be used; empty while it is open."""
        self._of, self._reply_to, self._advice = run, reply_to, advice
        self._versions, self._digest, self._silence = dict(versions), digest, silence
        self._control = control
        self._sessions = count(1)
        self._changed = asyncio.Event()
        self._opening = asyncio.Lock()
        self._opened: asyncio.Future[messages.RunOpened] | None = None
        self._session = ""
        self._cut = ""  # the loss of the connection after an answer that is not read yet
        self._machine: RemoteMachine | None = None

    @property
    def is_open(self) -> bool:
        """True while the run has a machine there."""
        return self._machine is not None and not self._machine.problem

    def is_at(self, address: str) -> None:
        """The host says where it is: an attempt to open it is due at once."""
        self.address = address
        self._changed.set()

    async def machine(self) -> RemoteMachine:
        """Return the run's machine there; waits while the host is not there.

        Raises:
            StartupError: the host refuses the run.
        """
        async with self._opening:
            pause = FIRST_PAUSE
            while not self.is_open:
                self._changed.clear()
                if self.address is not None and await self._try():
                    break
                try:
                    async with asyncio.timeout(None if self.address is None else pause):
                        await self._changed.wait()
                except TimeoutError:
                    pause = min(2 * pause, LONGEST_PAUSE)
            assert self._machine is not None
            return self._machine

    async def _try(self) -> bool:
        try:
            await self.open()
        except ConnectionError as error:
            self.problem = str(error)
            return False
        return True

    async def open(self) -> None:
        """Open the run there.

        Raises:
            ConnectionError: the host does not answer, or has another key. StartupError: it refuses the run.
        """
        assert self.address is not None
        session = self._session = f"{self._of}~{next(self._sessions)}~{self.name}"
        self._cut = ""
        self._opened = asyncio.get_running_loop().create_future()
        self._control.drop(self.endpoint)  # what waits there is for an older session
        self._control.peer_is_up(self.endpoint, self.address)
        run = (session, self._of, self.name, self._reply_to)
        self._control.send(self.endpoint, messages.OpenRun(*run, self._versions, self._digest, self._silence))
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                answer = await self._opened
        except TimeoutError:
            raise ConnectionError(f"no answer from {self.address} within {ANSWER_SECONDS:g} s") from None
        finally:
            self._opened = None
        if answer.problem:
            raise StartupError(f"hosts.{self.name}: {answer.problem}")
        if self._cut:
            raise ConnectionError(self._cut)
        if self.problem and self._machine is not None:
            logger.warning("host %r is there again", self.name)
        self.problem = ""
        self._machine = RemoteMachine(self, session, answer.directory, answer.address)

    def say(self, message: object) -> None:
        """Send a message to the host."""
        self._control.tell(self.endpoint, message)

    def handle(self, message: messages.HostMessage) -> None:
        """Handle a message of the host."""
        if isinstance(message, messages.RunOpened):
            # A host that was frozen answers older attempts too.
            if self._opened is not None and not self._opened.done() and message.run == self._session:
                self._opened.set_result(message)
        elif self._machine is not None and self._machine.session == message.run:
            self._machine.handle(message)

    def lost(self, reason: str) -> None:
        """The connection to it has ended, or could not be made."""
        if self._opened is not None and not self._opened.done():
            self._opened.set_exception(ConnectionError(f"{reason}; {self._advice}" if self._advice else reason))
        elif self._opened is not None:
            self._cut = reason
        elif self._machine is not None and not self._machine.problem:
            self.problem = reason
            self._machine.lost(reason)

    def close(self) -> asyncio.Future[None] | None:
        """Tell the host that the run is over; done when it has heard. ``None``: there is no connection."""
        return self._machine.close() if self._machine is not None and not self._machine.problem else None


class RemoteMachine(RunMachine):
    """A host of a run, from one opening to its loss."""

    def __init__(self, host: Host, session: str, directory: str, address: str) -> None:
        self.name = host.name
        self.directory = directory
        self.host = address
        self.session = session
        self.problem = ""
        self._server = host
        self._numbers = count(1)
        self._processes: dict[int, RemoteProcess] = {}
        self._is_closing = False
        self._ports: deque[asyncio.Future[int]] = deque()
        self._closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def start(self, spec: ProcessSpec, on_exit: Callable[[SupervisedProcess], None]) -> RemoteProcess:
        if self.problem:
            raise OSError(f"host {self.name!r} is gone: {self.problem}")
        number = next(self._numbers)
        process = self._processes[number] = RemoteProcess(spec, self, number, on_exit)
        self._server.say(messages.LaunchProcess(self.session, number, spec.name, encode(spec)))
        return process

    async def free_port(self) -> int:
        if self.problem:
            raise StartupError(f"host {self.name!r} is gone: {self.problem}")
        found: asyncio.Future[int] = asyncio.get_running_loop().create_future()
        self._ports.append(found)  # the host answers in order
        self._server.say(messages.FindPort(self.session))
        return await found

    def _found_port(self, port: int, problem: str) -> None:
        found = self._ports.popleft()
        if not found.cancelled():
            found.set_exception(StartupError(problem)) if problem else found.set_result(port)

    def end(self, number: int, kill: bool) -> None:
        """End a process."""
        self._server.say(messages.EndProcess(self.session, number, kill))
        if kill:
            asyncio.get_running_loop().call_later(KILL_SECONDS, self._must_be_over, number)

    def _must_be_over(self, number: int) -> None:
        if number in self._processes and not self.problem:
            self._server.lost(f"it has not ended a process within {KILL_SECONDS:g} s")

    def handle(self, message: messages.HostMessage) -> None:
        """Handle a message about this session."""
        if isinstance(message, messages.RunClosed):
            if not self._is_closing:
                self._server.lost("it has ended the run, as its connection to here was cut")
            self._heard()
            return
        assert not isinstance(message, messages.RunOpened)
        if isinstance(message, messages.PortFound):
            self._found_port(message.port, message.problem)
            return
        process = self._processes.get(message.number)
        if process is None:
            return
        if isinstance(message, messages.ProcessStarted):
            if message.problem:
                process.keep(f"it could not be started: {message.problem}")
                self._over(message.number, 1)
            else:
                process.has_started(message.pid, message.address)
        elif isinstance(message, messages.ProcessWrote):
            process.keep(message.line)
        else:
            self._over(message.number, message.code)

    def _over(self, number: int, code: int) -> None:
        self._processes.pop(number).has_ended(code)

    def lost(self, reason: str) -> None:
        """The host is gone, and its processes with it."""
        self.problem = reason
        self._heard()
        while self._ports:
            self._found_port(0, f"host {self.name!r} is gone: {reason}")
        for number in list(self._processes):
            self._processes[number].lost = f"its host {self.name!r} is gone: {reason}"
            self._over(number, _LOST)

    def close(self) -> asyncio.Future[None]:
        """Tell the host that the run is over; done when it has heard."""
        self._is_closing = True
        self._server.say(messages.CloseRun(self.session))
        return self._closed

    def _heard(self) -> None:
        if not self._closed.done():
            self._closed.set_result(None)


class RemoteProcess(SupervisedProcess):
    """A process on another host."""

    def __init__(
        self, spec: ProcessSpec, machine: RemoteMachine, number: int, on_exit: Callable[[SupervisedProcess], None]
    ) -> None:
        super().__init__(spec)
        self.where = f" on host {machine.name!r}"
        self.lost = ""
        self._machine = machine
        self._number = number
        self._on_exit = on_exit

    @property
    def reason(self) -> str:
        return self.lost or super().reason

    def say_stop(self) -> None:
        if self.running:
            self._machine.end(self._number, kill=False)

    def kill(self) -> None:
        if self.running:
            self._machine.end(self._number, kill=True)

    def has_started(self, pid: int, address: str) -> None:
        """Its host has started it."""
        self.pid, self.address = pid, address
        self.launched.set_result(None)

    def has_ended(self, code: int) -> None:
        """Its host says that it has ended, or is gone itself."""
        self.code = code
        self.launched.cancel()
        self.ended.set_result(None)
        self._on_exit(self)
