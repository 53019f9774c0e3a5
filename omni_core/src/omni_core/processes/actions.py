"""The states of a unit, and the actions that its life asks :mod:`omni_core.processes.supervisor` for."""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from attrs import frozen


class UnitState(Enum):
    """The state of a unit."""

    STARTING = "starting"
    READY = "ready"
    STALLED = "stalled"
    RESTARTING = "restarting"
    FAILED = "failed"
    STOPPED = "stopped"


@frozen
class Launch:
    """Start every process of the unit."""


@frozen
class Kill:
    """Kill every process of the unit that still runs."""


@frozen
class Ping:
    """Ask a process for an answer (:meth:`Unit.answered`)."""

    process: str


@frozen
class Changed:
    """Report the new state of the unit."""

    state: UnitState


@frozen
class Started:
    """Report the end of the first start. ``problem`` says why it failed; the logs of ``late`` processes explain it."""

    problem: str = ""
    late: Sequence[str] = ()


@frozen
class Ready:
    """Report that every process of the unit reads its socket; ``again``: after a restart."""

    again: bool


@frozen
class Stalled:
    """Report that a process does not answer."""

    process: str


@frozen
class Died:
    """Report that the unit was serving, or about to, and that its processes are gone or going. :meth:`Unit.settled` must follow."""

    reason: str


@frozen
class Failed:
    """Report that the unit has died too often, ``deaths`` times, and that what needs it fails until it serves again.

    Attributes:
        pause: seconds until it is tried again; ``None``: never.
    """

    reason: str
    deaths: int
    pause: float | None


Action = Launch | Kill | Ping | Changed | Started | Ready | Stalled | Died | Failed
