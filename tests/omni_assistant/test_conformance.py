"""The assistant is a pipeline like any other: the conformance suite, also for sound that is still coming."""

from __future__ import annotations

from typing import Any

import assistant_parts as parts
import numpy as np
import pytest

from omni_assistant.pipeline import NO_MODEL, assistant
from omni_core.api import AudioChunk, OmniRequest, PipelineConfig
from omni_testing import PipelineConformance

pytest.importorskip("omni_serve")  # reads calls of tools

ALL = ["transcript", "text", "audio"]


def said(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "audio", "data": text.encode()}]}


class TestAssistant(PipelineConformance):
    def config(self) -> PipelineConfig:
        return assistant(NO_MODEL, asr=parts.recogniser(live=True), llm=parts.writer(), tts=parts.voice())

    def requests(self) -> list[OmniRequest]:
        return [
            OmniRequest({"messages": [{"role": "user", "content": "hi"}]}),
            OmniRequest({"messages": [said("one"), said("two")]}),
            OmniRequest({"messages": [said("three")]}, modalities=ALL),
            OmniRequest({"messages": [said("three")]}, modalities=["transcript"]),
            OmniRequest({"messages": [said("three")]}, modalities=["text"]),
        ]

    def inputs(self) -> list[tuple[OmniRequest, list[Any]]]:
        def chunks(text: str, size: int) -> list[Any]:
            codes = np.array([ord(each) for each in text], np.float32)
            return [AudioChunk(codes[start : start + size], parts.RATE) for start in range(0, len(text), size)]

        opening = OmniRequest({"messages": []}, modalities=ALL)
        return [(opening, chunks("how are you", 1)), (opening, chunks("who are you", 4))]
