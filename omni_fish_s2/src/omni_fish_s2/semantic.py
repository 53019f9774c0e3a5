"""The semantic_ar stage: prompts in, frames of codes out, on the engine's feedback loop.

A long text is spoken in turns. A turn continues the request's own sequence: what was said stays in its cache, and with it the voice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from attrs import define

from omni_core.errors import InvalidRequestError
from omni_core.model_runner.types import (
    ARModel,
    ARRequest,
    FinishReason,
    ForwardBatch,
    ForwardOutput,
    SamplingParams,
)
from omni_core.protocol.messages import OmniRequest
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage
from omni_engine.graphs import Graphs, Named, Recorder
from omni_engine.scheduler import EngineScheduler
from omni_fish_s2.config import FishConfig, read_config
from omni_fish_s2.payloads import SpeechInputs, SpeechResult
from omni_fish_s2.sampling import (
    AGAIN,
    WINDOW,
    Draws,
    SpeechSampling,
    choose,
    choose_among,
    filters,
    speech_sampling,
    widest,
)
from omni_fish_s2.slow import SlowDecoder, load_decoders
from omni_torch.feedback import FeedbackARModelRunner, FeedbackStrategy
from omni_torch.packed_linear import pack_linears
from omni_torch.quantized_linear import pack_for
from omni_torch.scheduler import check_options


@define(eq=False)
class _Speech:
    """What the stage knows of a request beyond the engine's book-keeping.

    Attributes:
        draws: ``None`` when nothing is drawn. turns: what is still to be said. steps: tokens chosen in earlier turns.
        feedback: ``[dim]``, the embedded last frame. frames: sent so far.
        open: whether more turns may come. waiting: whether all turns so far are spoken and the next one has not come.
        ended: why the last turn ended.
    """

    sampling: SpeechSampling
    draws: Draws | None
    turns: list[torch.Tensor]
    steps: int = 0
    feedback: torch.Tensor | None = None
    frames: int = 0
    open: bool = False
    waiting: bool = False
    ended: FinishReason = "stop"


def recordable_frame(
    model: SlowDecoder,
    most: int,
    hidden: torch.Tensor,
    first: torch.Tensor,
    drawing: torch.Tensor | None = None,
    numbers: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
) -> Callable[[], Named]:
    """A whole frame and its embedding, the choices of its codes included, as a function that asks the host nothing.

    Args:
        hidden, first: see :meth:`omni_fish_s2.fast.FastDecoder.forward`.
        drawing: ``[B]`` bool, whose codes are drawn; ``numbers`` and ``most``: see :func:`choose_among`; ``uniforms``:
            ``[B, codebooks - 1, codebook_size]``. Without them, nobody's are.
    """

    def pick(logits: torch.Tensor, index: int) -> torch.Tensor:
        best = logits.argmax(-1)
        if drawing is None or numbers is None or uniforms is None:
            return best
        return torch.where(drawing, choose_among(logits, most, numbers, uniforms[:, index - 1]), best)

    def frame() -> Named:
        codes = model.fast(hidden, first, pick)
        return {"codes": codes, "feedback": model.embed_frames(first + model.config.semantic_begin, codes)}

    return frame


class FrameFeedback(FeedbackStrategy):
    """Fish S2's loop: the fast decoder completes each frame; its embedding is the next input."""

    def __init__(self, graphs: Graphs | None = None) -> None:
        self._graphs = graphs

    def write_buffers(self, model: ARModel, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        assert batch.input_embeds is not None
        for request, row in requests:
            speech: _Speech = request.state
            assert speech.feedback is not None
            batch.input_embeds[row] = speech.feedback

    def extract_output(
        self,
        model: ARModel,
        batch: ForwardBatch,
        output: ForwardOutput,
        requests: list[tuple[ARRequest, int]],
        outbox: MessageQueue[OutgoingMessage],
    ) -> None:
        assert isinstance(model, SlowDecoder)
        hidden = output.hidden[[row for _, row in requests]]
        tokens = torch.tensor([request.output_ids[-1] for request, _ in requests], device=hidden.device)
        frames, feedback = self._frames(
            model, hidden, tokens - model.config.semantic_begin, [request for request, _ in requests]
        )
        frames = frames.cpu()
        for index, (request, _) in enumerate(requests):
            speech: _Speech = request.state
            speech.feedback = feedback[index]
            speech.frames += 1
            outbox.put(OutgoingMessage(request.request_id, "stream", frames[index].clone(), target="vocoder"))

    def _frames(
        self, model: SlowDecoder, hidden: torch.Tensor, first: torch.Tensor, requests: list[ARRequest]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each request's frame, and its embedding."""
        speeches: list[_Speech] = [request.state for request in requests]
        drawing = [index for index, speech in enumerate(speeches) if speech.draws is not None]
        # The step of the token just appended.
        numbers = [_numbers(requests[index], len(requests[index].output_ids) - 1).codes for index in drawing]
        if self._graphs is not None:
            replayed = self._replayed(
                self._graphs, model, hidden, first, speeches, dict(zip(drawing, numbers, strict=True))
            )
            if replayed is not None:
                return replayed["codes"], replayed["feedback"]

        def pick(logits: torch.Tensor, index: int) -> torch.Tensor:
            codes = logits.argmax(-1)
            if drawing:
                uniforms = torch.stack([each[index - 1] for each in numbers])
                codes[drawing] = choose(logits[drawing], [speeches[each].sampling for each in drawing], uniforms)
            return codes

        frames: torch.Tensor = model.fast(hidden, first, pick)
        return frames, model.embed_frames(first + model.config.semantic_begin, frames)

    def _replayed(
        self,
        graphs: Graphs,
        model: SlowDecoder,
        hidden: torch.Tensor,
        first: torch.Tensor,
        speeches: list[_Speech],
        numbers: dict[int, torch.Tensor],
    ) -> Named | None:
        """``numbers``: the uniform numbers of those that draw."""
        inputs, width, most = [hidden, first], model.config.codebook_size, 0
        if numbers:
            params = [speech.sampling for speech in speeches]
            most = widest([params[index] for index in numbers], width)
            unused = torch.zeros(model.config.codebooks - 1, width)
            drawing = torch.tensor([index in numbers for index in range(len(params))])
            uniforms = torch.stack([numbers.get(index, unused) for index in range(len(params))])
            inputs += [drawing, filters(params, width), uniforms]
        return graphs.run(most, partial(recordable_frame, model, most), inputs)


def _numbers(request: ARRequest, step: int) -> Any:
    """The random numbers of a step of the current turn."""
    speech: _Speech = request.state
    assert speech.draws is not None
    return speech.draws.at(speech.steps + step)


class SpeechRunner(FeedbackARModelRunner):
    """Chooses among the semantic tokens and the end of the turn; at that end, goes on with the next turn."""

    model: SlowDecoder

    def __init__(
        self,
        model: SlowDecoder,
        config: FishConfig,
        *,
        max_context: int,
        device: str = "cpu",
        cuda_graphs: bool | type[Recorder] = True,
    ) -> None:
        super().__init__(model, FrameFeedback(Graphs.choose(torch.device(device), cuda_graphs)), device)
        self._config, self._max_context = config, max_context
        self._candidates = model.candidates.tolist()
        self._streamed: dict[str, ARRequest] = {}

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        """A request comes whole, as its payload; or turn by turn, as a stream, whose payload says nothing more."""
        data = message.data.data if message.type == "new_request" else message.data
        if message.type == "stream_done":
            return self._no_more_turns(message)
        if message.type == "stream_chunk" and isinstance(data, torch.Tensor):
            self._one_more_turn(self._streamed[message.request_id], data)
            return None
        if "token_ids" not in data:
            return None
        given = message.data.request if message.type == "new_request" else message.request or OmniRequest()
        request = self._request(message.request_id, given, data)
        if message.type == "stream_chunk":
            request.state.open = True
            self._streamed[message.request_id] = request
        return request

    def _one_more_turn(self, request: ARRequest, ids: torch.Tensor) -> None:
        speech: _Speech = request.state
        speech.turns.append(ids)
        if speech.waiting:
            speech.waiting = False
            self._next_turn(request)

    def _no_more_turns(self, message: IncomingMessage) -> ARRequest | None:
        """The end of a stream: of a request that is still speaking, of one that has spoken, or of one that had nothing to say."""
        request = self._streamed.get(message.request_id)
        if request is None:
            given = message.request or OmniRequest()
            nothing = _Speech(SpeechSampling(), None, [])
            return ARRequest(message.request_id, given, [], SamplingParams(), state=nothing, finish_reason="stop")
        speech: _Speech = request.state
        speech.open = False
        if not speech.waiting:
            return None
        request.finish_reason = speech.ended
        return request

    def can_step(self, request: ARRequest) -> bool:
        return not request.state.waiting

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
            state=_Speech(sampling, draws, list(inputs["turns"])),
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
        """The next token of each request: semantic, or the end of the turn.

        Raises:
            FloatingPointError: a row has no finite largest value.
        """
        best = logits.max(dim=-1)
        for request, value in zip(requests, best.values.tolist(), strict=True):
            if not math.isfinite(value):
                raise FloatingPointError(
                    f"request {request.request_id}: no frame can be chosen at position {request.length}, the largest logit "
                    f"is {value}; look for NaN in the weights"
                )
        columns = best.indices
        drawing = [index for index, request in enumerate(requests) if request.state.draws is not None]
        if drawing:
            rows = logits[drawing]
            params = [requests[index].state.sampling for index in drawing]
            numbers = [_numbers(requests[index], len(requests[index].output_ids)) for index in drawing]
            drawn = choose(rows, params, torch.stack([each.first for each in numbers]))
            again = [_again(each) for each in params]
            instead = choose(rows, again, torch.stack([each.second for each in numbers]))
            repeats = [self._repeats(requests[i], column) for i, column in zip(drawing, drawn.tolist(), strict=True)]
            columns[drawing] = torch.where(torch.tensor(repeats, device=drawn.device), instead, drawn)
        return [self._candidates[column] for column in columns.tolist()]

    def _repeats(self, request: ARRequest, column: int) -> bool:
        """Whether a semantic token is among the turn's last ones; its first one never counts."""
        token = self._candidates[column]
        return token != self._config.im_end and token in request.output_ids[1:][-WINDOW:]

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        yield from super().emit(request, token_id)
        speech: _Speech = request.state
        if request.finish_reason is None:
            return
        speech.ended = request.finish_reason
        if speech.turns:
            self._next_turn(request)
        elif speech.open:
            request.finish_reason, speech.waiting = None, True

    def _next_turn(self, request: ARRequest) -> None:
        """Go on where the last turn ended. Its last token was never fed: it was the end, or there is no room for it."""
        speech: _Speech = request.state
        ids = speech.turns.pop(0)
        length = len(request.prompt_ids) + len(request.output_embeds) + len(ids)
        if length + 1 >= self._max_context:
            raise InvalidRequestError(
                f"the text does not fit: after {speech.frames} frames of speech the next part would begin at position "
                f"{length} of a context of {self._max_context}; speak it in several requests"
            )
        speech.steps += len(request.output_ids)
        request.extend(ids.tolist(), self.model.embed(ids.to(self.device)))

    def result(self, request: ARRequest) -> SpeechResult:
        return SpeechResult(frames=request.state.frames, finish_reason=request.finish_reason or "stop")


def _again(sampling: SpeechSampling) -> SpeechSampling:
    return SpeechSampling(AGAIN.temperature, AGAIN.top_p, sampling.top_k, sampling.max_new_tokens)


def create_semantic_ar(
    model_path: str,
    device: str | None = None,
    gpu_id: int | None = None,
    dtype: str = "float32",
    quantization: str | None = None,
    **engine: Any,
) -> EngineScheduler:
    """The semantic_ar stage. ``quantization``: one of :data:`omni_torch.quantized_linear.QUANTIZATIONS`, on a CPU. ``engine`` are
    options of :class:`omni_engine.scheduler.EngineScheduler`.
    """
    check_options(EngineScheduler, engine)
    config = read_config(model_path)
    place = device or ("cpu" if gpu_id is None else f"cuda:{gpu_id}")
    pack = pack_for(quantization, place)
    model = load_decoders(model_path, config, dtype=dtype, device=place)
    for part in (model.layers, model.fast):  # not the head: some of its rows are read
        pack_linears(part, pack)
    engine.setdefault("max_context", config.max_positions)
    recorded = engine.get("cuda_graphs", True)
    runner = SpeechRunner(model, config, max_context=engine["max_context"], device=place, cuda_graphs=recorded)
    return EngineScheduler(runner, **engine)
