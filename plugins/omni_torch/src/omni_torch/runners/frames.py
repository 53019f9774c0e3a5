"""Share parts of the feedback loops of models that speak in frames of codes: recorded frames, and the stream of them."""

from __future__ import annotations

from typing import Protocol

import torch

from omni_core.api import ARModel, ARRequest, FeedbackStrategy, ForwardOutput, OutgoingMessage
from omni_torch.loop.packing import indices
from omni_torch.runners.graphs import Graphs, Recorder
from omni_torch.runners.transfers import all_to_device


class SpeechState(Protocol):
    """The fields of ``request.state`` that :meth:`FrameStrategy.stream` sets.

    Attributes:
        feedback: the embedded last frame.
        frames: the number of frames sent.
    """

    feedback: torch.Tensor | None
    frames: int


class FrameStrategy(FeedbackStrategy):
    """A strategy that completes a frame of codes in each step.

    Args:
        frame_graphs: true if frames are recorded on a GPU and replayed; a recorder in tests, for any device.

    Attributes:
        graphs: the recorded frames; ``None`` where they are computed without.
    """

    def __init__(self, frame_graphs: bool | type[Recorder] = True) -> None:
        self._frame_graphs = frame_graphs
        self.graphs: Graphs | None = None

    def bind(self, model: ARModel, device: torch.device) -> None:
        """See :meth:`FeedbackStrategy.bind`."""
        super().bind(model, device)
        self.graphs = Graphs.choose(device, self._frame_graphs, "frame_graphs")

    def newest(
        self, output: ForwardOutput, requests: list[tuple[ARRequest, int]]
    ) -> tuple[list[ARRequest], torch.Tensor, torch.Tensor]:
        """Return what the frames of a step are made of: the requests, their hidden states ``[B, hidden]``, their newest tokens ``[B]``.

        Args:
            output, requests: those of :meth:`FeedbackStrategy.extract_output`.
        """
        speaking, rows = [request for request, _ in requests], [row for _, row in requests]
        on_host = indices([request.output_ids[-1] for request in speaking]), indices(rows)
        tokens, index = all_to_device(on_host, output.hidden.device)
        every = rows == list(range(len(output.hidden)))  # as in most steps of decodes
        return speaking, output.hidden if every else output.hidden[index], tokens

    def stream(
        self, frames: torch.Tensor, feedback: torch.Tensor, requests: list[ARRequest], target: str
    ) -> dict[str, list[OutgoingMessage]]:
        """Keep each request's feedback for its next step, and return its frame as a chunk for the stage ``target``.

        Args:
            frames: ``[B, codebooks]`` int64, on the host.
            feedback: ``[B, hidden]``.
        """
        messages = {}
        for request, frame, embedded in zip(requests, frames, feedback, strict=True):
            state: SpeechState = request.state
            state.feedback, state.frames = embedded, state.frames + 1
            messages[request.request_id] = [OutgoingMessage(request.request_id, "stream", frame.clone(), target)]
        return messages
