"""The semantic_ar stage: turns prompts into frames of codes.

A long text is spoken in turns. A turn continues the request's own sequence: the speech so far stays in its cache, which
keeps the voice the same.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Self

import torch

from omni_core.api import ARRequest, FeedbackStrategy, IncomingMessage, OmniRequest, OutgoingMessage, SamplingParams
from omni_fish_s2.config import FishConfig, read_config
from omni_fish_s2.frame_feedback import Speech, numbers_of
from omni_fish_s2.payloads import SpeechInputs, SpeechResult
from omni_fish_s2.sampling import AGAIN, WINDOW, Draws, SpeechSampling, choose, speech_sampling
from omni_fish_s2.slow import SlowDecoder, load_decoders
from omni_torch.api import (
    FeedbackARModelRunner,
    extend,
    filled_on,
    keeps_bfloat16,
    kept_as_stored,
    pack_decoder,
    pack_linears,
    quantize_for,
)

MOST_TURNS = 8
"""Turns that may wait to be spoken, about a minute of speech; with more, whoever writes the text waits."""


class SpeechRunner(FeedbackARModelRunner):
    """Chooses among the semantic tokens and the end of the turn; at that end, continues with the next turn."""

    model: SlowDecoder
    output_seconds = 2048 / 44_100  # a frame of the codec

    def __init__(
        self, model: SlowDecoder, config: FishConfig, feedback: FeedbackStrategy, device: str | torch.device = "cpu"
    ) -> None:
        super().__init__(model, feedback, device)
        self._config = config
        self.max_context = config.max_positions
        self._candidates = model.candidates.tolist()
        self._streamed: dict[str, ARRequest] = {}

    @classmethod
    def from_checkpoint(
        cls,
        model_path: str,
        feedback: FeedbackStrategy,
        device: str = "cpu",
        dtype: str = "float32",
        quantization: str | None = None,
    ) -> Self:
        """Load both decoders.

        Args:
            model_path: the checkpoint's folder.
            dtype: of the weights: float32, bfloat16, float16.
            quantization: as of :func:`omni_torch.quantization.quantized_linear.quantize_for`.
        """
        quantize, kind = quantize_for(quantization, device), getattr(torch, dtype)
        config = read_config(model_path)
        stored = quantization is None and keeps_bfloat16(model_path, kind, device)
        place = filled_on(quantization, device)
        model = load_decoders(model_path, config, dtype=None if stored else kind, device=place)
        if stored:
            kept_as_stored(model, kind, trim=False)
        parts = model.layers, model.fast  # not the head: single rows of it are read
        for part in parts:
            pack_linears(part, quantize)
        model.to(device)
        for part in parts:
            pack_linears(part, pack_decoder)
        return cls(model, config, feedback, device)

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        """A request arrives whole, as its payload, or turn by turn, as a stream with an empty payload."""
        data = message.data.data if message.type == "new_request" else message.data
        if message.type == "stream_done":
            return self._no_more_turns(message)
        if message.type == "stream_chunk" and isinstance(data, torch.Tensor):
            self._one_more_turn(self._streamed[message.request_id], data)
            return None
        if "message" in data:
            self._streamed[message.request_id].state.error = data
            return self._no_more_turns(message)
        if "token_ids" not in data:
            return None
        given = message.data.request if message.type == "new_request" else message.request or OmniRequest()
        request = self._request(message.request_id, given, data)
        if message.type == "stream_chunk":
            request.state.open = True
            self._streamed[message.request_id] = request
        return request

    def _one_more_turn(self, request: ARRequest, ids: torch.Tensor) -> None:
        speech: Speech = request.state
        speech.turns.append(ids)
        if speech.waiting:
            speech.waiting = False
            self._next_turn(request)

    def _no_more_turns(self, message: IncomingMessage) -> ARRequest | None:
        """Handle the end of a stream, or of what can be spoken of it: the request is still speaking, has spoken everything, or
        had no text.
        """
        request = self._streamed.get(message.request_id)
        if request is None:
            given = message.request or OmniRequest()
            nothing = Speech(SpeechSampling(), None, [])
            return ARRequest(message.request_id, given, [], SamplingParams(), state=nothing, finish_reason="stop")
        speech: Speech = request.state
        speech.open = False
        if not speech.waiting:
            return None
        request.finish_reason = speech.ended
        return request

    def can_step(self, request: ARRequest) -> bool:
        return not request.state.waiting

    def has_enough(self, request: ARRequest) -> bool:
        return len(request.state.turns) >= MOST_TURNS

    def release(self, request_id: str) -> None:
        self._streamed.pop(request_id, None)

    def _request(self, request_id: str, request: OmniRequest, inputs: SpeechInputs) -> ARRequest:
        sampling = speech_sampling(request)
        draws = None
        if not sampling.greedy:
            codes = (self._config.codebooks - 1, self._config.codebook_size)
            draws = Draws(sampling.seed, self.model.candidates, self._config.vocab_size, codes)
        limits = SamplingParams(
            stop_ids=frozenset([self._config.im_end]), max_new_tokens=sampling.max_new_tokens, temperature=0.0
        )
        return ARRequest(
            request_id=request_id,
            request=request,
            prompt_ids=inputs["token_ids"].tolist(),
            sampling=limits,
            prompt_embeds=self._embed(inputs),
            state=Speech(sampling, draws, list(inputs["turns"])),
        )

    def _embed(self, inputs: SpeechInputs) -> torch.Tensor:
        ids = inputs["token_ids"].to(self.device)
        embeds = self.model.embed(ids)
        if "codes" in inputs:
            codes, start = inputs["codes"].to(self.device), inputs["codes_start"]
            span = slice(start, start + len(codes))
            embeds[span] = self.model.embed_frames(ids[span], codes)
        return embeds

    def choose(self, logits: torch.Tensor, requests: list[ARRequest]) -> list[int]:
        """Choose the next token of each request: semantic, or the end of the turn.

        Raises:
            FloatingPointError: a row has no finite largest value.
        """
        best = logits.max(dim=-1)
        for request, value in zip(requests, best.values.tolist(), strict=True):
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"request {request.request_id}: no frame can be chosen at position {request.length}, the largest logit "
                    f"is {value}; check for NaN in the weights"
                )
        columns = best.indices
        drawing = [index for index, request in enumerate(requests) if request.state.draws is not None]
        if drawing:
            rows = logits[drawing]
            params = [requests[index].state.sampling for index in drawing]
            numbers = [numbers_of(requests[index], len(requests[index].output_ids)) for index in drawing]
            drawn = choose(rows, params, torch.stack([each.first for each in numbers]))
            again = [_again(each) for each in params]
            instead = choose(rows, again, torch.stack([each.second for each in numbers]))
            repeats = [self._repeats(requests[i], column) for i, column in zip(drawing, drawn.tolist(), strict=True)]
            columns[drawing] = torch.where(torch.tensor(repeats, device=drawn.device), instead, drawn)
        return [self._candidates[column] for column in columns.tolist()]

    def _repeats(self, request: ARRequest, column: int) -> bool:
        """Return True if a semantic token is among the turn's latest ones; the turn's first token never counts."""
        token = self._candidates[column]
        return token != self._config.im_end and token in request.output_ids[1:][-WINDOW:]

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        yield from super().emit(request, token_id)
        speech: Speech = request.state
        if request.finish_reason is None:
            return
        speech.ended = request.finish_reason
        if speech.turns:
            self._next_turn(request)
        elif speech.open:
            request.finish_reason, speech.waiting = None, True

    def _next_turn(self, request: ARRequest) -> None:
        """Continue where the last turn ended. Its last token was not fed: it was the end marker, or the context was
        full.
        """
        speech: Speech = request.state
        ids = speech.turns.pop(0)
        speech.steps += len(request.output_ids)
        extend(request, ids.tolist(), self.model.embed(ids.to(self.device)))

    def does_not_fit(self, request: ARRequest, max_context: int) -> str:
        """See :meth:`ModelRunner.does_not_fit`."""
        return (
            f"the text does not fit: after {request.state.frames} frames of speech the next part would end at position "
            f"{request.length} of a context of {max_context}; speak it in several requests"
        )

    def result(self, request: ARRequest) -> SpeechResult:
        result = SpeechResult(frames=request.state.frames, finish_reason=request.finish_reason or "stop")
        if request.state.error is not None:
            result["error"] = request.state.error
        return result


def _again(sampling: SpeechSampling) -> SpeechSampling:
    return SpeechSampling(AGAIN.temperature, AGAIN.top_p, sampling.top_k, sampling.max_new_tokens)
