"""The conformance suites of Qwen3-TTS's components, on the tiny checkpoint. Imported by tests only: it needs pytest."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import torch

from omni_core.api import IncomingMessage, OmniRequest, PipelineConfig, StagePayload, TextChunk
from omni_qwen3_tts.config import TTSConfig, read_config
from omni_qwen3_tts.feedback import TalkerFeedback
from omni_qwen3_tts.payloads import SpeechStart, SpeechText
from omni_qwen3_tts.pipeline import qwen3_tts
from omni_qwen3_tts.talker import TalkerRunner
from omni_qwen3_tts.talker_network import Talker, load_talker
from omni_testing import FeedbackConformance, ModelRunnerConformance, PipelineConformance
from omni_testing.ours.checkpoints import Refusing, tiny_checkpoint


@cache
def _talker() -> tuple[Talker, TTSConfig]:
    config = read_config(tiny_checkpoint("qwen3-tts"))
    return load_talker(tiny_checkpoint("qwen3-tts"), config), config


class _TalkerRequests(Refusing):
    """Requests of the talker on two tracks, whose text comes as a stream."""

    def make(self) -> TalkerRunner:
        return TalkerRunner(*_talker(), {}, TalkerFeedback())

    def messages(self, request_id: str, number: int, sampling: dict[str, Any]) -> list[IncomingMessage]:
        _, config = _talker()
        start = SpeechStart(opening=torch.tensor([1, 2, 3]), dual_track=number != 1)
        if number:
            start["speaker"] = list(config.speakers.values())[number % len(config.speakers)]
        texts = [SpeechText(ids=torch.tensor([20 + 10 * number + n])) for n in range(3 + number)]
        request = OmniRequest(params={"talker": sampling})
        sent = [
            IncomingMessage(request_id, "stream_chunk", each, "preprocessing", None, request)
            for each in (start, *texts)
        ]
        done = IncomingMessage(request_id, "stream_done", None, "preprocessing", None, request)
        payload = StagePayload(request_id, request, {})
        return [*sent, done, IncomingMessage(request_id, "new_request", payload, "preprocessing", None, request)]


class TalkerConformance(_TalkerRequests, ModelRunnerConformance):
    """The talker."""


class TalkerFeedbackConformance(_TalkerRequests, FeedbackConformance):
    """The talker's loop."""


class SpeechConformance(PipelineConformance):
    """The whole pipeline in one process, seeded."""

    def config(self) -> PipelineConfig:
        return qwen3_tts(tiny_checkpoint("qwen3-tts"), processes="one")

    def requests(self) -> list[OmniRequest]:
        texts = ("Hello.", "Tell me a story.", "What is a fox?")
        return [OmniRequest({"messages": [{"role": "user", "content": text}]}, _PARAMS) for text in texts]

    def inputs(self) -> list[tuple[OmniRequest, list[Any]]]:
        texts = (["He", "llo, ", "", "you."], ["Tell me", " a story about", " a f", "ox and the sea."])
        return [(OmniRequest({"messages": []}, _PARAMS), [TextChunk(each) for each in text]) for text in texts]

    def same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        first, second = one["code2wav"], other["code2wav"]
        return np.array_equal(first.codes, second.codes) and np.allclose(first.samples, second.samples, atol=1e-4)


_PARAMS = {"talker": {"max_new_tokens": 12}, "seed": 4, "return_codes": True}
