"""The thinker stage: turns prompts with encoder features into text, and into hidden states for a talker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from attrs import define, field

from omni_core.api import ARRequest, ForwardBatch, ForwardOutput, IncomingMessage, OutgoingMessage
from omni_qwen3.content import content_spans, row_digests
from omni_qwen3.interface import THINKER_DEFAULTS
from omni_qwen3.payloads import thinker_params
from omni_qwen3.routing import wants_audio
from omni_qwen25.config import OmniConfig, read_config
from omni_qwen25.decode import end_ids, tokenizer_of
from omni_qwen25.interface import CODE_SECONDS
from omni_qwen25.networks import Thinker, load_thinker
from omni_qwen25.payloads import TalkerStart, TalkerText, ThinkerInputs
from omni_torch.api import (
    ALONE,
    ARModelRunner,
    Constraints,
    StopTokens,
    TensorParallel,
    Written,
    prompt_runs,
    quantize_for,
    random_of,
    sampled_rows,
    sampling_from,
    text_decoder,
)


@define(eq=False)
class _State:
    """The runner's state of a request, in ``request.state``."""

    inputs: ThinkerInputs
    text: torch.Tensor | None  # [P, hidden] embeddings of text, zeros at media; None without speech
    hidden: torch.Tensor | None  # [P, hidden] of the prompt, filled as it is computed; None without speech
    started: bool = False
    fresh: torch.Tensor | None = None  # [1, hidden], the row of the newest token that has been computed
    stops: StopTokens | None = None  # None if the request has no stop strings
    held: list[TalkerText] = field(factory=list)  # tokens that may belong to a stop string, not yet sent to the talker
    told: int = 0  # tokens sent to the talker


class ThinkerRunner(ARModelRunner):
    """Injects encoder outputs, streams ids to ``decode`` and, for speech, hidden states with embeddings to ``talker``.

    The row of a token that the talker reads is the thinker's last hidden state at that token plus its embedding: it is known one step
    after the token was chosen.
    """

    model: Thinker

    def __init__(
        self,
        model: Thinker,
        config: OmniConfig,
        folder: str,
        *,
        speech_enabled: bool,
        device: str = "cpu",
        parallel: TensorParallel = ALONE,
    ) -> None:
        """``folder``: the checkpoint's, for its tokenizer. ``parallel``: the ranks that compute each step together."""
        super().__init__(model, device)
        self.parallel = parallel
        self._config, self._folder = config, folder
        self._speech_enabled = speech_enabled and config.talker is not None
        self._end = end_ids(folder, config)
        self.kept_width = model.hidden_size if self._speech_enabled else 0  # a talker reads hidden states of the prompt
        self.max_context = config.thinker.max_positions
        self.output_seconds = CODE_SECONDS if self._speech_enabled else None
        self._constraints = Constraints(lambda: tokenizer_of(folder), model.vocab_size, self._end, parallel.size)

    @classmethod
    def from_checkpoint(
        cls,
        model_path: str,
        device: str = "cpu",
        dtype: str = "float32",
        speech_enabled: bool = True,
        quantization: str | None = None,
        tp_rank: int = 0,
        tp_size: int = 1,
        tp_rendezvous: str | None = None,
    ) -> Self:
        """Load the thinker, or one tensor parallel rank of it.

        Args:
            model_path: the checkpoint's folder.
            dtype: of the weights: float32, bfloat16, float16.
            speech_enabled: true if a talker reads its stream.
            quantization: as of :func:`omni_torch.quantization.quantized_linear.quantize_for`.
        """
        quantize_for(quantization, device)  # errors come before the ranks connect
        config = read_config(model_path)
        parallel = TensorParallel.connect(tp_rank, tp_size, tp_rendezvous, device)
        model = load_thinker(
            model_path, config, dtype=dtype, device=device, parallel=parallel, quantization=quantization
        )
        return cls(model, config, model_path, speech_enabled=speech_enabled, device=device, parallel=parallel)

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        if message.type != "new_request":
            return None
        inputs: ThinkerInputs = message.data.data
        request = message.data.request
        given: dict[str, Any] = {"max_new_tokens": 1} if "given" in inputs else {**thinker_params(request.params)}
        ignore_eos, stops = given.pop("ignore_eos", False), given.pop("stop", None)
        structured, logprobs = given.pop("structured", None), given.pop("top_logprobs", None)
        stop_ids = [] if ignore_eos else self._end
        given = {**THINKER_DEFAULTS, **given}
        sampling = sampling_from(given, "params.thinker", stop_ids=stop_ids, logprobs=logprobs)
        ids = inputs["input_ids"].to(self.device)
        embeds = self.model.embed(ids)
        text = None
        if self._speech_enabled and wants_audio(request):
            text = embeds.clone()
        if "features" in inputs:
            mask = inputs["feature_mask"].to(self.device)
            embeds[mask] = inputs["features"].to(embeds)
            if text is not None:
                text[mask] = 0
        return ARRequest(
            request_id=message.request_id,
            request=request,
            prompt_ids=ids.tolist(),
            sampling=sampling,
            prompt_embeds=embeds,
            prompt_positions=inputs["positions"],
            position_delta=inputs["position_delta"],
            random=random_of(sampling.seed, message.request_id, self.parallel.size),
            state=_State(
                inputs=inputs,
                text=text,
                hidden=None if text is None else torch.zeros_like(text),
                stops=StopTokens(stops, self._decoder) if stops else None,
            ),
            content=content_spans(inputs),
            constraint=self._constraints.begin(structured, "params.thinker"),
        )

    def _decoder(self) -> Callable[[int], str | None]:
        return text_decoder(tokenizer_of(self._folder))

    def reuse(self, request: ARRequest, rows: torch.Tensor) -> None:
        if request.state.hidden is not None:
            request.state.hidden[: len(rows)] = rows

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        state: _State = request.state
        if spoken := state.inputs.get("given"):  # the chosen token is left out: nothing is written
            for chunk in self._given(request, spoken):
                yield OutgoingMessage(request.request_id, "stream", chunk, target="talker")
            return
        metadata = {"logprobs": request.logprobs[-1:]} if request.logprobs else None
        yield OutgoingMessage(request.request_id, "stream", [token_id], target="decode", metadata=metadata)
        if state.hidden is None:
            return
        if not state.started:
            state.started = True
            yield OutgoingMessage(request.request_id, "stream", self._talker_start(state), target="talker")
        if state.fresh is not None:
            state.held.append(TalkerText(token_ids=[request.output_ids[-2]], rows=state.fresh))
            state.fresh = None
        ready = len(state.held)
        if state.stops is not None and (request.finish_reason is None or state.stops.found):
            ready = max(0, min(ready, state.stops.safe - state.told))
        for text in state.held[:ready]:
            yield OutgoingMessage(request.request_id, "stream", text, target="talker")
        state.told += ready
        del state.held[:ready]

    def _given(self, request: ARRequest, spoken: int) -> tuple[TalkerStart, TalkerText]:
        """Return a prompt whose last ``spoken`` tokens are the text, as it would be if the thinker had written them."""
        prompt, state = len(request.prompt_ids) - spoken, request.state
        rows = (state.hidden[prompt:] + state.text[prompt:]).cpu()
        return self._talker_start(state, prompt), TalkerText(token_ids=request.prompt_ids[prompt:], rows=rows)

    def _talker_start(self, state: _State, prompt: int | None = None) -> TalkerStart:
        assert state.hidden is not None
        assert state.text is not None
        return TalkerStart(
            rows=(state.hidden + state.text)[:prompt].cpu(),
            positions=state.inputs["positions"][:, :prompt],
            position_delta=state.inputs["position_delta"],
            content=row_digests(torch.ones(len(state.hidden[:prompt]), dtype=torch.bool), state.inputs),
        )

    def result(self, request: ARRequest) -> Written:
        return Written(
            token_ids=list(request.output_ids),
            finish_reason=request.finish_reason or "stop",
            prompt_tokens=len(request.prompt_ids),
            prompt_audio_tokens=request.prompt_ids.count(self._config.audio),
            notices=request.state.inputs.get("notices", []),
        )

    def after_forward(self, batch: ForwardBatch, output: ForwardOutput) -> None:
        if not self._speech_enabled:
            return
        if batch.keep is not None:
            batch.keep(output.hidden)
        for request, start, end, row in prompt_runs(batch):
            if request.state.hidden is not None:
                request.state.hidden[start:end] = output.hidden[row : row + end - start]

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: list[tuple[ARRequest, int]]) -> None:
        for request, _ in sampled:
            if request.state.stops is not None and request.state.stops.ended(request.output_ids):
                request.finish_reason = "stop"
        rows = sampled_rows(batch)
        spoken = [
            (request, row)
            for (request, _), row in zip(sampled, rows, strict=True)
            if request.state.hidden is not None and len(request.output_ids) > 1
        ]
        if spoken:
            ids = torch.tensor([request.output_ids[-2] for request, _ in spoken], device=self.device)
            fresh = (output.hidden[[row for _, row in spoken]] + self.model.embed(ids)).cpu()
            for (request, _), each in zip(spoken, fresh.split(1), strict=True):
                request.state.fresh = (
                    each.clone()
                )  # a copy: a view would keep the other rows in memory, or send them along
