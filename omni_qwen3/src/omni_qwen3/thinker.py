"""The thinker: the text decoder of Qwen3-Omni on the engine, and what its requests are."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from attrs import define, field
from torch import nn

from omni_core.errors import ConfigError
from omni_core.model_runner.types import (
    ARModel,
    ARRequest,
    ContentSpan,
    ForwardBatch,
    ForwardOutput,
    KVLayout,
    RandomStream,
)
from omni_core.references import load
from omni_core.scheduling.base import IncomingMessage, OutgoingMessage, Scheduler
from omni_qwen3.checkpoint import Checkpoint, load_module
from omni_qwen3.config import DecoderConfig, QwenConfig, read_config
from omni_qwen3.decode import text_decoder
from omni_qwen3.interface import THINKER_DEFAULTS
from omni_qwen3.layers import DecoderLayer, RMSNorm, Rotary
from omni_qwen3.payloads import TalkerStart, TalkerText, ThinkerInputs, ThinkerResult, thinker_params
from omni_qwen3.routing import wants_audio
from omni_qwen3.sglang_layers import thinker_on_sglang
from omni_qwen3.sharding import local_config, part_of
from omni_qwen3.turns import assistant_start, user_rows
from omni_torch.model_runner import ModelRunner
from omni_torch.packed_linear import pack_linears
from omni_torch.quantized_linear import pack_for
from omni_torch.sampling import sampling_from
from omni_torch.scheduler import check_options
from omni_torch.stop_strings import StopTokens
from omni_torch.tensor_parallel import ALONE, TensorParallel

ENGINE = "omni_engine.scheduler:EngineScheduler"
"""The scheduler that drives the thinker and the talker where the config names no other."""


class ThinkerDecoder(nn.Module):
    """Embedding, layers, norm; deepstack features are added to the first layers' outputs at visual rows."""

    def __init__(self, config: DecoderConfig, parallel: TensorParallel) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, layer, parallel) for layer in range(config.layers)])
        self.norm = RMSNorm(config.hidden_size, config.norm_eps)


class Thinker(nn.Module):
    """An :class:`omni_core.model_runner.types.ARModel`.

    ``batch.extra`` may hold ``deepstack``: ``(rows, [features per layer])``, and ``capture``: the layer count whose raw
    output is wanted (``hidden_states`` index of the reference). Sharded, every rank has the whole embedding and head, so that
    hidden states and logits are the same everywhere.
    """

    def __init__(self, config: DecoderConfig, parallel: TensorParallel = ALONE) -> None:
        super().__init__()
        config = local_config(config, parallel)
        self.model = ThinkerDecoder(config, parallel)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.rotary = Rotary(config)
        self.hidden_size, self.vocab_size = config.hidden_size, config.vocab_size
        self._layout, self._heads = (config.layers, config.kv_heads, config.head_dim), config.heads

    @property
    def kv_layout(self) -> KVLayout:
        return KVLayout(*self._layout, self.model.norm.weight.dtype, self._heads)

    def embed(self, ids: torch.Tensor) -> torch.Tensor:
        embeds: torch.Tensor = self.model.embed_tokens(ids)
        return embeds

    def forward(self, batch: ForwardBatch) -> ForwardOutput:
        assert batch.input_embeds is not None
        x = batch.input_embeds
        cos, sin = self.rotary(batch.positions, x.dtype)
        rows, features = batch.extra.get("deepstack", (None, []))
        capture, captured = batch.extra.get("capture"), {}
        for index, layer in enumerate(self.model.layers):
            x = layer(x, cos, sin, batch.attention)
            if capture == index + 1:
                captured[capture] = x
            if rows is not None and index < len(features):
                x = x.index_add(0, rows, features[index])
        return ForwardOutput(self.model.norm(x), captured)

    def compute_logits(self, hidden: torch.Tensor) -> torch.Tensor:
        logits: torch.Tensor = self.lm_head(hidden)
        return logits


@define(eq=False)
class _State:
    """What the runner keeps of a request."""

    inputs: ThinkerInputs
    embeds: torch.Tensor  # [P, hidden]
    user: torch.Tensor  # [P] bool: rows of user turns
    multimodal: torch.Tensor  # [P] bool
    hidden: torch.Tensor | None  # [P, hidden], filled at the user turns' multimodal rows; None without speech
    assistant_start: int
    started: bool = False
    spoken: torch.Tensor | None = None  # [1, hidden], the newest token's embedding
    stops: StopTokens | None = None  # None: no stop strings
    held: list[TalkerText] = field(factory=list)  # tokens that may belong to a stop string, not yet sent to talker_ar
    told: int = 0  # tokens sent to talker_ar


class ThinkerRunner(ModelRunner):
    """Injects encoder outputs, streams ids to ``decode`` and, for speech, embeddings and hidden states to ``talker_ar``."""

    def __init__(
        self, model: ARModel, config: QwenConfig, *, speech_enabled: bool, device: str = "cpu", ranks: int = 1
    ) -> None:
        super().__init__(model, device)
        self._ranks = ranks
        self._config = config
        self._speech_enabled = speech_enabled
        self._capture = config.talker.accept_hidden_layer
        self.kept_width = model.hidden_size if speech_enabled else 0  # what a talker reads of a prompt

    # --- per request -------------------------------------------------------------------------------------------------
    def receive(self, message: IncomingMessage) -> ARRequest | None:
        if message.type != "new_request":
            return None
        inputs: ThinkerInputs = message.data.data
        request = message.data.request
        given = dict(thinker_params(request.params))
        ignore_eos, stops = given.pop("ignore_eos", False), given.pop("stop", None)
        stop_ids = [] if ignore_eos else [self._config.im_end]
        sampling = sampling_from({**THINKER_DEFAULTS, **given}, "params.thinker", stop_ids=stop_ids)
        ids = inputs["input_ids"].to(self.device)
        embeds = self.model.embed(ids)
        mask = inputs.get("feature_mask")
        multimodal = torch.zeros(len(ids), dtype=torch.bool) if mask is None else mask
        if "features" in inputs:
            embeds[multimodal] = inputs["features"].to(embeds)
        speaks = self._speech_enabled and wants_audio(request)
        return ARRequest(
            request_id=message.request_id,
            request=request,
            prompt_ids=ids.tolist(),
            sampling=sampling,
            prompt_embeds=embeds,
            prompt_positions=inputs["positions"],
            position_delta=inputs["position_delta"],
            random=self._random(sampling.seed, message.request_id),
            state=_State(
                inputs=inputs,
                embeds=embeds,
                user=user_rows(ids, self._config),
                multimodal=multimodal,
                hidden=torch.zeros_like(embeds) if speaks else None,
                assistant_start=assistant_start(ids, self._config),
                stops=StopTokens(stops, partial(text_decoder, self._config.folder)) if stops else None,
            ),
            content=_content(inputs),
        )

    def _random(self, seed: int | None, request_id: str) -> RandomStream:
        if seed is None and self._ranks > 1:  # all ranks draw the same, so it must come from something that all know
            seed = int.from_bytes(hashlib.blake2b(request_id.encode(), digest_size=8).digest(), "little")
        return RandomStream(seed)

    def reuse(self, request: ARRequest, rows: torch.Tensor) -> None:
        if request.state.hidden is not None:
            request.state.hidden[: len(rows)] = rows

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        yield OutgoingMessage(request.request_id, "stream", [token_id], target="decode")
        state: _State = request.state
        if state.hidden is None:
            return
        if not state.started:
            state.started = True
            yield OutgoingMessage(request.request_id, "stream", self._talker_start(state), target="talker_ar")
        if request.finish_reason is None:  # a reply's last token is never spoken
            assert state.spoken is not None
            state.held.append(TalkerText(token_ids=[token_id], embeds=state.spoken))
        ready = len(state.held)
        if state.stops is not None and (request.finish_reason is None or state.stops.found):
            ready = state.stops.safe - state.told
        for text in state.held[:ready]:
            yield OutgoingMessage(request.request_id, "stream", text, target="talker_ar")
        state.told += ready
        del state.held[:ready]

    def _talker_start(self, state: _State) -> TalkerStart:
        assert state.hidden is not None
        merged = torch.where(state.multimodal.to(self.device).unsqueeze(-1), state.hidden, state.embeds)
        begin = state.assistant_start
        return TalkerStart(
            user_rows=merged[state.user].cpu(),
            assistant_rows=state.embeds[begin : begin + 3].cpu(),
            multimodal=state.multimodal[state.user.cpu()],
            positions=state.inputs.get("talker_positions"),
            position_delta=state.inputs.get("talker_position_delta", 0),
        )

    def result(self, request: ARRequest) -> ThinkerResult:
        return ThinkerResult(
            token_ids=list(request.output_ids),
            finish_reason=request.finish_reason or "stop",
            prompt_tokens=len(request.prompt_ids),
            notices=request.state.inputs.get("notices", []),
        )

    # --- per step ----------------------------------------------------------------------------------------------------
    def before_forward(self, batch: ForwardBatch) -> None:
        assert batch.input_embeds is not None
        if self._speech_enabled:
            batch.extra["capture"] = self._capture
        rows: list[torch.Tensor] = []
        features: list[list[torch.Tensor]] = []
        for request, start, end, row in _prompt_segments(batch):
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
        for request, start, end, row in _prompt_segments(batch):
            if request.state.hidden is not None:
                request.state.hidden[start:end] = captured[row : row + end - start]

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: list[tuple[ARRequest, int]]) -> None:
        for request, _ in sampled:
            if request.state.stops is not None and request.state.stops.ended(request.output_ids):
                request.finish_reason = "stop"
        speaking = [(request.state, token) for request, token in sampled if request.state.hidden is not None]
        if speaking:
            embeds = self.model.embed(torch.tensor([token for _, token in speaking], device=self.device)).cpu()
            for (state, _), row in zip(speaking, embeds.split(1), strict=True):
                state.spoken = row.clone()  # no view: it is handed on, and must not carry the others


def _content(inputs: ThinkerInputs) -> list[ContentSpan] | None:
    """What the prompt's placeholders stand for. ``None`` if there are features whose content nobody named."""
    if "content" not in inputs:
        return None if "features" in inputs else []
    return [ContentSpan(start, end, bytes(digest)) for start, end, digest in inputs["content"]]


def _prompt_segments(batch: ForwardBatch) -> Iterable[tuple[ARRequest, int, int, int]]:
    """``(request, start, end, first row)`` of every run of prompt positions in a batch."""
    row = 0
    for request, start, length in zip(batch.requests, batch.starts, batch.lengths, strict=True):
        prompt = len(request.prompt_ids)
        if start < prompt:
            yield request, start, min(start + length, prompt), row
        row += length


def create_thinker(
    model_path: str,
    device: str | None = None,
    gpu_id: int | None = None,
    dtype: str = "float32",
    speech_enabled: bool = True,
    tp_rank: int = 0,
    tp_size: int = 1,
    tp_rendezvous: str | None = None,
    scheduler: str = ENGINE,
    layers: str = "own",
    quantization: str | None = None,
    **options: Any,
) -> Scheduler:
    """The thinker stage, or one tensor parallel rank of it, on a scheduler class (``package.module:name``); ``options`` are
    that class's. ``layers``: ``own`` or ``sglang``, the latter with SGLang's scheduler only. ``quantization``: one of
    :data:`omni_torch.quantized_linear.QUANTIZATIONS`, for layers of our own on a CPU.
    """
    if layers not in ("own", "sglang"):
        raise ConfigError(f"layers: must be 'own' or 'sglang', is {layers!r}")
    if layers == "sglang" and scheduler == ENGINE:
        raise ConfigError(
            "layers: 'sglang' needs `scheduler: sglang` too; SGLang's layers run under its own scheduler only"
        )
    if layers == "sglang" and quantization is not None:
        raise ConfigError(
            f"quantization: {quantization!r} is for `layers: own`; SGLang's layers have options of their own"
        )
    if tp_size > 1 and "kv_fraction" in options:
        raise ConfigError("kv_fraction: the ranks must agree on the size of their KV caches; give kv_cache_mb instead")
    kind = load(scheduler)
    check_options(kind, options)
    config = read_config(model_path)
    place = device or ("cpu" if gpu_id is None else f"cuda:{gpu_id}")
    parallel = TensorParallel.connect(tp_rank, tp_size, tp_rendezvous, place)
    model: ARModel
    if layers == "own":
        pack = pack_for(quantization, place)
        model = load_thinker(model_path, config, dtype=dtype, device=place, parallel=parallel)
        pack_linears(model, pack)
    else:
        model = thinker_on_sglang(model_path, config, dtype=dtype, device=place)
    if tp_size > 1 and scheduler == ENGINE:
        options.setdefault("cuda_graphs", False)  # sums over ranks inside a graph have never been tried
    runner = ThinkerRunner(model, config, speech_enabled=speech_enabled, device=place, ranks=tp_size)
    options.setdefault("max_context", config.thinker.max_positions)
    made: Scheduler = kind(runner, **options)
    return made


def load_thinker(
    model_path: str,
    config: QwenConfig,
    *,
    dtype: str = "float32",
    device: str = "cpu",
    parallel: TensorParallel = ALONE,
) -> Thinker:
    """The thinker's decoder with its weights, or with this rank's slices of them."""
    with torch.device("meta"):
        model = Thinker(config.thinker, parallel)
    prefixes = {"model.": "thinker.model.", "lm_head.": "thinker.lm_head."}
    return load_module(
        model,
        Checkpoint(model_path),
        prefixes,
        dtype=getattr(torch, dtype),
        device=device,
        part_of=part_of(config.thinker, parallel),
    )
