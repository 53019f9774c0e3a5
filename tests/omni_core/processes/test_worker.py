"""The worker of a process, without the process: it is built in this one."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, ClassVar

import pytest

from omni_core.processes.worker import Worker
from omni_core.protocol.specs import ProcessSpec, RelaySpec, StageSpec
from omni_core.relay.base import RelayOptions


class Relay:
    """A relay that says when it is closed."""

    closed: ClassVar[list[str]] = []

    def __init__(self, options: RelayOptions) -> None:
        self.device = "cpu"

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
            StageSpec(name="right", factory="worker_stages:passes"),
            StageSpec(name="wrong", factory="worker_stages:cannot_be_built"),
        ],
        endpoint=f"ipc://{tmp_path}/p",
        coordinator_endpoint=f"ipc://{tmp_path}/c",
        stage_endpoints={},
        rank=rank,
        relays={"r": RelaySpec("worker_stages:Relay")},
    )
    worker = Worker(spec)
    with pytest.raises(ValueError, match="no weights"):
        worker.build(lambda stage: None)
    worker.close()
    assert Relay.closed == ["relay"]
