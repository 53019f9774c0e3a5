"""Contracts between the runtime and a profile. Profiles themselves are a service, imported when one begins."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from attrs import frozen

from omni_core.scheduling.base import IncomingMessage, MessageQueue, Scheduler

Flow = tuple[str, str, int | None]
"""The arrow from a send to its receipt, which both ends know: source, target, number of the chunk (``None``: the payload)."""


@frozen
class ProfileSummary:
    """The size of a profile: events and dropped events over all processes, and the processes that did not answer."""

    events: int
    dropped: int
    missing: list[str]


class StageRecorder(Protocol):
    """Records the phases of a stage's requests at its scheduler's queues."""

    def ended(self, request_id: str) -> None:
        """The request is over in this stage."""

    def detach(self) -> None:
        """Record no more."""


class Recorder(Protocol):
    """One process's events. Its methods may be called from any thread."""

    def begin(self, request_id: str, name: str, stage: str = "") -> None:
        """Open a span on the request's track in ``stage``; without a stage, on its track in this process."""

    def end(self, request_id: str, name: str, **args: Any) -> None:
        """Close it. Nothing happens if it was opened before the profile began."""

    def instant(self, request_id: str, name: str, stage: str, **args: Any) -> None:
        """A moment on the request's track in ``stage``."""

    def slice(self, name: str, begin_ns: int, request_id: str, flow: Flow, *, starts: bool, **args: Any) -> None:
        """Work of this thread from ``begin_ns`` until now, and one end of the arrow of ``flow``."""

    def attach(
        self, stage: str, inbox: MessageQueue[IncomingMessage], scheduler: Scheduler | None = None
    ) -> StageRecorder:
        """Record what a stage's inbox gets and gives, and with ``scheduler`` its outbox and turns too, until it is detached."""


class Profiling(Protocol):
    """Profiles of a running pipeline, called on its event loop."""

    async def start(self, torch: Sequence[str] = ()) -> None:
        """Record in every process from now on. ``torch``: stages in whose processes torch's own profiler runs too.

        Raises:
            ConfigError: no such stage. OmniError: a profile is running already.
        """

    async def stop(self, path: str | Path) -> ProfileSummary:
        """Stop recording, and write one trace of all processes to ``path``.

        Raises:
            OmniError: no profile is running, or ``path`` cannot be written.
        """

    def take(self, report: Any) -> None:
        """Take the report of a process."""
