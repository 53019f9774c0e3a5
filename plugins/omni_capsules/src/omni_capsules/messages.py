"""Messages between the parent, which writes capsules, and the processes, which record."""

from __future__ import annotations

from typing import Any

from attrs import field

from omni_core.protocol.registry import message


@message
class CapsuleRequest:
    """Parent to a process: answer with the records of the attempts of a request."""

    request_id: str


@message
class CapsuleReport:
    """A process to the parent: the records of a request, one for each attempt and stage (:mod:`omni_capsules.events`).

    ``environment`` is what :func:`omni_capsules.environment.describe` returned there.
    """

    process: str
    request_id: str
    records: list[bytes] = field(factory=list, repr=False)
    environment: dict[str, Any] = field(factory=dict, repr=False)
