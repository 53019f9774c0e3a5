"""Finds a running pipeline on this machine and asks it, for ``omni top`` and ``omni profile``."""

from __future__ import annotations

import asyncio
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from omni_core.control.plane import ControlPlane
from omni_core.errors import ConfigError, OmniError
from omni_core.protocol.messages import ProfileDone, ProfileRequest, StatusReport, StatusRequest

_ANSWER_SECONDS = 5.0
_WRITING_SECONDS = 120.0


def running(base: Path | None = None) -> list[Path]:
    """The run folders with a coordinator's socket that this user may write to. Its pipeline may have ended, or be another user's."""
    folders = (base or Path(tempfile.gettempdir())).glob("omni-*")
    return sorted(folder for folder in folders if (folder / "coordinator.sock").exists() and os.access(folder, os.W_OK))


def only_run() -> Path:
    """The folder of the one pipeline that runs.

    Raises:
        ConfigError: none runs, or several do.
    """
    found = running()
    if not found:
        raise ConfigError(
            f"no pipeline runs here (none of {tempfile.gettempdir()}/omni-*); if its config sets endpoints.base_path, give its folder"
        )
    if len(found) > 1:
        raise ConfigError("several pipelines run; give the folder of one: " + ", ".join(map(str, found)))
    return found[0]


class StatusClient:
    """Asks a running pipeline by the sockets in its run's folder. A context manager."""

    def __init__(self, folder: Path) -> None:
        self._target = f"ipc://{folder}/coordinator.sock"
        self._own = tempfile.TemporaryDirectory(prefix="omnistat-")
        self._endpoint = f"ipc://{self._own.name}/status.sock"
        self._answer: asyncio.Future[Any] | None = None
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

    async def _ask(self, message: Any, seconds: float) -> Any:
        self._answer = asyncio.get_running_loop().create_future()
        self._control.send(self._target, message)
        try:
            return await asyncio.wait_for(self._answer, seconds)
        except TimeoutError:
            raise OmniError("the pipeline does not answer; has it ended, or is its process stopped?") from None

    def _on_message(self, message: Any) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(message)
