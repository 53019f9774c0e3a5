"""A talker starts when the prompt side and a token of text are there, and never runs ahead of the text."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omni_core.model_runner import ARRequest, FeedbackStrategy, SamplingParams
from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import IncomingMessage
from omni_torch.runners.spoken_text import SpokenText, SpokenTextRunner

END, PADDING = torch.full((2,), -1.0), torch.full((2,), -2.0)


class Feedback(FeedbackStrategy):
    def write_buffers(self, batch: Any, requests: Any) -> None: ...

    def extract_output(self, batch: Any, output: Any, requests: Any) -> dict[str, Any]:
        return {}


class Runner(SpokenTextRunner):
    after_text = END, PADDING

    def text_rows(self, chunk: Any) -> torch.Tensor | None:
        return None if chunk == "start" else chunk

    def sampling(self, request: OmniRequest) -> SamplingParams:
        return SamplingParams()

    def admit(self, request_id: str, speech: SpokenText) -> ARRequest:
        return ARRequest(request_id, speech.request, [-1], self.sampling(speech.request), state=speech)

    def result(self, request: ARRequest) -> int:
        return request.state.frames


@pytest.fixture
def runner() -> Runner:
    return Runner(SimpleNamespace(hidden_size=2), Feedback())  # type: ignore[arg-type]


def tell(runner: Runner, *chunks: Any, request_id: str = "r") -> list[ARRequest | None]:
    """Send chunks of a stream; ``None`` ends it."""
    kinds = ["stream_done" if each is None else "stream_chunk" for each in chunks]
    return [runner.receive(IncomingMessage(request_id, *each)) for each in zip(kinds, chunks, strict=True)]


def test_it_starts_with_both_and_waits_for_the_text(runner: Runner) -> None:
    assert tell(runner, torch.zeros(1, 2)) == [None]
    (request,) = tell(runner, "start")
    assert request is not None
    assert tell(runner, torch.ones(2, 2)) == [None], "it is admitted once"
    speech: SpokenText = request.state
    allowed = []
    for _ in range(5):
        allowed.append(runner.can_step(request))
        request.output_ids.append(0)
    assert allowed == [True, True, True, False, False]
    assert tell(runner, None) == [None]
    assert runner.can_step(request)
    rows = [speech.text_row(index) for index in range(5)]
    assert [float(each[0]) for each in rows] == [0, 1, 1, -1, -2]


@pytest.mark.parametrize("chunks", [(None,), ("start", None)])
def test_a_text_without_a_token_is_speech_of_no_frames(runner: Runner, chunks: tuple[Any, ...]) -> None:
    request = tell(runner, *chunks)[-1]
    assert request is not None
    assert request.finish_reason == "stop"
    assert runner.result(request) == 0
    runner.release("r")
    assert tell(runner, None)[0] is not None, "it was forgotten: another request may have its name"
