"""Finds a running pipeline on this machine and asks it, for ``omni top`` and ``omni profile``."""

from __future__ import annotations

import asyncio
import math
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from omni_core.api import OmniError
from omni_core.runtime_api import (
    Change,
    ControlPlane,
    OperationCancel,
    OperationDone,
    OperationRequest,
    OperationStep,
    ProfileDone,
    ProfileRequest,
    StatusReport,
    StatusRequest,
    temporary_directory,
)

_ANSWER_SECONDS = 5.0
_WRITING_SECONDS = 120.0


def running(base: Path | None = None) -> list[Path]:
    """The run folders of this user with a coordinator's socket. Its pipeline may have ended."""
    folders = (base or Path(temporary_directory())).glob("omni-*")
    return sorted(folder for folder in folders if is_private(folder) and (folder / "coordinator.sock").exists())


def is_private(folder: Path) -> bool:
    """Return whether only this user can have put sockets into a folder. Anyone can make one where temporary files go."""
    try:
        state = folder.lstat()
    except OSError:
        return False
    return stat.S_ISDIR(state.st_mode) and state.st_uid == os.getuid() and not state.st_mode & 0o077


class StatusClient:
    """Asks a running pipeline by the sockets in its run's folder. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._target = f"ipc://{folder}/coordinator.sock"
        self._own = tempfile.TemporaryDirectory(prefix="omnistat-")
        self._endpoint = f"ipc://{self._own.name}/status.sock"
        self._answer: asyncio.Future[Any] | None = None
        self._on_step: Callable[[str], None] = lambda line: None
        self._control = ControlPlane(self._endpoint, self._on_message)
        self._control.listen()

    def __enter__(self) -> StatusClient:
        return self

    def __exit__(self, *exception: object) -> None:
        self._control.close()
        self._own.cleanup()

    async def status(self) -> StatusReport:
        """The state of the pipeline now.

        Raises:
            OmniError: the pipeline does not answer.
        """
        report: StatusReport = await self._ask(StatusRequest(self._endpoint), _ANSWER_SECONDS)
        return report

    async def profile(self, seconds: float, path: Path, torch: Sequence[str]) -> ProfileDone:
        """Record for ``seconds``, and write the trace to ``path``.

        Raises:
            OmniError: the pipeline does not answer, or cannot record.
        """
        request = ProfileRequest(self._endpoint, seconds, str(path), list(torch))
        done: ProfileDone = await self._ask(request, seconds + _WRITING_SECONDS)
        if done.problem:
            raise OmniError(done.problem)
        return done

    async def operate(
        self,
        request: OperationRequest,
        pid: int,
        on_step: Callable[[str], None] = lambda line: None,
    ) -> Change:
        """Replace a stage or scale it, and wait until that is done. Cancelling the call cancels the operation, and waits until the pipeline
        says in which state it is.

        Args:
            request: without an endpoint.
            pid: the process of the pipeline.
            on_step: called with a line for each step.

        Raises:
            OmniError: the operation has failed, or was cancelled; the pipeline has ended.
        """
        self._on_step = on_step
        asked = OperationRequest(self._endpoint, request.stage, request.replicas, request.settings, request.wait)
        asking = asyncio.ensure_future(self._ask(asked, math.inf))
        with self._until_it_ends(pid):
            try:
                done: OperationDone = await asyncio.shield(asking)
            except asyncio.CancelledError:
                self._control.send(self._target, OperationCancel(self._endpoint))
                done = await asyncio.wait_for(asking, _WRITING_SECONDS)
        if done.problem or done.change is None:
            raise OmniError(done.problem)
        return done.change

    @contextmanager
    def _until_it_ends(self, pid: int) -> Iterator[None]:
        """Let the question fail if the process of the pipeline ends."""
        loop = asyncio.get_running_loop()

        def has_ended() -> None:
            loop.remove_reader(handle)
            if self._answer is not None and not self._answer.done():
                self._answer.set_exception(OmniError(f"the pipeline (pid {pid}) has ended"))

        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            raise OmniError(f"the pipeline (pid {pid}) has ended") from None
        loop.add_reader(handle, has_ended)
        try:
            yield
        finally:
            loop.remove_reader(handle)
            os.close(handle)

    async def _ask(self, message: Any, seconds: float) -> Any:
        self._answer = asyncio.get_running_loop().create_future()
        self._control.send(self._target, message)
        try:
            return await asyncio.wait_for(self._answer, seconds)
        except TimeoutError:
            raise OmniError("the pipeline does not answer; has it ended, or is its process stopped?") from None

    def _on_message(self, message: Any) -> None:
        if isinstance(message, OperationStep):
            self._on_step(message.line)
        elif self._answer is not None and not self._answer.done():
            self._answer.set_result(message)
