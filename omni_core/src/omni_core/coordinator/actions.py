"""Actions of the ``RequestMachine`` (:mod:`omni_core.coordinator.request_machine`), which its caller carries out in their order."""

from __future__ import annotations

from attrs import define

from omni_core.coordinator.requests import TrackedRequest


@define
class Start:
    """Send the request to the entry stage as ``attempt_id``. If that raises, call ``start_failed`` of the machine."""

    request: TrackedRequest


@define
class Withdraw:
    """Tell every process to drop this attempt."""

    attempt_id: str


@define
class Flow:
    """Tell every process to send the client of this attempt no more chunks, or to go on."""

    attempt_id: str
    paused: bool


@define
class AskWaiting:
    """Ask every process what this attempt waits for, then call ``asked`` of the machine with their number."""

    attempt_id: str


@define
class Wake:
    """Tell the client that there is news."""

    request: TrackedRequest


@define
class Ended:
    """The request is over: free what belongs to it. Its state and error are set."""

    request: TrackedRequest


Action = Start | Withdraw | Flow | AskWaiting | Wake | Ended
