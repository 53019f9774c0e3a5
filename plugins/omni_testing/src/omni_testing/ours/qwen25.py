"""The conformance suites of Qwen2.5-Omni's components, on the tiny checkpoint. Imported by tests only: it needs pytest."""

from __future__ import annotations

from functools import cache
from typing import Any, ClassVar

import torch

from omni_core.api import IncomingMessage, OmniRequest, PipelineConfig, StagePayload
from omni_qwen25.config import OmniConfig, read_config
from omni_qwen25.networks import Talker, Thinker, load_talker, load_thinker, read_text_rows
from omni_qwen25.payloads import TalkerStart, TalkerText, ThinkerInputs
from omni_qwen25.pipeline import qwen25_omni, qwen25_omni_text
from omni_qwen25.talker import TalkerFeedback, TalkerRunner
from omni_qwen25.thinker import ThinkerRunner
from omni_qwen25.voices import Voice, load_voices
from omni_testing import FeedbackConformance, ModelRunnerConformance, PipelineConformance
from omni_testing.ours.checkpoints import Refusing, TextRequests, drawn, streamed, tiny_checkpoint


@cache
def _thinker() -> tuple[Thinker, OmniConfig]:
    config = read_config(tiny_checkpoint("qwen25"))
    return load_thinker(tiny_checkpoint("qwen25"), config), config


@cache
def _talker() -> tuple[Talker, dict[str, Voice], torch.Tensor]:
    config = read_config(tiny_checkpoint("qwen25")).talker
    assert config is not None
    voices = load_voices(tiny_checkpoint("qwen25"))
    tokens = [config.text_end, config.text_pad, *(voice.token for voice in voices.values())]
    folder = tiny_checkpoint("qwen25")
    return load_talker(folder, config), voices, read_text_rows(folder, tokens)


class ThinkerConformance(Refusing, ModelRunnerConformance):
    """Prompts with and without features of images, with speech."""

    def make(self) -> ThinkerRunner:
        model, config = _thinker()
        return ThinkerRunner(model, config, tiny_checkpoint("qwen25"), speech_enabled=True)

    def messages(self, request_id: str, number: int, sampling: dict[str, Any]) -> list[IncomingMessage]:
        model, config = _thinker()
        ids = torch.tensor([1, 2, 20 + number, *([config.image] * 4 if number % 2 else []), 30, 31, 40])
        inputs = ThinkerInputs(input_ids=ids, positions=torch.arange(len(ids)).expand(3, -1), position_delta=0)
        if number % 2:
            features = drawn(10 * number, 4, model.hidden_size)
            inputs |= ThinkerInputs(features=features, feature_mask=ids == config.image)
        request = OmniRequest(params={"thinker": {**sampling, "ignore_eos": True}})
        return [IncomingMessage(request_id, "new_request", StagePayload(request_id, request, inputs), request=request)]


class _TalkerRequests(Refusing):
    """Requests of the talker, whose text comes as a stream."""

    def make(self) -> TalkerRunner:
        model, voices, special = _talker()
        config = read_config(tiny_checkpoint("qwen25")).talker
        assert config is not None
        return TalkerRunner(model, config, special, voices, TalkerFeedback())

    def messages(self, request_id: str, number: int, sampling: dict[str, Any]) -> list[IncomingMessage]:
        width, prompt = _thinker()[0].hidden_size, 4 + number
        start = TalkerStart(
            rows=drawn(number, prompt, width),
            positions=torch.arange(prompt).expand(3, -1),
            position_delta=0,
            content=None,
        )
        texts = [TalkerText(token_ids=[n], rows=drawn(200 + 10 * number + n, 1, width)) for n in range(3 + number)]
        request = OmniRequest(params={"talker": sampling})
        return streamed(request_id, [start, *texts], request)


class TalkerConformance(_TalkerRequests, ModelRunnerConformance):
    """The talker."""


class TalkerFeedbackConformance(_TalkerRequests, FeedbackConformance):
    """The talker's loop."""


class TextConformance(TextRequests, PipelineConformance):
    """The pipeline without speech in one process, greedy."""

    def config(self) -> PipelineConfig:
        return qwen25_omni_text(tiny_checkpoint("qwen25"), processes="one")


class SpeechConformance(TextConformance):
    """The whole pipeline in one process, greedy and seeded."""

    params: ClassVar[dict[str, Any]] = {
        "thinker": {"max_new_tokens": 6},
        "talker": {"temperature": 0.0, "max_new_tokens": 12},
        "token2wav": {"seed": 1, "num_steps": 3},
    }
    speech: ClassVar[str | None] = "mel2wav"

    def config(self) -> PipelineConfig:
        return qwen25_omni(tiny_checkpoint("qwen25"), processes="one")
