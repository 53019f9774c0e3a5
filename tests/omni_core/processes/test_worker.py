"""The worker of a process, without the process: it is built in this one."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from omni_core.control.plane import ControlPlane
from omni_core.processes.worker import Worker
from omni_core.protocol.messages import ErrorInfo, ProfileMessage
from omni_core.protocol.process_messages import PeerLeftMessage, PingMessage
from omni_core.protocol.specs import ProcessSpec, RelaySpec, StageSpec
from omni_core.relay.base import RelayOptions


class Relay:
    """A relay that says when it is closed."""

    closed: ClassVar[list[str]] = []
    cleaned: ClassVar[list[str]] = []

    def __init__(self, options: RelayOptions) -> None:
        self.device = "cpu"

    def cleanup(self, request_id: str) -> None:
        self.cleaned.append(request_id)

    def close(self) -> None:
        self.closed.append("relay")


def passes(payload: Any) -> Any:
    return payload


def cannot_be_built(*, model_path: str = "") -> Any:
    raise ValueError("no weights")


@pytest.mark.parametrize("rank", [0, 1])
async def test_a_worker_of_which_one_stage_cannot_be_built_is_closed(tmp_path: Path, rank: int) -> None:
    """The stages before it were built and not started."""
    sys.modules["worker_stages"] = sys.modules[__name__]
    Relay.closed.clear()
    spec = ProcessSpec(
        name="p",
        stages=[
            StageSpec(name="right", factory="worker_stages:passes", injected={"replica": 0}),
            StageSpec(name="wrong", factory="worker_stages:cannot_be_built"),
        ],
        endpoint=f"ipc://{tmp_path}/p",
        coordinator_endpoint=f"ipc://{tmp_path}/c",
        stage_endpoints={"right": [f"ipc://{tmp_path}/p0"]},
        rank=rank,
        services={"ranks": "omni_torch.processes.ranks:TorchRanks"},
        relays={"r": RelaySpec("worker_stages:Relay")},
    )
    worker = Worker(spec)
    with pytest.raises(ValueError, match="no weights"):
        worker.build(lambda stage: None)
    worker.close()
    assert Relay.closed == ["relay"]


async def test_what_a_unit_that_has_left_did_not_read_is_given_back(tmp_path: Path) -> None:
    sys.modules["worker_stages"] = sys.modules[__name__]
    Relay.cleaned.clear()
    read: asyncio.Queue[Any] = asyncio.Queue()
    addresses = {name: f"ipc://{tmp_path}/{name}" for name in ("left", "stays")}
    peers = [ControlPlane(address, read.put_nowait) for address in addresses.values()]
    worker = Worker(
        ProcessSpec(
            name="p",
            stages=[],
            endpoint=f"ipc://{tmp_path}/p",
            coordinator_endpoint=f"ipc://{tmp_path}/c",
            stage_endpoints={},
            addresses=addresses,
            relays={"r": RelaySpec("worker_stages:Relay")},
        )
    )
    worker._relays.open()
    for peer in peers:
        peer.listen()
    for endpoint, request in (("left", "r1"), ("left", "r2"), ("stays", "r3")):
        worker._control.send(endpoint, PingMessage(), (request, "s"))
        await read.get()
    worker._on_message(PeerLeftMessage("left"))
    for each in (worker, *peers):
        each.close()
    assert sorted(Relay.cleaned) == ["r1", "r2"]


async def test_without_the_service_a_worker_reports_why_it_records_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    endpoint = f"ipc://{tmp_path}/p"
    coordinator = f"ipc://{tmp_path}/c"
    worker = Worker(
        ProcessSpec(name="p", stages=[], endpoint=endpoint, coordinator_endpoint=coordinator, stage_endpoints={})
    )
    told: list[Any] = []
    monkeypatch.setattr(worker, "tell_coordinator", told.append)
    worker._on_message(ProfileMessage(start=True))
    worker.close()
    [report] = told
    assert report.process == "p"
    assert "pip install omni-commands" in report.problem


@pytest.mark.parametrize("is_broken", [True, False])
async def test_a_worker_whose_gpu_is_broken_ends(
    tmp_path: Path, is_broken: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every later request would fail; one that merely names CUDA in its error changes nothing."""
    pytest.importorskip("omni_torch")
    monkeypatch.setattr("omni_torch.processes.settings.TorchProcess.gpu_is_broken", lambda: is_broken)
    spec = ProcessSpec(
        name="p",
        stages=[],
        endpoint=f"ipc://{tmp_path}/p",
        coordinator_endpoint=f"ipc://{tmp_path}/c",
        stage_endpoints={},
        services={"stage-process": "omni_torch.processes.settings:TorchProcess"},
    )
    worker = Worker(spec)
    worker._check_memory(ErrorInfo("stage", "ValueError", "the GPU's name is unknown"))
    worker._check_memory(ErrorInfo("stage", "AcceleratorError", "CUDA error: device-side assert triggered"))
    await asyncio.sleep(0)
    assert worker.stopped.is_set() == is_broken
    assert worker.exit_code == (1 if is_broken else 0)
    worker.close()
