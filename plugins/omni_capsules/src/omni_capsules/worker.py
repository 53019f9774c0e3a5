"""The worker of a stage process that records requests."""

from __future__ import annotations

import asyncio
import socket
from functools import partial
from pathlib import Path
from typing import Any

from omni_capsules.environment import describe
from omni_capsules.messages import CapsuleReport, CapsuleRequest
from omni_capsules.options import Options
from omni_capsules.records import Records
from omni_capsules.stage import RecordedStage
from omni_core.control.lanes import Tasks
from omni_core.control.network import Network
from omni_core.processes.worker import Worker
from omni_core.protocol.specs import ProcessSpec


class RecordingWorker(Worker):
    """See :class:`~omni_core.processes.worker.Worker`. It records while ``capsules`` of its launch spec says so."""

    def __init__(self, spec: ProcessSpec, network: Network | None = None) -> None:
        super().__init__(spec, network)
        own = Path(spec.addresses[spec.endpoint].removeprefix("ipc://"))
        self.records = Records(folder_of(own), spec.name, socket.gethostname(), Options(**spec.capsules))
        self.stage_class = partial(RecordedStage, records=self.records)
        self._asked = Tasks()
        self._environment: dict[str, Any] | None = None
        self._handlers[CapsuleRequest] = lambda message: self._asked.start(self._answer(message.request_id))

    async def _answer(self, request_id: str) -> None:
        records = await asyncio.to_thread(self.records.of, request_id)
        if self._environment is None:
            self._environment = await asyncio.to_thread(describe, self.spec.stages)
        self.tell_coordinator(CapsuleReport(self.spec.name, request_id, records, self._environment))


def folder_of(socket_path: Path) -> Path:
    """Return the folder of a process's records: beside its socket, in the folder of the run."""
    return socket_path.with_suffix(".capsules")
