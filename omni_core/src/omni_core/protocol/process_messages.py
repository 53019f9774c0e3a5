"""Control messages about the life of the processes of a pipeline: which are ready, answer, have died, were replaced or must end."""

from __future__ import annotations

from typing import Any

from attrs import field

from omni_core.protocol.messages import ErrorInfo
from omni_core.protocol.registry import message


@message
class PeerDownMessage:
    """Runner to a process: the one at ``endpoint``, with ``stages``, has died. Answer with what is known of ``requests``.

    ``death`` numbers the deaths: one process may die again before the last answer about its predecessor has come.
    """

    death: int
    endpoint: str
    stages: list[str]
    requests: list[str]


@message
class PeerDownReport:
    """Process to runner, about a dead peer: what was written to it, and what had arrived from it.

    ``reached`` holds ``(request, stage of the peer)``; ``arrived`` holds ``(request, stage of the peer, stage here, what,
    handed_to)`` (see :mod:`omni_core.processes.deaths`).
    """

    death: int
    process: str
    reached: list[tuple[str, str]] = field(factory=list)
    arrived: list[tuple[str, str, str, int, Any]] = field(factory=list)


@message
class InFlightRequest:
    """A process to the runner: answer at ``endpoint`` with an :class:`InFlightReport`."""

    endpoint: str


@message
class InFlightReport:
    """Runner to a process: the requests that are in flight, as stages call them."""

    requests: list[str] = field(factory=list)


@message
class PeerUpMessage:
    """Runner to a process: a new process reads ``endpoint``, and its ``address`` is this one from there on."""

    endpoint: str
    address: str = ""


@message
class PeerJoinedMessage:
    """Runner to a process: a new unit will read ``endpoint``, as replica number ``replica`` of ``stages``.

    Attributes:
        relay, across: the relays by which it is sent large payloads on one machine and between machines, if it is.
        same_gpu: its stages that use the GPU that the told process uses.
    """

    endpoint: str
    stages: list[str]
    replica: int
    relay: str | None = None
    across: str | None = None
    same_gpu: list[str] = field(factory=list)


@message
class PeerLeftMessage:
    """Runner to a process: the unit at ``endpoint`` holds no request any more, and its process has ended for good."""

    endpoint: str


@message
class PeerCutReport:
    """Process to runner: the connection to the process at ``endpoint``, on another machine, has ended; what was on its way is lost."""

    endpoint: str
    reason: str
    process: str
    pid: int


@message
class ListenAgainMessage:
    """Runner to a process: another one starts, and must find its socket, whose file may have been removed."""


@message
class NonsenseReport:
    """Process to runner: the process ``pid`` of its machine has sent what is no message; its connection to ``process`` is closed."""

    process: str
    pid: int
    reason: str


@message
class PeerFailedMessage:
    """Runner to a process: nothing will read ``endpoint`` any more; what is sent to ``stages`` fails for ``reason``."""

    endpoint: str
    stages: list[str]
    reason: str


@message
class PingMessage:
    """Runner to a process: answer with a :class:`PongMessage`, which shows that the event loop runs."""


@message
class RunningCompute:
    """A compute that has run for ``seconds`` in a stage of a process, and has not ended."""

    stage: str
    request_id: str
    seconds: float


@message
class PongMessage:
    """Process to runner: its event loop turns. ``running`` holds its running computes, as far as its schedulers report them."""

    process: str
    running: list[RunningCompute] = field(factory=list)


@message
class ShutdownMessage:
    """Coordinator to a process: finish and exit."""


@message
class ReadyMessage:
    """Process to coordinator: every stage of the process is built and reads its endpoint."""

    process: str
    pid: int


@message
class ProcessFailedMessage:
    """Process to coordinator: a stage could not be built; the process ends."""

    process: str
    error: ErrorInfo
