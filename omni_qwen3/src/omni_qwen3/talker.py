"""The talker: text embeddings in, codec frames out, on the engine's feedback loop.

Dataflow and row layout follow the reference's ``generate`` (transformers 5.23). Where the reference has no defined
behaviour, ours is described in ``docs/decisions/0003-qwen3-omni-edges.md``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from attrs import define, evolve, field
from torch import nn

from omni_core.errors import InvalidRequestError
from omni_core.model_runner.types import (
    ARModel,
    ARRequest,
    ForwardBatch,
    ForwardOutput,
    KVLayout,
    RandomStream,
    SamplingParams,
)
from omni_core.protocol.messages import OmniRequest
from omni_core.references import load
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage, Scheduler
from omni_engine.graphs import Graphs, Named, Recorder
from omni_qwen3.checkpoint import Checkpoint, load_module
from omni_qwen3.code_predictor import Choose, CodePredictor, FrameState
from omni_qwen3.config import DecoderConfig, QwenConfig, TalkerConfig, read_config
from omni_qwen3.interface import DEFAULT_SPEAKER, TALKER_DEFAULTS
from omni_qwen3.layers import DecoderLayer, RMSNorm, Rotary
from omni_qwen3.payloads import TalkerResult, TalkerStart, talker_params
from omni_qwen3.thinker import ENGINE
from omni_torch.feedback import FeedbackARModelRunner, FeedbackStrategy
from omni_torch.packed_linear import pack_linears
from omni_torch.quantized_linear import pack_for
from omni_torch.sampling import sample_tokens, sampling_from
from omni_torch.scheduler import check_options

RESIDUAL_SAMPLING = SamplingParams(temperature=1.0, top_k=50, top_p=0.8)
"""How the reference samples residual codes whenever the talker samples."""

FILTERS = ("top_k", "top_p", "min_p")

SUPPRESSED_TAIL = 1024
"""The last ids of the talker's vocabulary are markers; of these only the end-of-speech id may be chosen."""


class Projection(nn.Module):
    """Two layers from the thinker's width to the talker's."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(config.thinker_hidden_size, config.text.intermediate_size)
        self.linear_fc2 = nn.Linear(config.text.intermediate_size, config.text.hidden_size)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        projected: torch.Tensor = self.linear_fc2(F.silu(self.linear_fc1(x)))
        return projected


class TalkerDecoder(nn.Module):
    """Codec embedding, layers, norm."""

    def __init__(self, config: DecoderConfig) -> None:
        super().__init__()
        self.codec_embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, layer) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class Talker(nn.Module):
    """An :class:`omni_core.model_runner.types.ARModel` over first codes, with its projections and code predictor."""

    def __init__(self, config: TalkerConfig) -> None:
        super().__init__()
        self.model = TalkerDecoder(config.text)
        self.text_projection = Projection(config)
        self.hidden_projection = Projection(config)
        self.codec_head = nn.Linear(config.text.hidden_size, config.text.vocab_size, bias=False)
        self.code_predictor = CodePredictor(config.predictor, config.code_groups)
        self.rotary = Rotary(config.text)
        self.hidden_size, self.vocab_size = config.text.hidden_size, config.text.vocab_size
        self._layout = (config.text.layers, config.text.kv_heads, config.text.head_dim)
        self._heads = config.text.heads

    @property
    def kv_layout(self) -> KVLayout:
        return KVLayout(*self._layout, self.model.norm.weight.dtype, self._heads)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self.model.codec_embedding(ids)
        return embeds

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        assert batch.input_embeds is not None
        x = batch.input_embeds
        cos, sin = self.rotary(batch.positions, x.dtype)
        for layer in self.model.layers:
            x = layer(x, cos, sin, batch.attention)
        return ForwardOutput(self.model.norm(x))

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.codec_head(hidden)
        return logits


@define(eq=False)
class _Speech:
    """What the talker knows of a request: its text so far, and the feedback of its last frame."""

    request: OmniRequest
    start: TalkerStart | None = None
    text: list[torch.Tensor] = field(factory=list)  # projected rows [hidden], one per spoken token
    text_done: bool = False
    admitted: bool = False
    feedback: torch.Tensor | None = None  # [hidden]
    frames: int = 0


def chooser(temperature: torch.Tensor | None, uniforms: torch.Tensor | None) -> Choose:
    """How residual codes are chosen: drawn by :data:`RESIDUAL_SAMPLING` where a row's temperature is not 0.

    Args:
        temperature: ``[B]``. uniforms: ``[B, groups - 1]`` float64, where each code is drawn. Without them, nobody's codes are drawn.
    """
    if temperature is None or uniforms is None:
        return lambda logits, group: logits.argmax(-1)
    top_k, top_p, min_p = (torch.full_like(temperature, getattr(RESIDUAL_SAMPLING, name)) for name in FILTERS)

    def choose(logits: torch.Tensor, group: int) -> torch.Tensor:
        return sample_tokens(logits.float(), temperature, top_k, top_p, min_p, uniforms[:, group])

    return choose


def recordable_frame(
    predictor: CodePredictor,
    hidden: torch.Tensor,
    first_embed: torch.Tensor,
    temperature: torch.Tensor | None = None,
    uniforms: torch.Tensor | None = None,
) -> Callable[[], Named]:
    """A whole frame, the choices of its codes included, as a function that asks the host nothing.

    ``hidden``, ``first_embed``: see :meth:`CodePredictor.forward`; ``temperature``, ``uniforms``: see :func:`chooser`.
    """
    state, choose = FrameState(predictor, len(hidden), hidden), chooser(temperature, uniforms)

    def frame() -> Named:
        codes, feedback = predictor(hidden, first_embed, choose, state)
        return {"codes": codes, "feedback": feedback}

    return frame


class TalkerFeedback(FeedbackStrategy):
    """The talker's loop: next input = sum of a frame's code embeddings + the next row of text."""

    def __init__(self, text_end: torch.Tensor, text_pad: torch.Tensor, graphs: Graphs | None = None) -> None:
        self._text_end, self._text_pad, self._graphs = text_end, text_pad, graphs

    def write_buffers(self, model: ARModel, batch: ForwardBatch, requests: list[tuple[ARRequest, int]]) -> None:
        assert batch.input_embeds is not None
        for request, row in requests:
            speech: _Speech = request.state
            assert speech.feedback is not None
            batch.input_embeds[row] = speech.feedback + self._text_row(speech, len(request.output_ids))

    def _text_row(self, speech: _Speech, index: int) -> torch.Tensor:
        """Row ``index`` of the text: row 0 is part of the prompt; after the last comes the end marker, then padding."""
        if index < len(speech.text):
            return speech.text[index]
        return self._text_end if index == len(speech.text) else self._text_pad

    def extract_output(
        self,
        model: ARModel,
        batch: ForwardBatch,
        output: ForwardOutput,
        requests: list[tuple[ARRequest, int]],
        outbox: MessageQueue[OutgoingMessage],
    ) -> None:
        assert isinstance(model, Talker)
        hidden = output.hidden[[row for _, row in requests]]
        first = torch.tensor([request.output_ids[-1] for request, _ in requests], device=hidden.device)
        residual, feedback = self._frames(model, hidden, model.embed(first), [request for request, _ in requests])
        frames = torch.cat([first.unsqueeze(1), residual], dim=1).cpu()
        for index, (request, _) in enumerate(requests):
            if bool((frames[index] < 0).any()):
                raise FloatingPointError(
                    f"request {request.request_id}: frame {len(request.output_ids)} has no largest logit for one of its residual "
                    "codes; look for NaN in the weights, or for numbers that are too large for their dtype"
                )
        for index, (request, _) in enumerate(requests):
            speech: _Speech = request.state
            speech.feedback = feedback[index]
            speech.frames += 1
            outbox.put(OutgoingMessage(request.request_id, "stream", frames[index].clone(), target="code2wav"))

    def _frames(
        self, model: Talker, hidden: torch.Tensor, first_embed: torch.Tensor, requests: list[ARRequest]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Each request's residual codes and the sum of its frame's embeddings."""
        settings = _residual_settings(requests, model.code_predictor.groups - 1)
        if self._graphs is not None:
            build = partial(recordable_frame, model.code_predictor)
            replayed = self._graphs.run(bool(settings), build, [hidden, first_embed, *settings])
            if replayed is not None:
                return replayed["codes"], replayed["feedback"]
        there = [each.to(hidden.device) for each in settings]
        codes, feedback = model.code_predictor(hidden, first_embed, chooser(*there or (None, None)))
        return codes, feedback


def _residual_settings(requests: list[ARRequest], groups: int) -> list[torch.Tensor]:
    """The arguments of :func:`chooser`, or nothing where nobody's codes are drawn. A request draws all its codes or none."""
    drawing = [request.sampling.temperature > 0 for request in requests]
    if not any(drawing):
        return []
    temperature = torch.tensor(drawing, dtype=torch.float64) * RESIDUAL_SAMPLING.temperature
    uniforms = [[_uniform(request, group) for group in range(groups)] for request in requests]
    return [temperature, torch.tensor(uniforms, dtype=torch.float64)]


def _uniform(request: ARRequest, group: int) -> float:
    """The number at which a residual code of a request's newest frame is drawn."""
    return request.random.uniform(len(request.output_ids), group)


class TalkerRunner(FeedbackARModelRunner):
    """Starts when the prompt side and the first token have come; waits while the thinker has not written enough."""

    model: Talker

    def __init__(
        self,
        model: Talker,
        config: QwenConfig,
        special: torch.Tensor,
        device: str = "cpu",
        cuda_graphs: bool | type[Recorder] = True,
    ) -> None:
        """``special``: the thinker's embeddings of tts_bos, tts_eos and tts_pad, ``[3, thinker_hidden]``. ``cuda_graphs``: whether
        frames are recorded on a GPU and replayed, as steps are by the engine.
        """
        with torch.inference_mode():
            self._text_bos, text_eos, text_pad = model.text_projection(special.to(device)).unbind(0)
        graphs = Graphs.choose(torch.device(device), cuda_graphs)
        super().__init__(model, TalkerFeedback(text_eos, text_pad, graphs), device)
        self._config = config.talker
        self._text_pad = text_pad
        self._speeches: dict[str, _Speech] = {}

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        speech = self._speeches.get(message.request_id)
        if speech is None:
            speech = self._speeches[message.request_id] = _Speech(message.request or OmniRequest())
        if message.type == "stream_done":
            speech.text_done = True
        elif message.type == "stream_chunk":
            if "user_rows" in message.data:
                speech.start = message.data
            else:
                rows = self.model.text_projection(
                    message.data["embeds"].to(self.text_dtype(), copy=False).to(self.device)
                )
                speech.text.extend(rows.unbind(0))
        if speech.admitted:
            return None
        if speech.start is not None and speech.text:
            speech.admitted = True
            return self._admit(message.request_id, speech)
        if speech.text_done:
            speech.admitted = True
            return self._nothing_to_say(message.request_id, speech)
        return None

    def text_dtype(self) -> torch.dtype:
        return self.model.model.norm.weight.dtype

    def can_step(self, request: ARRequest) -> bool:
        speech: _Speech = request.state
        return not request.output_ids or speech.text_done or len(request.output_ids) < len(speech.text)

    def result(self, request: ARRequest) -> TalkerResult:
        return TalkerResult(frames=request.state.frames, finish_reason=request.finish_reason or "stop")

    def release(self, request_id: str) -> None:
        self._speeches.pop(request_id, None)

    def _sampling(self, request: OmniRequest) -> SamplingParams:
        vocabulary, eos = self._config.text.vocab_size, self._config.codec_eos
        suppressed = frozenset(range(max(0, vocabulary - SUPPRESSED_TAIL), vocabulary)) - {eos}
        given = {**TALKER_DEFAULTS, **talker_params(request.params)}
        sampling = sampling_from(given, "params.talker", stop_ids=[eos], suppressed_ids=suppressed)
        return evolve(sampling, penalize_prompt=False)

    def _speaker(self, request: OmniRequest) -> int:
        name = request.metadata.get("speaker") or DEFAULT_SPEAKER
        speakers = self._config.speakers
        if not isinstance(name, str) or name.lower() not in speakers:
            raise InvalidRequestError(
                f"metadata.speaker: {name!r} is unknown; there are: {', '.join(sorted(speakers))}"
            )
        return speakers[name.lower()]

    def _nothing_to_say(self, request_id: str, speech: _Speech) -> ARRequest:
        """A reply of one token or none: speech of zero frames."""
        sampling = self._sampling(speech.request)
        return ARRequest(request_id, speech.request, [], sampling, state=speech, finish_reason="stop")

    def _admit(self, request_id: str, speech: _Speech) -> ARRequest:
        assert speech.start is not None
        embeds = torch.cat([self._user_rows(speech.start), self._assistant_rows(speech)])
        sampling = self._sampling(speech.request)
        return ARRequest(
            request_id=request_id,
            request=speech.request,
            prompt_ids=[-1] * len(embeds),
            sampling=sampling,
            prompt_embeds=embeds,
            prompt_positions=speech.start["positions"],
            position_delta=speech.start["position_delta"],
            state=speech,
            random=RandomStream(sampling.seed),
        )

    def _user_rows(self, start: TalkerStart) -> torch.Tensor:
        """Text rows through the text projection, multimodal rows through the hidden one: ``[U, hidden]``."""
        rows = start["user_rows"].to(self.device, self.text_dtype())
        multimodal = start["multimodal"].to(self.device)
        projected = torch.empty(len(rows), self.model.hidden_size, dtype=rows.dtype, device=self.device)
        projected[~multimodal] = self.model.text_projection(rows[~multimodal])
        projected[multimodal] = self.model.hidden_projection(rows[multimodal])
        return projected

    def _assistant_rows(self, speech: _Speech) -> torch.Tensor:
        """The nine rows that open speech: a text side and a codec side, summed. ``[9, hidden]``."""
        assert speech.start is not None
        config = self._config
        opening = self.model.text_projection(speech.start["assistant_rows"].to(self.device, self.text_dtype()))
        text = torch.cat(
            [opening, self._text_pad.expand(4, -1), self._text_bos.unsqueeze(0), speech.text[0].unsqueeze(0)]
        )
        markers = [config.codec_nothink, config.codec_think_bos, config.codec_think_eos]
        markers += [self._speaker(speech.request), config.codec_pad, config.codec_bos]
        codec = self.model.embed(torch.tensor(markers, device=self.device))
        text[3:] += codec
        return text


def create_talker(
    model_path: str,
    device: str | None = None,
    gpu_id: int | None = None,
    dtype: str = "float32",
    scheduler: str = ENGINE,
    quantization: str | None = None,
    cuda_graphs: bool | type[Recorder] = True,
    **options: Any,
) -> Scheduler:
    """The talker stage on a scheduler class (``package.module:name``); ``options`` are that class's. ``quantization``: one of
    :data:`omni_torch.quantized_linear.QUANTIZATIONS`, on a CPU. ``cuda_graphs``: whether frames, and under the engine steps too, are
    recorded on a GPU and replayed.
    """
    kind = load(scheduler)
    check_options(kind, options)
    config = read_config(model_path)
    place = device or ("cpu" if gpu_id is None else f"cuda:{gpu_id}")
    pack = pack_for(quantization, place)
    model = load_talker(model_path, config, dtype=dtype, device=place)
    pack_linears(model, pack)
    special = read_special(model_path, config)
    runner = TalkerRunner(model, config, special.to(getattr(torch, dtype)), device=place, cuda_graphs=cuda_graphs)
    if scheduler == ENGINE:
        options["cuda_graphs"] = cuda_graphs
    options.setdefault("max_context", config.talker.text.max_positions)
    made: Scheduler = kind(runner, **options)
    return made


def read_special(model_path: str, config: QwenConfig) -> torch.Tensor:
    """The thinker's embeddings of tts_bos, tts_eos and tts_pad: ``[3, thinker_hidden]`` as the checkpoint has them."""
    tokens = [config.tts_bos, config.tts_eos, config.tts_pad]
    return Checkpoint(model_path).read_rows("thinker.model.embed_tokens.weight", tokens)


def load_talker(model_path: str, config: QwenConfig, *, dtype: str = "float32", device: str = "cpu") -> Talker:
    """The talker and its code predictor with their weights."""
    with torch.device("meta"):
        model = Talker(config.talker)
    return load_module(model, Checkpoint(model_path), {"": "talker."}, dtype=getattr(torch, dtype), device=device)
