"""The suite of streamed inputs passes on a scheduler that keeps the contract and fails on each that breaks it in one way."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Any, ClassVar

import pytest
from word_stages import word_pipeline

from omni_core.config.schema import PipelineConfig
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import TextChunk
from omni_core.scheduling.base import Scheduler
from omni_core.scheduling.streaming import StreamingScheduler
from omni_testing import PipelineConformance, StreamedInputConformance


class Count(StreamingScheduler[list[str]]):
    """Counts the words of a text that is still being written."""

    def new_state(self, request_id: str, request: OmniRequest | None) -> list[str]:
        return [""]

    def on_chunk(self, state: list[str], chunk: Any, metadata: dict[str, Any] | None) -> None:
        if chunk.text == "fail":
            raise ValueError("a bad chunk")
        state[0] += chunk.text

    def finish(self, request_id: str, state: list[str]) -> int:
        return len(state[0].split())


class TestCount(StreamedInputConformance):
    scheduler: type[Scheduler] = Count

    def make(self) -> Scheduler:
        return self.scheduler()

    def pieces(self, number: int) -> list[Any]:
        return [TextChunk(letter) for letter in "a few words " * number]

    def join(self, pieces: list[Any]) -> Any:
        return TextChunk("".join(each.text for each in pieces))

    def bad(self) -> Any:
        return TextChunk("fail")


class CountsChunks(Count):
    """Counts words chunk by chunk, so that the cut matters."""

    def on_chunk(self, state: list[str], chunk: Any, metadata: dict[str, Any] | None) -> None:
        state[0] += f"{chunk.text} "


class MixesRequests(Count):
    """Has one text for all requests."""

    text: ClassVar = [""]

    def new_state(self, request_id: str, request: OmniRequest | None) -> list[str]:
        return self.text

    def finish(self, request_id: str, state: list[str]) -> int:
        number = super().finish(request_id, state)
        if len(self._requests) == 1:
            state[0] = ""
        return number


class TakesNothingBad(Count):
    def on_chunk(self, state: list[str], chunk: Any, metadata: dict[str, Any] | None) -> None:
        state[0] += chunk.text


class ForgetsNoAborts(Count):
    def abort(self, request_id: str) -> None:
        self.inbox.remove(lambda message: message.request_id == request_id)


class EndsEmptyInputsTwice(Count):
    def finish(self, request_id: str, state: list[str]) -> int:
        if not state[0]:
            self._fail(request_id, ValueError("it is empty"))
        return super().finish(request_id, state)


@pytest.mark.parametrize(
    ("scheduler", "test"),
    [
        (CountsChunks, "test_every_cut_of_the_input_gives_the_same_result"),
        (MixesRequests, "test_inputs_side_by_side_give_what_they_give_alone"),
        (EndsEmptyInputsTwice, "test_no_result_comes_twice_and_an_empty_input_ends"),
        (TakesNothingBad, "test_a_bad_chunk_fails_its_request_alone"),
        (ForgetsNoAborts, "test_an_abandoned_input_leaves_nothing"),
    ],
)
def test_the_suite_bites(scheduler: type[Scheduler], test: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("omni_testing.scheduler.PATIENCE", 1.0)
    suite = TestCount()
    suite.scheduler = scheduler
    with pytest.raises(AssertionError):
        getattr(suite, test)()


class Words(PipelineConformance):
    """Its pipeline counts words that come."""

    def config(self) -> PipelineConfig:
        return word_pipeline(Path("/tmp"))

    def inputs(self) -> list[tuple[OmniRequest, list[Any]]]:
        return [(OmniRequest(), [TextChunk(text) for text in chunks]) for chunks in (("one tw", "o"), ("a b c ", "d"))]


class NoInputs(Words):
    def inputs(self) -> list[tuple[OmniRequest, list[Any]]]:
        return []


class OtherAnswers(Words):
    numbers = count()

    def same(self, one: dict[str, Any], other: dict[str, Any]) -> bool:
        assert one["count"] == other["count"]
        return next(self.numbers) == 0


def test_a_pipeline_answers_inputs_that_stream() -> None:
    Words().test_inputs_that_stream_are_answered_alike_and_leave_nothing()
    with pytest.raises(AssertionError, match="must give at least two"):
        NoInputs().test_inputs_that_stream_are_answered_alike_and_leave_nothing()
    with pytest.raises(AssertionError, match="input 1 has another answer"):
        OtherAnswers().test_inputs_that_stream_are_answered_alike_and_leave_nothing()
