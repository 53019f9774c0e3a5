"""The conformance suites of Qwen3-Omni's components, on the tiny checkpoint. Imported by tests only: it needs pytest."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any, ClassVar

import torch

from omni_core.api import FeedbackStrategy, IncomingMessage, OmniRequest, PipelineConfig, StagePayload
from omni_qwen3.config import QwenConfig, read_config
from omni_qwen3.payloads import TalkerStart, TalkerText, ThinkerInputs
from omni_qwen3.pipeline import qwen3_omni, qwen3_omni_text
from omni_qwen3.talker import TalkerRunner
from omni_qwen3.talker_feedback import TalkerFeedback
from omni_qwen3.talker_network import Talker, load_talker, read_special
from omni_qwen3.thinker import ThinkerRunner
from omni_qwen3.thinker_network import Thinker, load_thinker
from omni_testing import FeedbackConformance, ModelRunnerConformance, PipelineConformance, ProjectionConformance
from omni_testing.ours.checkpoints import Refusing, TextRequests, drawn, streamed, tiny_checkpoint
from omni_torch.api import ARModelRunner


@cache
def _thinker() -> tuple[Thinker, QwenConfig]:
    config = read_config(tiny_checkpoint("qwen3"))
    return load_thinker(tiny_checkpoint("qwen3"), config), config


@cache
def _talker() -> tuple[Talker, QwenConfig, torch.Tensor]:
    config = read_config(tiny_checkpoint("qwen3"))
    return load_talker(tiny_checkpoint("qwen3"), config), config, read_special(tiny_checkpoint("qwen3"), config)


class ThinkerConformance(Refusing, ModelRunnerConformance):
    """Prompts with and without features of images (deepstack included), with speech. A subclass may name another runner."""

    runner: ClassVar[type[ThinkerRunner]] = ThinkerRunner

    def make(self) -> ARModelRunner:
        model, config = _thinker()
        return self.runner(model, config, speech_enabled=True)

    def messages(self, request_id: str, number: int, sampling: dict[str, Any]) -> list[IncomingMessage]:
        model, config = _thinker()
        user = [config.im_start, config.user, 20 + number, *([config.image_token] * 4 if number % 2 else []), 30, 31]
        ids = torch.tensor([*user, config.im_start, config.assistant, 40])
        inputs = ThinkerInputs(input_ids=ids, positions=torch.arange(len(ids)).expand(3, -1), position_delta=0)
        if number % 2:
            mask = ids == config.image_token
            levels = [drawn(10 * number + level, 4, model.hidden_size) for level in range(2)]
            inputs |= ThinkerInputs(features=levels[0], feature_mask=mask, deepstack=levels, visual_mask=mask)
        request = OmniRequest(params={"thinker": {**sampling, "ignore_eos": True}})
        return [IncomingMessage(request_id, "new_request", StagePayload(request_id, request, inputs), request=request)]


class _TalkerRequests(Refusing):
    """Requests of the talker, whose text comes as a stream."""

    feedback: ClassVar[type[FeedbackStrategy]] = TalkerFeedback

    def make(self) -> TalkerRunner:
        return TalkerRunner(*_talker(), feedback=self.feedback())

    def messages(self, request_id: str, number: int, sampling: dict[str, Any]) -> list[IncomingMessage]:
        width = _talker()[1].talker.thinker_hidden_size
        rows = 2 + number
        start = TalkerStart(
            user_rows=drawn(number, rows, width),
            assistant_rows=drawn(100 + number, 3, width),
            multimodal=torch.arange(rows) % 2 == 1,
            positions=None,
            position_delta=0,
            content=None,
        )
        texts = [TalkerText(token_ids=[n], embeds=drawn(200 + 10 * number + n, 1, width)) for n in range(3 + number)]
        request = OmniRequest(params={"talker": sampling})
        return streamed(request_id, [start, *texts], request)


class TalkerConformance(_TalkerRequests, ModelRunnerConformance):
    """The talker with its code predictor. A subclass may name another strategy."""


class TalkerFeedbackConformance(_TalkerRequests, FeedbackConformance):
    """The code predictor in its loop. A subclass may name another strategy."""


class TextConformance(TextRequests, PipelineConformance):
    """The pipeline without speech in one process, greedy."""

    def config(self) -> PipelineConfig:
        return qwen3_omni_text(tiny_checkpoint("qwen3"), processes="one")


class SpeechConformance(TextConformance):
    """The whole pipeline in one process, greedy and seeded."""

    params: ClassVar[dict[str, Any]] = {
        "thinker": {"max_new_tokens": 8},
        "talker": {"temperature": 0.0, "max_new_tokens": 12},
    }
    speech: ClassVar[str | None] = "code2wav"

    def config(self) -> PipelineConfig:
        return qwen3_omni(tiny_checkpoint("qwen3"), processes="one")


class _Preprocessed(ProjectionConformance):
    """The payload of preprocessing for a prompt with an image and a clip."""

    def payloads(self) -> list[Any]:
        image = {"pixel_values": torch.ones(4, 8), "image_grid_thw": torch.tensor([[1, 2, 2]])}
        audio = {"input_features": [torch.ones(4, 10)], "feature_lengths": torch.tensor([10])}
        return [{"input_ids": torch.arange(5), "image": image, "audio": audio}]


class ToImageEncoderConformance(_Preprocessed):
    projection = "omni_qwen3.routing:to_image_encoder"


class ToAudioEncoderConformance(_Preprocessed):
    projection = "omni_qwen3.routing:to_audio_encoder"


class ToAggregateConformance(_Preprocessed):
    projection = "omni_qwen3.routing:to_aggregate"


class MergeConformance(ProjectionConformance):
    """The fan-in, a projection of the payloads of several stages."""

    projection = "omni_qwen3.aggregate:merge_for_thinker"

    def payloads(self) -> list[Any]:
        prompt = {"input_ids": torch.arange(5), "encoders": ["image_encoder"]}
        return [{"preprocessing": prompt}, {"preprocessing": prompt, "image_encoder": {"image": torch.ones(2, 3)}}]

    def call(self, function: Callable[..., Any], data: Any) -> Any:
        return function({stage: StagePayload("r", self.request(), each) for stage, each in data.items()})
