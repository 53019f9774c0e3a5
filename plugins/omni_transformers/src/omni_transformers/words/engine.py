"""The stage that answers of a model that writes text: by the engine where it fits, else by its own loop."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

import logging
from collections.abc import Iterable
from threading import Lock
from typing import Any, Self

from attrs import define, evolve, field
from transformers import GenerationConfig

from omni_core.api import (
    ARRequest,
    ConfigError,
    ForwardBatch,
    ForwardOutput,
    IncomingMessage,
    OutgoingMessage,
    Scheduler,
    StagePayload,
    TextChunk,
    TextResult,
)
from omni_torch.api import (
    ALONE,
    ARModelRunner,
    Constraints,
    EngineScheduler,
    StopStrings,
    TensorParallel,
    TextConstraint,
    TokenLogprobs,
    origin_of,
    random_of,
    return_freed_memory,
    sampling_from,
)
from omni_transformers.checkpoints import read
from omni_transformers.defaults import defaults_of
from omni_transformers.loading import load_model, load_processor
from omni_transformers.words.declaration import GROUP
from omni_transformers.words.engine_fit import fitted
from omni_transformers.words.engine_layers import Unfit, context_of
from omni_transformers.words.engine_model import EngineModel
from omni_transformers.words.engine_prompts import Prompt, fill_extra, request_of
from omni_transformers.words.forms import Form, form_of
from omni_transformers.words.pieces import Pieces
from omni_transformers.words.replies import Replies, chunks_of
from omni_transformers.words.steps import create_writer
from omni_transformers.words.thoughts import Told

logger = logging.getLogger(__name__)

_lock = Lock()
_reasons: dict[tuple[str, str, str], list[str]] = {}


@define(eq=False)
class _Chosen:
    """The model of a checkpoint in this process, and the stages that use it. ``model`` is ``None``: another backend than the engine."""

    model: EngineModel | None
    stages: set[str] = field(factory=set)


Key = tuple[str, str, str, str]
_chosen: dict[Key, _Chosen] = {}


def engine_model(model_path: str, device: str, dtype: str, backend: str, stage: str = GROUP) -> EngineModel | None:
    """Return a checkpoint's model for the engine; ``None``: another backend computes it. Looked at once in a process.

    Args:
        stage: that uses it; what it leaves to others is freed by :func:`free_others`.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """
    key = model_path, device, dtype, backend
    with _lock:
        if key not in _chosen:
            _chosen[key] = _Chosen(_choose(*key))
        _chosen[key].stages.add(stage)
        return _chosen[key].model


def free_others(key: Key, stage: str) -> None:
    """Free what only another stage needs of a model, if that stage is in another process. Called when all stages of this one are made."""
    with _lock:
        found = _chosen.get(key)
        if found is None or found.stages != {stage}:
            return
        del _chosen[key]  # it is no whole model any more
    if found.model is not None:
        (found.model.drop_decoder if stage == "prepare" else found.model.drop_encoders)()
    elif stage == "prepare":
        load_model.cache_clear()
    return_freed_memory()


def _choose(model_path: str, device: str, dtype: str, backend: str) -> EngineModel | None:
    if backend not in ("auto", "engine"):
        return None
    try:
        return _engine_model(model_path, device, dtype, ALONE)
    except Unfit as unfit:
        _reasons[model_path, device, dtype] = unfit.reasons
    return None


def _engine_model(model_path: str, device: str, dtype: str, parallel: TensorParallel) -> EngineModel:
    load_model.cache_clear()  # a model of the engine is nobody else's: its attention is the engine's
    model = load_model(model_path, dtype, device, placed=parallel.size == 1)
    if not hasattr(_tokenizer(load_processor(model_path)), "backend_tokenizer"):
        raise Unfit("its tokenizer is none of the package tokenizers")
    found = fitted(model, parallel, device)
    load_model.cache_clear()
    logger.info("%s computes on the engine%s", type(model).__name__, "" if found.kernels is None else ", by kernels")
    return found


def _rank_model(model_path: str, device: str, dtype: str, ranks: tuple[int, int, str | None]) -> EngineModel:
    """Return one rank's share of a checkpoint's model.

    Args:
        ranks: the rank, their number and where they meet.

    Raises:
        ConfigError: the model cannot be split among the ranks.
    """
    if (file := origin_of(read(model_path).folder)) is not None:
        raise ConfigError(f"tp_size: {file} is a GGUF file, which one rank computes; leave out tp_size")
    parallel = TensorParallel.connect(*ranks, device)
    try:
        return _engine_model(model_path, device, dtype, parallel)
    except Unfit as unfit:
        name = read(model_path).architecture.name
        raise ConfigError(
            f"tp_size: {name} does not fit the engine on {ranks[1]} ranks: {unfit}; leave out tp_size"
        ) from None


def _tokenizer(processor: Any) -> Any:
    return getattr(processor, "tokenizer", processor)


def create_answer(
    model_path: str,
    device: str = "cpu",
    dtype: str = "auto",
    backend: str = "auto",
    limits: dict[str, Any] | None = None,
    max_running: int | None = None,
    max_batch_tokens: int = 2048,
    chunk_size: int | None = None,
    kv_cache_mb: int | None = None,
    kv_blocks: int | None = None,
    max_context: int | None = None,
    prefix_cache: bool = True,
    prefix_cache_seconds: float = 3600.0,
    attention: str = "auto",
    gpu_memory: int | float | None = None,
) -> Scheduler:
    """Return the stage that answers, by the engine or, if the model does not fit, in turns.

    Args:
        backend: ``auto``, ``engine``, ``steps`` or ``generate``.
        limits: as of :func:`omni_transformers.words.prepare.create_prepare`.
        max_running: requests computed together; by default 32, in turns 8.
        max_batch_tokens, chunk_size, kv_cache_mb, kv_blocks, max_context, prefix_cache, prefix_cache_seconds, attention, gpu_memory: as
            the engine has them.

    Raises:
        ConfigError: as :func:`engine_model`, or an option is out of range.
    """
    key = model_path, device, dtype, backend
    model = engine_model(*key)
    if model is None:
        running = 8 if max_running is None else max_running
        return create_writer(model_path, device, dtype, limits, backend, running, kv_cache_mb)
    most = context_of(model.model)
    if max_context is not None and most is not None and max_context > most:
        raise ConfigError(f"max_context: {max_context} is more than the {most} positions that the model has")
    return _Answering(
        key,
        Answers.of(model, model_path, device),
        max_running=32 if max_running is None else max_running,
        max_batch_tokens=max_batch_tokens,
        chunk_size=chunk_size,
        kv_cache_mb=kv_cache_mb,
        kv_blocks=kv_blocks,
        max_context=max_context,
        prefix_cache=prefix_cache,
        prefix_cache_seconds=prefix_cache_seconds,
        attention=attention,
        gpu_memory=gpu_memory,
    )


class _Answering(EngineScheduler):
    """The engine of a model, of which the encoders are freed if another process runs them."""

    def __init__(self, key: Key, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._key = key

    def start(self) -> None:
        free_others(self._key, GROUP)
        super().start()


@define(eq=False)
class _Answer:
    """A request's prompt, and its text so far, of which ``sent`` characters were streamed. ``logprobs``: of its answer, if asked for."""

    prompt: Prompt
    stops: StopStrings
    step: Pieces
    told: Told
    logprobs: TokenLogprobs | None = None
    sent: int = 0
    fed: int = field(default=0)
    begin: int = 0  # of the newest token

    def feed(self, ids: list[int]) -> bool:
        """Add the text of new ids; return True once it has a stop string."""
        for token in ids[self.fed :]:
            self.begin = len(self.stops.text)
            self.stops.feed(self.step(token))
        self.fed = len(ids)
        return self.stops.end is not None


class Answers(ARModelRunner):
    """Writes the answers to prompts, and streams their text.

    Args:
        tokenizer: of the checkpoint.
        defaults: of the parameters that a request does not give.
        replies: reads them; by default as texts.
    """

    model: EngineModel

    def __init__(
        self,
        model: EngineModel,
        tokenizer: Any,
        defaults: dict[str, Any],
        device: str = "cpu",
        replies: Replies | None = None,
    ) -> None:
        super().__init__(model, device)
        self._replies = replies or Replies(tokenizer, Form())
        self._tokenizer, self._defaults = tokenizer, defaults
        generation = model.model.generation_config or GenerationConfig.from_model_config(model.model.config)
        ends = generation.eos_token_id
        self._stop_ids = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        self._suppressed = list(generation.suppress_tokens or ())
        self.max_context, self.parallel = context_of(model.model), model.parallel
        self._constraints = Constraints(
            lambda: tokenizer.backend_tokenizer, model.vocab_size, self._stop_ids, self.parallel.size
        )

    @classmethod
    def of(cls, model: EngineModel, model_path: str, device: str) -> Self:
        """Return the runner of a checkpoint's model."""
        source, tokenizer = read(model_path), _tokenizer(load_processor(model_path))
        defaults = defaults_of(source.generation, max_new_tokens=1024)
        return cls(model, tokenizer, defaults, device, Replies(tokenizer, form_of(source.folder)))

    @classmethod
    def from_checkpoint(
        cls,
        model_path: str,
        device: str = "cpu",
        dtype: str = "auto",
        tp_rank: int = 0,
        tp_size: int = 1,
        tp_rendezvous: str | None = None,
    ) -> Self:
        """Load a checkpoint that fits the engine, or one tensor parallel rank of it.

        Args:
            model_path: the checkpoint's folder.
            dtype: of the weights; ``auto``: as they are stored.

        Raises:
            ConfigError: it does not fit, or the ranks cannot share it.
        """
        if tp_size == 1:
            model = engine_model(model_path, device, dtype, "engine")
            if model is None:
                name = read(model_path).architecture.name
                reasons = "; ".join(_reasons[model_path, device, dtype])
                raise ConfigError(f"backend: {name} does not fit the engine: {reasons}; choose steps")
        else:
            model = _rank_model(model_path, device, dtype, (tp_rank, tp_size, tp_rendezvous))
        return cls.of(model, model_path, device)

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        if message.type != "new_request":
            return None
        payload: StagePayload = message.data
        given = {**self._defaults, **payload.request.params.get(GROUP, {})}
        stops = StopStrings(given.pop("stop", None) or ())
        structured, logprobs = given.pop("structured", None), given.pop("top_logprobs", None)
        sets = {"stop_ids": self._stop_ids, "suppressed_ids": self._suppressed}
        sampling = sampling_from(given, f"params.{GROUP}", **sets, logprobs=logprobs)
        prompt = Prompt.received(payload.data, self.device)
        told = self._replies.begin(prompt.ids)
        return request_of(
            prompt,
            payload.request_id,
            request=payload.request.without_inputs(),
            sampling=sampling,
            random=random_of(sampling.seed, payload.request_id, self.parallel.size),
            state=_Answer(
                prompt,
                stops,
                Pieces(self._tokenizer, self._replies.marks),
                told,
                None if logprobs is None else TokenLogprobs(self._tokenizer.backend_tokenizer),
            ),
            constraint=self._constraints.begin(structured, f"params.{GROUP}", held=told.thinks),
        )

    def before_forward(self, batch: ForwardBatch) -> None:
        fill_extra(batch, lambda request: request.state.prompt)

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: list[tuple[ARRequest, int]]) -> None:
        for request, _ in sampled:
            if request.state.feed(request.output_ids):
                request.finish_reason = "stop"

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        answer: _Answer = request.state
        stops, logprobs = answer.stops, answer.logprobs
        if logprobs is not None and not answer.told.thinks:
            logprobs.add(request.logprobs[-1], answer.begin)
        if request.finish_reason is not None:
            stops.feed(answer.step.rest())
        end = stops.end if stops.end is not None else stops.safe if request.finish_reason is None else len(stops.text)
        parts = answer.told.read(stops.text[answer.sent : max(end, answer.sent)])
        parts += answer.told.read("", last=True) if request.finish_reason is not None else []
        answer.sent = max(end, answer.sent)
        if isinstance(request.constraint, TextConstraint) and request.constraint.held and not answer.told.thinks:
            request.constraint.begin_at(len(request.output_ids))
        for chunk in chunks_of(parts):
            if logprobs is not None and isinstance(chunk, TextChunk):
                chunk = TextChunk(chunk.text, logprobs.until(answer.sent))
            yield OutgoingMessage(request.request_id, "stream", chunk)

    def result(self, request: ARRequest) -> TextResult:
        usage = {"prompt_tokens": len(request.prompt_ids), "completion_tokens": len(request.output_ids)}
        told: Told = request.state.told
        usage |= {"reasoning_tokens": told.tokens} if told.thoughts else {}
        reason, logprobs = request.finish_reason or "stop", request.state.logprobs
        made = TextResult(told.text, list(request.output_ids), reason, usage, reasoning=told.thoughts)
        return made if logprobs is None else evolve(made, logprobs=logprobs.told)
