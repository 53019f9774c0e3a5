"""Conformance suites of this distribution's components, on the tiny checkpoint. Imported by tests only, because it needs pytest."""

from __future__ import annotations

import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from omni_core.config.schema import PipelineConfig
from omni_core.protocol.messages import OmniRequest
from omni_fish_s2.pipeline import fish_s2
from omni_testing import PipelineConformance
from omni_testing.tiny.fish_s2 import write_tiny_checkpoint


@cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    folder = tempfile.TemporaryDirectory(prefix="omni-tiny-fish-")
    write_tiny_checkpoint(Path(folder.name))
    return folder


class SpeechConformance(PipelineConformance):
    """The whole pipeline in one process, seeded."""

    def config(self) -> PipelineConfig:
        return fish_s2(_folder().name, processes="one")

    def requests(self) -> list[OmniRequest]:
        params = {"semantic": {"max_new_tokens": 12}, "seed": 4, "return_codes": True}
        texts = ("Hello.", "Tell me a story.", "What is a fox?")
        return [OmniRequest({"messages": [{"role": "user", "content": text}]}, params) for text in texts]

    def same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        first, second = one["vocoder"], other["vocoder"]
        return np.array_equal(first.codes, second.codes) and np.allclose(first.samples, second.samples, atol=1e-4)
