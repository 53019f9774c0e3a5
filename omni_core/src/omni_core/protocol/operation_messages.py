"""Messages between commands and a runner that changes its units: ``omni stage replace``, ``omni stage scale``."""

from __future__ import annotations

from typing import Any

from attrs import field

from omni_core.protocol.registry import message


@message
class Change:
    """The outcome of an operation: the process group, and the units that were started and ended for it."""

    group: str
    started: list[str] = field(factory=list)
    ended: list[str] = field(factory=list)


@message
class OperationRequest:
    """Any process of the same user to a runner: replace a stage, or with ``replicas`` scale it; answer at ``endpoint``.

    The answer is any number of :class:`OperationStep`, then :class:`OperationDone`.
    """

    endpoint: str
    stage: str
    replicas: int | None = None
    settings: dict[str, Any] = field(factory=dict)
    wait: bool = True


@message
class OperationCancel:
    """End the operation that answers at ``endpoint``."""

    endpoint: str


@message
class OperationStep:
    """A line about a step of an operation."""

    line: str


@message
class OperationDone:
    """The end of an operation: what was changed, or the ``problem``."""

    change: Change | None = None
    problem: str = ""
