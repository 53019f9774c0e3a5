"""The pipelines and projections of this workspace keep their contracts."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch

from omni_core.config.schema import PipelineConfig
from omni_core.protocol.messages import OmniRequest
from omni_core.testing import PipelineConformance, ProjectionConformance
from omni_qwen3.pipeline import qwen3_omni
from omni_qwen3.tiny_checkpoint import write_tiny_checkpoint


@pytest.fixture(scope="module", autouse=True)
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> None:
    folder: Path = tmp_path_factory.mktemp("checkpoint")
    write_tiny_checkpoint(folder, seed=0, shape="a")
    TestQwen3Omni.checkpoint = str(folder)


class TestQwen3Omni(PipelineConformance):
    checkpoint: ClassVar[str]

    def config(self) -> PipelineConfig:
        return qwen3_omni(self.checkpoint, processes="one")

    def requests(self) -> list[OmniRequest]:
        params = {"thinker": {"max_new_tokens": 8}, "talker": {"temperature": 0.0, "max_new_tokens": 12}}
        texts = ("Hello.", "Tell me a story.", "What is a fox?")
        return [
            OmniRequest({"messages": [{"role": "user", "content": [{"type": "text", "text": text}]}]}, params)
            for text in texts
        ]

    def same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        texts = [list(each["decode"].token_ids) for each in (one, other)]
        return texts[0] == texts[1] and np.allclose(one["code2wav"].samples, other["code2wav"].samples, atol=1e-4)


class _Preprocessed(ProjectionConformance):
    def payloads(self) -> list[Any]:
        image = {"pixel_values": torch.ones(4, 8), "image_grid_thw": torch.tensor([[1, 2, 2]])}
        audio = {"input_features": torch.ones(1, 4, 10), "feature_lengths": torch.tensor([10])}
        return [{"input_ids": torch.arange(5), "image": image, "audio": audio}]


class TestToImageEncoder(_Preprocessed):
    projection = "omni_qwen3.routing:to_image_encoder"


class TestToAudioEncoder(_Preprocessed):
    projection = "omni_qwen3.routing:to_audio_encoder"


class TestToAggregate(_Preprocessed):
    projection = "omni_qwen3.routing:to_aggregate"
