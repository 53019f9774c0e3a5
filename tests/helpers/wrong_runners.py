"""Model runners and feedback strategies with one deliberate mistake each. The suite must catch every one."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import torch
from attrs import evolve
from right_runners import RightFeedback, RightRunner, StreamedRunner
from toy_model import SumFeedback

from omni_core.errors import InvalidRequestError
from omni_core.model_runner import ARModel, ARRequest, Forward, ForwardBatch, ForwardOutput, RandomStream
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage

Sampled = list[tuple[ARRequest, int]]


# --- runners -----------------------------------------------------------------------------------------------------------
class SeesItsNeighbours(RightRunner):
    def before_forward(self, batch: ForwardBatch) -> None:
        assert batch.input_embeds is not None
        batch.input_embeds += batch.input_embeds.mean(0)


class DependsOnItsPlace(RightRunner):
    def before_forward(self, batch: ForwardBatch) -> None:
        assert batch.input_embeds is not None
        batch.input_embeds[0, ::2] += 2.0


class DependsOnTheParts(RightRunner):
    """Writes to the first row of every chunk of a prompt, as if it were the prompt's first."""

    def before_forward(self, batch: ForwardBatch) -> None:
        assert batch.input_embeds is not None
        row = 0
        for request, start, length in zip(batch.requests, batch.starts, batch.lengths, strict=True):
            if start < len(request.prompt_ids):
                batch.input_embeds[row, ::2] += 2.0
            row += length


class Counts(RightRunner):
    steps = 0

    def before_forward(self, batch: ForwardBatch) -> None:
        assert batch.input_embeds is not None
        self.steps += 1
        batch.input_embeds[:, ::2] += 0.5 * self.steps


class ChangesItsBatch(RightRunner):
    def after_forward(self, batch: ForwardBatch, output: ForwardOutput) -> None:
        batch.positions += 1


class ChangesItsPrompt(RightRunner):
    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: Sampled) -> None:
        for request, token in sampled:
            if len(request.output_ids) == 2:
                request.prompt_ids[-1] = token


class ChangesItsMessage(RightRunner):
    def receive(self, message: IncomingMessage) -> ARRequest | None:
        request = super().receive(message)
        message.data["seen"] = True
        return request


class ReordersItsOutput(RightRunner):
    def execute(self, batch: ForwardBatch) -> Sampled:
        return super().execute(batch)[::-1]


class SwapsTokens(RightRunner):
    def execute(self, batch: ForwardBatch) -> Sampled:
        sampled = super().execute(batch)
        tokens = [token for _, token in sampled][::-1]
        return [(request, token) for (request, _), token in zip(sampled, tokens, strict=True)]


class Reseeded(RightRunner):
    """Gives every request random numbers from a generator of its own."""

    seed: ClassVar[int | None] = None

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        request = super().receive(message)
        if request is not None:
            request.random = RandomStream(self.seed)
        return request


class OneSeedForAll(Reseeded):
    seed = 5


class ForgetsThePenalty(RightRunner):
    def receive(self, message: IncomingMessage) -> ARRequest | None:
        request = super().receive(message)
        if request is not None:
            request.sampling = evolve(request.sampling, repetition_penalty=1.0)
        return request


class ChoosesItself(RightRunner):
    """Takes the best id, ignoring suppressed ids and sampling."""

    def execute(self, batch: ForwardBatch) -> Sampled:
        batch.input_embeds = self._input_embeds(batch)
        self.before_forward(batch)
        output = self.forward(batch)
        self.after_forward(batch, output)
        requests = [batch.requests[index] for index in batch.sampled]
        tokens = self.model.compute_logits(output.hidden[batch.sample_rows]).argmax(-1).tolist()
        sampled = list(zip(requests, tokens, strict=True))
        for request, token in sampled:
            self._append(request, token)
        if sampled:
            self.after_sampling(batch, output, sampled)
        return sampled


class NeverStops(RightRunner):
    def execute(self, batch: ForwardBatch) -> Sampled:
        sampled = super().execute(batch)
        for request, _ in sampled:
            if len(request.output_ids) < request.sampling.max_new_tokens:
                request.finish_reason = None
        return sampled


class SkipsAHook(RightRunner):
    def execute(self, batch: ForwardBatch) -> Sampled:
        after_forward = self.after_forward
        self.after_forward = lambda batch, output: None  # type: ignore[method-assign]
        try:
            return super().execute(batch)
        finally:
            self.after_forward = after_forward  # type: ignore[method-assign]


class KeepsRequests(RightRunner):
    def __init__(self, model: ARModel) -> None:
        super().__init__(model)
        self.history: dict[str, list[int]] = {}

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        self.history.setdefault(request.request_id, []).append(token_id)
        yield from super().emit(request, token_id)


class KeepsTensors(RightRunner):
    def __init__(self, model: ARModel) -> None:
        super().__init__(model)
        self.hidden: list[torch.Tensor] = []

    def after_forward(self, batch: ForwardBatch, output: ForwardOutput) -> None:
        self.hidden.append(output.hidden)


class RemembersNames(KeepsRequests):
    """A new request reuses the state of an aborted one with its name."""

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        request = super().receive(message)
        if request is not None:
            request.prompt_ids = request.prompt_ids + self.history.get(request.request_id, [])
        return request


class ReturnsItTwice(StreamedRunner):
    def receive(self, message: IncomingMessage) -> ARRequest | None:
        request = super().receive(message)
        self.first = request or getattr(self, "first", None)
        return self.first


class DoesNotWait(StreamedRunner):
    def can_step(self, request: ARRequest) -> bool:
        return True


class FallsOver(RightRunner):
    """Fails all requests after one bad request."""

    fallen = False

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        if self.fallen:
            raise InvalidRequestError("an earlier request was bad")
        self.fallen = "poison" in message.data
        return super().receive(message)


class BlamesItself(RightRunner):
    def receive(self, message: IncomingMessage) -> ARRequest | None:
        try:
            return super().receive(message)
        except InvalidRequestError as error:
            raise RuntimeError("something went wrong") from error


# --- feedback ----------------------------------------------------------------------------------------------------------
class _SharedBuffer(SumFeedback):
    """Keeps one feedback for all requests."""

    shared = torch.zeros(32)

    def write_buffers(self, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        assert batch.input_embeds is not None
        for _, row in requests:
            batch.input_embeds[row] = self.shared

    def extract_output(
        self, batch: ForwardBatch, output: ForwardOutput, requests: list[tuple[ARRequest, int]]
    ) -> dict[str, list[OutgoingMessage]]:
        produced = super().extract_output(batch, output, requests)
        self.shared = requests[-1][0].state["feedback"]
        return produced


class _Accumulates(SumFeedback):
    """Adds to what it fed before, also when a step is repeated."""

    def write_buffers(self, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        assert batch.input_embeds is not None
        for request, row in requests:
            request.state["sum"] = request.state.get("sum", 0.0) + request.state["feedback"]
            batch.input_embeds[row] = request.state["sum"]


class _KeepsItsRequests(SumFeedback):
    def __init__(self) -> None:
        super().__init__()
        self.served: set[str] = set()

    def write_buffers(self, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        super().write_buffers(batch, requests)
        self.served.update(request.request_id for request, _ in requests)


class SharesItsFeedback(RightFeedback):
    def __init__(self, model: ARModel) -> None:
        super().__init__(model, _SharedBuffer())


class CannotRepeatAStep(RightFeedback):
    def __init__(self, model: ARModel) -> None:
        super().__init__(model, _Accumulates())


class ItsStrategyRemembers(RightFeedback):
    def __init__(self, model: ARModel) -> None:
        super().__init__(model, _KeepsItsRequests())


class FeedsOnlyOnce(RightFeedback):
    """Does not keep the inputs that it fed, so that a preempted request continues differently."""

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: Sampled) -> None:
        super().after_sampling(batch, output, sampled)
        for request, _ in sampled:
            request.output_embeds[:] = [torch.zeros_like(each) for each in request.output_embeds]


class NeverAsksItsStrategy(RightFeedback):
    def before_forward(self, batch: ForwardBatch) -> None:
        return


class DropsWhatOthersSay(RightFeedback):
    """Emits the messages of the batch's first request only."""

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: Sampled) -> None:
        super().after_sampling(batch, output, sampled)
        for request, _ in sampled[1:]:
            request.messages = []


class SaysItAgain(RightFeedback):
    """Emits the messages of a step that failed again when it is repeated."""

    kept: ClassVar[dict[str, list[OutgoingMessage]]] = {}

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: Sampled) -> None:
        kept = {request.request_id: self.kept.pop(request.request_id, []) for request, _ in sampled}
        super().after_sampling(batch, output, sampled)
        for request, _ in sampled:
            request.messages = kept[request.request_id] + request.messages
        if len(sampled) > 1 and any(len(request.output_ids) == 3 for request, _ in sampled):
            self.kept = {request.request_id: request.messages for request, _ in sampled}
        if len(sampled) > 1 and any(len(request.output_ids) == 3 for request, _ in sampled):
            raise RuntimeError("after the fact")


class PrefillsAlways(RightFeedback):
    def forward(self, batch: ForwardBatch, forward: Forward) -> ForwardOutput:
        own = self.feedback.prefill_forward(batch)
        return forward(batch) if own is None else own


def kind_of_requests(name: str) -> str:
    """Returns the requests of ``right_runners`` for a wrong runner."""
    runner: Any = globals()[name]
    if issubclass(runner, StreamedRunner):
        return "StreamedRequests"
    return "FeedbackRequests" if issubclass(runner, RightFeedback) else "Requests"
