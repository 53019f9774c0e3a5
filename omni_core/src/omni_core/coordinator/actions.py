"""Actions of the ``RequestMachine`` (:mod:`omni_core.coordinator.request_machine`), which its caller carries out in their order."""

from __future__ import annotations

from attrs import define

from omni_core.coordinator.tracked_request import TrackedRequest
from omni_core.protocol.codec import Body
from omni_core.protocol.messages import OmniRequest


@define
class Start:
    """Send the request to the entry stage as ``attempt_id``. If that raises, call ``start_failed`` of the machine."""

    request: TrackedRequest


@define
class Feed:
    """Send a chunk of the input of an attempt to its entry stage, or without ``body`` the end of its input.

    Attributes:
        number: of the chunk, from 0.
    """

    attempt_id: str
    request: OmniRequest
    number: int
    body: Body | None = None
    has_tensors: bool = False


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
    """Tell the client, its reader and its sender, that there is news."""

    request: TrackedRequest


@define
class Ended:
    """The request is over: free what belongs to it. Its state and error are set."""

    request: TrackedRequest


Action = Start | Feed | Withdraw | Flow | AskWaiting | Wake | Ended
