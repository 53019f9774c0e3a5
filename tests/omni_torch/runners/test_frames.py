"""The stream of frames that feedback loops share."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch

from omni_core.errors import ConfigError
from omni_core.model_runner import ForwardBatch, ForwardOutput
from omni_torch.runners.frames import FrameStrategy


class Counting(FrameStrategy):
    def write_buffers(self, batch: ForwardBatch, requests: Any) -> None: ...

    def extract_output(self, batch: ForwardBatch, output: ForwardOutput, requests: Any) -> Any: ...


def test_each_request_gets_its_frame_and_keeps_its_feedback() -> None:
    requests: Any = [SimpleNamespace(request_id=name, state=SimpleNamespace(feedback=None, frames=2)) for name in "ab"]
    frames, feedback = torch.tensor([[1, 2], [3, 4]]), torch.tensor([[0.5], [0.25]])
    messages = Counting().stream(frames, feedback, requests, "vocoder")
    frames.zero_()  # a recorded frame's memory is written again by the next
    sent = {name: [(each.type, each.target, each.data.tolist()) for each in messages[name]] for name in messages}
    assert sent == {"a": [("stream", "vocoder", [1, 2])], "b": [("stream", "vocoder", [3, 4])]}
    assert [(each.state.feedback.item(), each.state.frames) for each in requests] == [(0.5, 3), (0.25, 3)]


@pytest.mark.parametrize("rows", [[0, 1, 2], [2], [1, 0, 2]])
def test_a_frame_is_made_of_the_row_and_the_newest_token_of_its_request(rows: list[int]) -> None:
    hidden = torch.tensor([[0.0], [0.1], [0.2]])
    requests: Any = [(SimpleNamespace(output_ids=[9, 10 + row]), row) for row in rows]
    speaking, states, tokens = Counting().newest(ForwardOutput(hidden), requests)
    assert speaking == [request for request, _ in requests]
    assert torch.equal(states, hidden[rows])
    assert tokens.tolist() == [10 + row for row in rows]


def test_frames_are_recorded_on_devices_with_graphs() -> None:
    model: Any = object()
    strategy = Counting()
    strategy.bind(model, torch.device("cpu"))
    assert strategy.graphs is None
    assert strategy.model is model
    with pytest.raises(ConfigError, match="frame_graphs: must be true or false, is 3"):
        Counting(3).bind(model, torch.device("cpu"))  # type: ignore[arg-type]
