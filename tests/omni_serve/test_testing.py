"""The suite for other pipelines passes for good ones, and bites."""

from __future__ import annotations

import pytest
from attrs import evolve
from serve_stages import INTERFACE, speaking_pipeline

from omni_core.config.schema import PipelineConfig
from omni_testing import ServingConformance


class TestTones(ServingConformance):
    tool_text = "rain"

    def config(self) -> PipelineConfig:
        return speaking_pipeline()


class TestTextOnly(ServingConformance):
    def config(self) -> PipelineConfig:
        return speaking_pipeline(evolve(INTERFACE, inputs=["text"], outputs=["text"], tool_format=None, warmup=[]))


class _Silent(ServingConformance):
    """It declares speech, but its stream has another sound than its whole answer."""

    text = "unequal"

    def config(self) -> PipelineConfig:
        return speaking_pipeline()


class _Undeclared(ServingConformance):
    def config(self) -> PipelineConfig:
        return speaking_pipeline(evolve(INTERFACE, sample_rate=None))


class _Mute(ServingConformance):
    """It declares tools, but its text has no calls in the declared format."""

    tool_text = "no call, please"

    def config(self) -> PipelineConfig:
        return speaking_pipeline()


def test_it_bites() -> None:
    with pytest.raises(AssertionError, match="no call was found"):
        _Mute().test_calls_are_read_out_of_its_text()
    with pytest.raises(AssertionError, match="byte for byte"):
        _Silent().test_a_streamed_answer_equals_the_whole()
    with pytest.raises(AssertionError, match="sample_rate"):
        _Undeclared().test_it_declares_what_a_server_needs()
