"""The thinker stage: turns prompts with encoder features into text, and into hidden states for a talker."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any, Self

import torch
from attrs import define, field

from omni_core.api import ARModel, ARRequest, ConfigError, ForwardBatch, ForwardOutput, IncomingMessage, OutgoingMessage
from omni_qwen3.config import QwenConfig, read_config
from omni_qwen3.content import content_spans, row_digests
from omni_qwen3.decode import tokenizer_of
from omni_qwen3.external_decoder import load_external
from omni_qwen3.interface import FRAME_SECONDS, THINKER_DEFAULTS
from omni_qwen3.payloads import TalkerStart, TalkerText, ThinkerInputs, thinker_params
from omni_qwen3.routing import wants_audio
from omni_qwen3.thinker_network import load_thinker
from omni_qwen3.turns import assistant_start, user_rows
from omni_torch.api import (
    ALONE,
    ARModelRunner,
    Arriving,
    Constraints,
    StopTokens,
    TensorParallel,
    Written,
    indices,
    pack_decoder,
    pack_linears,
    prompt_runs,
    quantize_for,
    random_of,
    sampling_from,
    text_decoder,
    to_device,
)


@define(eq=False)
class _State:
    """The runner's state of a request, in ``request.state``."""

    inputs: ThinkerInputs
    embeds: torch.Tensor  # [P, hidden]
    user: torch.Tensor  # [P] bool: rows of user turns
    multimodal: torch.Tensor  # [P] bool
    hidden: torch.Tensor | None  # [P, hidden], filled at the user turns' multimodal rows; None without speech
    assistant_start: int
    started: bool = False
    spoken: Callable[[], torch.Tensor] | None = None  # waits for the newest token's embedding, [1, hidden]
    stops: StopTokens | None = None  # None if the request has no stop strings
    held: list[TalkerText] = field(factory=list)  # tokens that may belong to a stop string, not yet sent to talker_ar
    told: int = 0  # tokens sent to talker_ar
    calls: StopTokens | None = None  # finds where the spoken part ends, at a call of a tool; None without tools
    silent: bool = False  # nothing of the reply is spoken


class ThinkerRunner(ARModelRunner):
    """Injects encoder outputs, streams ids to ``decode`` and, for speech, embeddings and hidden states to ``talker_ar``."""

    def __init__(
        self,
        model: ARModel,
        config: QwenConfig,
        *,
        speech_enabled: bool,
        device: str | torch.device = "cpu",
        parallel: TensorParallel = ALONE,
    ) -> None:
        super().__init__(model, device)
        self.parallel = parallel
        self._config = config
        self._speech_enabled = speech_enabled
        self._capture = config.talker.accept_hidden_layer
        self.kept_width = model.hidden_size if speech_enabled else 0  # a talker reads hidden states of the prompt
        self.max_context = config.thinker.max_positions
        self.output_seconds = FRAME_SECONDS if speech_enabled else None
        self._constraints = Constraints(
            lambda: tokenizer_of(config.folder), model.vocab_size, [config.im_end], parallel.size
        )

    @classmethod
    def from_checkpoint(
        cls,
        model_path: str,
        device: str = "cpu",
        dtype: str = "float32",
        speech_enabled: bool = True,
        quantization: str | None = None,
        gguf: str | None = None,
        decoder: str | None = None,
        expert_parallel: bool = False,
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
            gguf: a GGUF file of the thinker, read in place of the checkpoint's weights.
            decoder: a dotted reference to a callable that builds the network in place of ours; see
                :func:`omni_qwen3.external_decoder.load_external`.
            expert_parallel: with several ranks, each holds some of the experts whole, in place of a slice of every one. With one rank it
                changes nothing.

        Raises:
            ConfigError: an option cannot be used with ``decoder``; or the ranks cannot share the model.
        """
        given = {
            "quantization": quantization is not None,
            "gguf": gguf is not None,
            "expert_parallel": expert_parallel,
            "tp_size": tp_size > 1,
        }
        if decoder is not None and any(given.values()):
            option = next(name for name, is_given in given.items() if is_given)
            raise ConfigError(
                f"decoder: {decoder!r} cannot be used with `{option}`, which works with the built-in layers only"
            )
        quantize_for(quantization, device)  # errors come before the ranks connect
        config = read_config(model_path)
        model: ARModel
        parallel = ALONE
        if decoder is None:
            parallel = TensorParallel.connect(tp_rank, tp_size, tp_rendezvous, device)
            model = load_thinker(
                model_path,
                config,
                dtype=dtype,
                device=device,
                parallel=parallel,
                expert_parallel=expert_parallel,
                quantization=quantization,
                gguf=gguf,
            )
            pack_linears(model, pack_decoder)
        else:
            model = load_external(decoder, model_path, config, dtype=dtype, device=device)
        return cls(model, config, speech_enabled=speech_enabled, device=device, parallel=parallel)

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        if message.type != "new_request":
            return None
        inputs: ThinkerInputs = message.data.data
        request = message.data.request
        given: dict[str, Any] = {"max_new_tokens": 1} if "given" in inputs else {**thinker_params(request.params)}
        ignore_eos, stops = given.pop("ignore_eos", False), given.pop("stop", None)
        structured, logprobs = given.pop("structured", None), given.pop("top_logprobs", None)
        stop_ids = [] if ignore_eos else [self._config.im_end]
        given = {**THINKER_DEFAULTS, **given}
        sampling = sampling_from(given, "params.thinker", stop_ids=stop_ids, logprobs=logprobs)
        ids = inputs["input_ids"].to(self.device)
        embeds = self.model.embed(ids)
        mask = inputs.get("feature_mask")
        multimodal = torch.zeros(len(ids), dtype=torch.bool) if mask is None else mask
        if "features" in inputs:
            embeds[multimodal] = inputs["features"].to(embeds)
        speaks = self._speech_enabled and wants_audio(request)
        mark = inputs.get("spoken_until") if speaks else None
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
                embeds=embeds,
                user=user_rows(ids, self._config),
                multimodal=multimodal,
                hidden=torch.zeros_like(embeds) if speaks else None,
                assistant_start=assistant_start(ids, self._config) if speaks else 0,
                stops=StopTokens(stops, self._decoder) if stops else None,
                calls=StopTokens([mark], self._decoder) if mark else None,
                silent=mark == "",
            ),
            content=content_spans(inputs),
            constraint=self._constraints.begin(structured, "params.thinker", inputs.get("begun", "")),
        )

    def _decoder(self) -> Callable[[int], str | None]:
        return text_decoder(tokenizer_of(self._config.folder))

    def reuse(self, request: ARRequest, rows: torch.Tensor) -> None:
        if request.state.hidden is not None:
            request.state.hidden[: len(rows)] = rows

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        state: _State = request.state
        if spoken := state.inputs.get("given"):  # the chosen token is left out: nothing is written
            rows = TalkerText(token_ids=request.prompt_ids[-spoken:], embeds=state.embeds[-spoken:].cpu())
            for chunk in (self._talker_start(state), rows):
                yield OutgoingMessage(request.request_id, "stream", chunk, target="talker_ar")
            return
        begun = state.inputs.get("begun")
        metadata: dict[str, Any] = {"begun": begun} if begun else {}
        if request.logprobs:
            metadata["logprobs"] = request.logprobs[-1:]
        yield OutgoingMessage(request.request_id, "stream", [token_id], target="decode", metadata=metadata or None)
        if state.hidden is None:
            return
        if not state.started:
            state.started = True
            yield OutgoingMessage(request.request_id, "stream", self._talker_start(state), target="talker_ar")
        if state.silent:
            return
        if request.finish_reason is None:  # a reply's last token is never spoken
            assert state.spoken is not None
            state.held.append(TalkerText(token_ids=[token_id], embeds=state.spoken()))
        ready = len(state.held)
        if state.stops is not None and (request.finish_reason is None or state.stops.found):
            ready = state.stops.safe - state.told
        if state.calls is not None and (request.finish_reason is None or state.calls.found):
            ready = min(ready, state.calls.safe - state.told)
        for text in state.held[:ready]:
            yield OutgoingMessage(request.request_id, "stream", text, target="talker_ar")
        state.told += ready
        del state.held[:ready]

    def _talker_start(self, state: _State) -> TalkerStart:
        assert state.hidden is not None
        merged = torch.where(state.multimodal.to(self.device).unsqueeze(-1), state.hidden, state.embeds)
        begin, user, inputs = state.assistant_start, state.user.cpu(), state.inputs
        return TalkerStart(
            user_rows=merged[state.user].cpu(),
            assistant_rows=state.embeds[begin : begin + 3].cpu(),
            multimodal=state.multimodal[user],
            positions=inputs.get("talker_positions"),
            position_delta=inputs.get("talker_position_delta", 0),
            content=row_digests(user, inputs),
        )

    def result(self, request: ARRequest) -> Written:
        return Written(
            token_ids=list(request.output_ids),
            finish_reason=request.finish_reason or "stop",
            prompt_tokens=len(request.prompt_ids),
            prompt_audio_tokens=request.prompt_ids.count(self._config.audio_token),
            notices=request.state.inputs.get("notices", []),
        )

    def before_forward(self, batch: ForwardBatch) -> None:
        assert batch.input_embeds is not None
        if self._speech_enabled:
            batch.extra["capture"] = self._capture
        rows: list[torch.Tensor] = []
        features: list[list[torch.Tensor]] = []
        for request, start, end, row in prompt_runs(batch):
            state: _State = request.state
            if "deepstack" not in state.inputs:
                continue
            visual = state.inputs["visual_mask"]
            here, before = visual[start:end].nonzero()[:, 0], int(visual[:start].sum())
            rows.append(here + row)
            features.append([layer[before : before + len(here)] for layer in state.inputs["deepstack"]])
        if rows:
            joined = [torch.cat(layers).to(batch.input_embeds) for layers in zip(*features, strict=True)]
            batch.extra["deepstack"] = (torch.cat(rows).to(self.device), joined)

    def after_forward(self, batch: ForwardBatch, output: ForwardOutput) -> None:
        captured = output.captured.get(self._capture)
        if captured is None:
            return
        if batch.keep is not None:
            batch.keep(captured)
        for request, start, end, row in prompt_runs(batch):
            if request.state.hidden is not None:
                request.state.hidden[start:end] = captured[row : row + end - start]

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: list[tuple[ARRequest, int]]) -> None:
        for request, _ in sampled:
            if request.state.stops is not None and request.state.stops.ended(request.output_ids):
                request.finish_reason = "stop"
            if request.state.calls is not None:
                request.state.calls.ended(request.output_ids)
        speaking = [(request.state, token) for request, token in sampled if request.state.hidden is not None]
        if speaking:
            ids = to_device(indices([token for _, token in speaking]), self.device)
            arriving = Arriving(self.model.embed(ids))  # awaited by `emit`
            for index, (state, _) in enumerate(speaking):
                state.spoken = partial(arriving.row, index)
