"""Conformance suites of this distribution's components, on the tiny checkpoint. Imported by tests only, because it needs pytest."""

from __future__ import annotations

from typing import Any

import numpy as np

from omni_core.api import OmniRequest, PipelineConfig, TextChunk
from omni_fish_s2.pipeline import fish_s2
from omni_testing import PipelineConformance
from omni_testing.ours.checkpoints import tiny_checkpoint


class SpeechConformance(PipelineConformance):
    """The whole pipeline in one process, seeded."""

    def config(self) -> PipelineConfig:
        return fish_s2(tiny_checkpoint("fish-s2"), processes="one")

    def requests(self) -> list[OmniRequest]:
        params = {"semantic": {"max_new_tokens": 12}, "seed": 4, "return_codes": True}
        texts = ("Hello.", "Tell me a story.", "What is a fox?")
        return [OmniRequest({"messages": [{"role": "user", "content": text}]}, params) for text in texts]

    def inputs(self) -> list[tuple[OmniRequest, list[Any]]]:
        request = OmniRequest({"messages": []}, self.requests()[0].params)
        texts = ("Hello. A fox sleeps.", "What is it? Nobody knows.")
        return [(request, [TextChunk(letter) for letter in text]) for text in texts]

    def same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        first, second = one["vocoder"], other["vocoder"]
        return np.array_equal(first.codes, second.codes) and np.allclose(first.samples, second.samples, atol=1e-4)
