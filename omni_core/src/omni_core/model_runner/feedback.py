"""The feedback loop: models whose next input depends on the last step's output inside the same runner (seed 002).

A talker predicts the first code of a frame, a small second network the rest, and their embeddings' sum is the next
input. The loop is here, once; what differs between models is one :class:`FeedbackStrategy`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod

from omni_core.model_runner.types import ARModel, ARRequest, ForwardBatch, ForwardOutput
from omni_core.scheduling.base import MessageQueue, OutgoingMessage


class FeedbackStrategy(ABC):
    """The model-specific part of a feedback loop."""

    @abstractmethod
    def write_buffers(self, model: ARModel, batch: ForwardBatch, requests: list[ARRequest]) -> None:
        """Before the forward: write each decoding request's input row (feedback of its last step) into ``batch.input_embeds``."""

    @abstractmethod
    def extract_output(
        self,
        model: ARModel,
        batch: ForwardBatch,
        output: ForwardOutput,
        requests: list[tuple[ARRequest, int]],
        outbox: MessageQueue[OutgoingMessage],
    ) -> None:
        """After sampling: compute codebooks and feedback for the requests that go on, push stream messages to ``outbox``."""

    def prefill_forward(self, model: ARModel, batch: ForwardBatch) -> ForwardOutput | None:
        """A model's own forward for batches that contain prefill; ``None`` uses the ordinary one."""
        return None
