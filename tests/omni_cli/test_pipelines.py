"""``omni pipelines NAME``: what a pipeline declares."""

from __future__ import annotations

from omni_cli.pipelines import described
from omni_core.hookspecs import PipelineComponent
from omni_core.interface import Interface


def test_inputs_that_may_stream_are_told() -> None:
    interface = Interface(inputs=["text", "audio"], input_streams=["audio"])
    assert "    takes: text, audio; as a stream: audio" in described(
        PipelineComponent("p", "m:f", "s", interface=interface)
    )
