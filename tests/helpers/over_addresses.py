"""A pipeline over two addresses of this machine."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from omni_core.client import AsyncPipe
from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.protocol.messages import OmniRequest
from omni_launchers.hosts.curve import CurveKeys

HERE, THERE = "127.0.0.1", "127.0.0.2"


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as made:
        yield Path(made)


@pytest.fixture
def key_file(folder: Path) -> Path:
    CurveKeys.new().write(folder / "run.key")
    return folder / "run.key"


def two_hosts(folder: Path, key_file: Path, address: str, **fields: Any) -> PipelineConfig:
    """Send a request in which ``big`` here makes a number of values and ``total`` there adds them up."""
    relay = fields.pop("relay", None)
    return PipelineConfig(
        model_path="none",
        stages=[
            StageConfig(name="big", factory="pipeline_stages:big", process="big", next="total", relay=relay),
            StageConfig(
                name="total", factory="pipeline_stages:patient_total", process="total", terminal=True, host="b"
            ),
        ],
        endpoints=EndpointsConfig(str(folder), HERE, str(key_file)),
        hosts={"b": address},
        **fields,
    )


async def total(client: AsyncPipe, count: int) -> None:
    answer = await client.submit(OmniRequest({"count": count}))
    assert answer["total"] == pytest.approx(count * (count - 1) / 2, rel=1e-6)
