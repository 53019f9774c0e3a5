"""Runners over the engine's toy model that keep the contract, and their requests; ``wrong_runners`` adds mistakes to
them.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from toy_model import FeedbackRunner, SumFeedback, ToyModel, ToyRunner

from omni_core.errors import InvalidRequestError
from omni_core.model_runner import ARModel, ARRequest, ForwardBatch, RandomStream, SamplingParams
from omni_core.scheduling.base import IncomingMessage
from omni_torch.runners.model_runner import ARModelRunner

MODEL = ToyModel()


def sampling_params(plain: dict[str, Any]) -> SamplingParams:
    sets = {name: frozenset(plain[name]) for name in ("stop_ids", "suppressed_ids") if name in plain}
    return SamplingParams(**{**plain, **sets})


class RightRunner(ToyRunner):
    def release(self, request_id: str) -> None:
        return


class RightFeedback(FeedbackRunner):
    def receive(self, message: IncomingMessage) -> ARRequest | None:
        if message.type == "new_request" and message.data.get("poison"):
            raise InvalidRequestError("bad from the start")
        return super().receive(message)


class Requests:
    """Prompts of ids; subclasses name another runner."""

    runner: ClassVar[type[ARModelRunner]] = RightRunner

    def make(self) -> ARModelRunner:
        return self.runner(MODEL)  # type: ignore[call-arg]

    def messages(self, request_id: str, number: int, sampling: dict[str, Any]) -> list[IncomingMessage]:
        prompt = [3 + number, 50, 7, 11 + 5 * number, *range(20, 20 + number)]
        return [IncomingMessage(request_id, "new_request", {"prompt": prompt, "sampling": sampling_params(sampling)})]

    def bad(self, request_id: str) -> list[IncomingMessage]:
        (message,) = self.messages(request_id, 0, {})
        message.data["poison"] = "receive"
        return [message]


class FeedbackRequests(Requests):
    runner = RightFeedback


class TextFeedback(SumFeedback):
    """Feedback to which the next row of a streamed text is added."""

    def write_buffers(self, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        super().write_buffers(batch, requests)
        assert batch.input_embeds is not None
        for request, row in requests:
            text, index = request.state["text"], len(request.output_ids)
            batch.input_embeds[row] += text[index] if index < len(text) else 0.0


class StreamedRunner(FeedbackRunner):
    """Starts with its prompt and waits for each row of text until the text is done."""

    def __init__(self, model: ARModel) -> None:
        super().__init__(model, TextFeedback())
        self.states: dict[str, dict[str, Any]] = {}

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        name = message.request_id
        if message.type == "stream_chunk":
            self.states[name]["text"].append(message.data)
        elif message.type == "stream_done":
            self.states[name]["done"] = True
        else:
            sampling = message.data["sampling"]
            state = self.states[name] = {"text": [], "done": False}
            random = RandomStream(sampling.seed)
            return ARRequest(name, message.request, message.data["prompt"], sampling, state=state, random=random)  # type: ignore[arg-type]
        return None

    def can_step(self, request: ARRequest) -> bool:
        return request.state["done"] or len(request.output_ids) < len(request.state["text"])

    def release(self, request_id: str) -> None:
        self.states.pop(request_id, None)


class StreamedRequests(Requests):
    runner = StreamedRunner

    def messages(self, request_id: str, number: int, sampling: dict[str, Any]) -> list[IncomingMessage]:
        generator = torch.Generator().manual_seed(number)
        rows = [torch.randn(32, generator=generator) for _ in range(2 + number)]
        chunks = [IncomingMessage(request_id, "stream_chunk", row) for row in rows]
        return [*super().messages(request_id, number, sampling), *chunks, IncomingMessage(request_id, "stream_done")]

    def bad(self, request_id: str) -> list[IncomingMessage]:
        return []
