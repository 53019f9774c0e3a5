"""Messages between a runner and the hosts that start processes for it. ``run`` is the endpoint of the runner's coordinator."""

from __future__ import annotations

from attrs import field

from omni_core.protocol.registry import message


@message
class OpenRun:
    """Make room for ``processes`` processes of a run. ``host``: how the run calls the host; ``address``: the ``tcp://`` address
    of the runner.
    """

    run: str
    host: str
    address: str
    processes: int
    version: str


@message
class RunOpened:
    """A host has made room: the folder, its address, and where each process will be reached; or says what the ``problem`` is."""

    run: str
    host: str
    directory: str = ""
    address: str = ""
    listening: list[str] = field(factory=list)
    problem: str = ""


@message
class LaunchProcess:
    """Start a process with an encoded launch spec; it is reached at the host's ``listener``-th address of the run."""

    run: str
    number: int
    listener: int
    name: str
    spec: bytes = field(repr=False)


@message
class ProcessStarted:
    """A process runs, or could not be started."""

    run: str
    host: str
    number: int
    pid: int = 0
    problem: str = ""


@message
class ProcessWrote:
    """A line of a process's standard error."""

    run: str
    host: str
    number: int
    line: str


@message
class ProcessEnded:
    """A process has ended with an exit code; negative: by that signal."""

    run: str
    host: str
    number: int
    code: int


@message
class EndProcess:
    """End a process: by closing its standard input, or at once."""

    run: str
    number: int
    kill: bool


@message
class CloseRun:
    """The run is over: end what is left of it."""

    run: str


@message
class RunClosed:
    """A host has heard that the run is over. The answer to :class:`CloseRun`."""

    run: str
    host: str


HostMessage = RunOpened | RunClosed | ProcessStarted | ProcessWrote | ProcessEnded
"""A message of a host to a runner."""
