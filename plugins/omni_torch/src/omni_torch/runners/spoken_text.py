"""Speaks a text that another stage is still writing: what talkers share, whatever their networks are."""

from __future__ import annotations

from typing import Any

import torch
from attrs import define, field

from omni_core.api import ARModel, ARRequest, FeedbackStrategy, IncomingMessage, OmniRequest, SamplingParams
from omni_torch.runners.model_runner import FeedbackARModelRunner


@define(eq=False)
class SpokenText:
    """The state of a request, in ``request.state``.

    Attributes:
        request: the client's.
        start: the first chunk, what the prompt is made of.
        admitted: true once it is schedulable.
        text: rows of text, ``[hidden]`` each, one per spoken token.
        token_ids: those of the text, where the runner knows them.
        text_done: true once no more will arrive.
        after_text: the rows that follow the text, ``[hidden]`` each: the end marker once, then padding.
        feedback: ``[hidden]``, the embedding of the newest frame.
        frames: the number of frames sent. Both are for :class:`omni_torch.runners.frames.FrameStrategy`.
    """

    request: OmniRequest
    after_text: tuple[torch.Tensor, torch.Tensor]
    start: Any = None
    text: list[torch.Tensor] = field(factory=list)
    token_ids: list[int] = field(factory=list)
    text_done: bool = False
    admitted: bool = False
    feedback: torch.Tensor | None = None
    frames: int = 0

    def text_row(self, index: int) -> torch.Tensor:
        """Return row ``index`` of the text, ``[hidden]``. Row 0 is part of the prompt."""
        if index < len(self.text):
            return self.text[index]
        end, padding = self.after_text
        return end if index == len(self.text) else padding


class SpokenTextRunner(FeedbackARModelRunner):
    """Starts a request when its first chunk and a token of text have arrived; pauses it while the text is behind.

    A text that ends without a token gives speech of no frames.

    Attributes:
        after_text: see :class:`SpokenText`; set by the subclass before the first request.
    """

    after_text: tuple[torch.Tensor, torch.Tensor]

    def __init__(self, model: ARModel, feedback: FeedbackStrategy, device: str | torch.device = "cpu") -> None:
        super().__init__(model, feedback, device)
        self._speeches: dict[str, SpokenText] = {}

    def text_rows(self, chunk: Any) -> torch.Tensor | None:
        """Return the rows of a chunk of text, ``[n, hidden]`` on the device; ``None`` if it is the request's start."""
        raise NotImplementedError

    def token_ids(self, chunk: Any) -> list[int]:
        """Return the tokens of a chunk of text, for a result that tells what is said; by default none."""
        return []

    def admit(self, request_id: str, speech: SpokenText) -> ARRequest:
        """Return the request that a stream has become: ``speech.start`` and the first row of ``speech.text`` are there."""
        raise NotImplementedError

    def sampling(self, request: OmniRequest) -> SamplingParams:
        """Return how a request's codes are chosen."""
        raise NotImplementedError

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        """See :meth:`ModelRunner.receive`."""
        speech = self._speeches.get(message.request_id)
        if speech is None:
            speech = self._speeches[message.request_id] = SpokenText(message.request or OmniRequest(), self.after_text)
        if message.type == "stream_done":
            speech.text_done = True
        elif message.type == "stream_chunk":
            rows = self.text_rows(message.data)
            if rows is None:
                speech.start = message.data
            else:
                speech.text.extend(rows.unbind(0))
                speech.token_ids += self.token_ids(message.data)
        is_ready = speech.start is not None and bool(speech.text)
        if speech.admitted or not (is_ready or speech.text_done):
            return None
        speech.admitted = True
        if is_ready:
            return self.admit(message.request_id, speech)
        sampling = self.sampling(speech.request)
        return ARRequest(message.request_id, speech.request, [], sampling, state=speech, finish_reason="stop")

    def can_step(self, request: ARRequest) -> bool:
        """See :meth:`ModelRunner.can_step`."""
        speech: SpokenText = request.state
        return not request.output_ids or speech.text_done or len(request.output_ids) < len(speech.text)

    def release(self, request_id: str) -> None:
        """See :meth:`ModelRunner.release`."""
        self._speeches.pop(request_id, None)
