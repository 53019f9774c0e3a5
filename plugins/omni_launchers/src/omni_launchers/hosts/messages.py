"""Messages between a launcher and the hosts that start processes for it.

``run`` is a run's session on one host: the endpoint that answers go to, new for each time that a host is opened. It is made of the
run, the number of the opening and the host, with ``~`` between them.
"""

from __future__ import annotations

from attrs import field

from omni_core.runtime_api import message


@message
class OpenRun:
    """Make room for processes of a run.

    ``of``: the run. ``host``: how it calls the host. ``address``: the ``tcp://`` address of the launcher. ``versions``: those of the
    distributions there. ``digest``: of its config. ``silence``: that of its connections, in seconds. An older session of the same run
    on the same host is over.
    """

    run: str
    of: str
    host: str
    address: str
    versions: dict[str, str]
    digest: str = ""
    silence: float = 3.0


@message
class RunOpened:
    """A host has made room: its folder, and its address for relays; or says what the ``problem`` is."""

    run: str
    directory: str = ""
    address: str = ""
    problem: str = ""


@message
class LaunchProcess:
    """Start a process with an encoded launch spec."""

    run: str
    number: int
    name: str
    spec: bytes = field(repr=False)


@message
class ProcessStarted:
    """A process runs and will listen at ``address``, or could not be started."""

    run: str
    number: int
    pid: int = 0
    address: str = ""
    problem: str = ""


@message
class ProcessWrote:
    """A line of a process's standard error."""

    run: str
    number: int
    line: str


@message
class ProcessEnded:
    """A process has ended with an exit code; negative: by that signal."""

    run: str
    number: int
    code: int


@message
class EndProcess:
    """End a process: by closing its standard input, or at once."""

    run: str
    number: int
    kill: bool


@message
class FindPort:
    """Look for a TCP port that nobody uses."""

    run: str


@message
class PortFound:
    """A TCP port of the host that nobody uses, or what the ``problem`` is."""

    run: str
    port: int = 0
    problem: str = ""


@message
class CloseRun:
    """The run is over: end what is left of it."""

    run: str


@message
class RunClosed:
    """The run is over on a host: the answer to :class:`CloseRun`, or because the host's connection to the launcher has ended."""

    run: str


@message
class JoinRun:
    """A host to a launcher: use this host, which is reached at ``address``, as the one called ``host``, or as that of a ``stage``.

    ``digest``: that of the only config that it wants to work for; empty: any.
    """

    address: str
    host: str = ""
    stage: str = ""
    versions: dict[str, str] = field(factory=dict)
    digest: str = ""


@message
class JoinAnswer:
    """A launcher to a host: it is taken in as ``host``, or what the ``problem`` is. ``final``: asking again does not help."""

    host: str = ""
    problem: str = ""
    final: bool = False


HostMessage = RunOpened | RunClosed | PortFound | ProcessStarted | ProcessWrote | ProcessEnded
"""A message of a host to a launcher, about a run."""
