"""Drawings of a pipeline."""

from __future__ import annotations

from typing import Any

from omni_cli.config.graph import mermaid, terminal
from omni_core.config.schema import PipelineConfig, StageConfig


def stage(name: str, **fields: Any) -> StageConfig:
    return StageConfig(name=name, factory="m:f", process=name, **fields)


DIAMOND = PipelineConfig(
    model_path="m",
    name="diamond",
    stages=[
        stage("start", next=["left", "right", "join"], route_fn="m:route"),
        stage("left", next="join", gpu=0),
        stage("right", next="join", stream_to=["end"], stream_done_to_fn="m:done"),
        stage("join", next="end", wait_for=["start", "left", "right"], wait_for_fn="m:wait", merge_fn="m:merge"),
        stage("end", terminal=True),
    ],
)


def test_drawings_show_every_edge() -> None:
    lines = mermaid(DIAMOND)
    for edge in ("start -->|route_fn| left", "right -.->|stream| end", "end --> client", "client([client]) --> start"):
        assert edge in lines
    drawn = terminal(DIAMOND)
    assert "⇢ end" in drawn
    assert "waits for start, left, right (by wait_for_fn)" in drawn
