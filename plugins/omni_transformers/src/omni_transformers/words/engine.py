"""The stages of a model that writes text: its prompts, and its answers, by the engine where it fits, else in turns."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

import logging
from collections.abc import Callable, Iterable
from threading import Lock
from typing import Any

from attrs import define, field
from transformers import GenerationConfig

from omni_core.api import (
    ARRequest,
    ConfigError,
    ForwardBatch,
    ForwardOutput,
    IncomingMessage,
    OutgoingMessage,
    RandomStream,
    Scheduler,
    SimpleScheduler,
    StagePayload,
    TextChunk,
    TextResult,
)
from omni_media.api import Limits
from omni_torch.api import (
    ARModelRunner,
    EngineScheduler,
    StopStrings,
    return_freed_memory,
    sampling_from,
    text_decoder,
)
from omni_transformers.checkpoints import read
from omni_transformers.defaults import defaults_of
from omni_transformers.loading import load_model, load_processor
from omni_transformers.words.declaration import GROUP
from omni_transformers.words.encoders import Encoders
from omni_transformers.words.engine_fit import fitted
from omni_transformers.words.engine_layers import Unfit, context_of
from omni_transformers.words.engine_model import EngineModel
from omni_transformers.words.engine_prompts import Prompt, captured, fill_extra, request_of
from omni_transformers.words.prompts import Prompts
from omni_transformers.words.steps import create_writer, placed

logger = logging.getLogger(__name__)

_lock = Lock()


@define(eq=False)
class _Chosen:
    """The model of a checkpoint in this process, and the stages that use it. ``model`` is ``None``: another backend than the engine."""

    model: EngineModel | None
    stages: set[str] = field(factory=set)


_Key = tuple[str, str, str, str]
_chosen: dict[_Key, _Chosen] = {}


def engine_model(model_path: str, device: str, dtype: str, backend: str, stage: str = GROUP) -> EngineModel | None:
    """Return a checkpoint's model for the engine; ``None``: another backend computes it. Looked at once in a process.

    Args:
        stage: that uses it; what it leaves to others is freed by :func:`_free_others`.

    Raises:
        ConfigError: ``backend`` is ``engine``, and it does not fit; or the checkpoint cannot be loaded.
    """
    key = model_path, device, dtype, backend
    with _lock:
        if key not in _chosen:
            _chosen[key] = _Chosen(_choose(*key))
        _chosen[key].stages.add(stage)
        return _chosen[key].model


def _free_others(key: _Key, stage: str) -> None:
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
    load_model.cache_clear()  # a model of the engine is nobody else's: its attention is the engine's
    model = load_model(model_path, dtype, device)
    try:
        if not hasattr(_tokenizer(load_processor(model_path)), "backend_tokenizer"):
            raise Unfit("its tokenizer is none of the package tokenizers")
        found = fitted(model)
        load_model.cache_clear()
        logger.info(
            "%s computes on the engine%s", type(model).__name__, "" if found.kernels is None else ", by kernels"
        )
        return found
    except Unfit as unfit:
        what = f"{type(model).__name__} does not fit the engine: {unfit}"
    if backend == "engine":
        raise ConfigError(f"backend: {what}; choose steps")
    logger.warning("%s; it computes by steps", what)
    return None


def _tokenizer(processor: Any) -> Any:
    return getattr(processor, "tokenizer", processor)


class Prepare(SimpleScheduler):
    """Makes a :class:`Prompt` of each request. Its statistics include those of the encoders' outputs that it keeps.

    Args:
        model: ``None``: requests are handed on.
        key: of the model.
    """

    def __init__(self, model: EngineModel | None, prompts: Prompts | None, max_bytes: int, key: _Key) -> None:
        super().__init__(self.prompt)
        self._model, self._prompts, self._key = model, prompts, key
        self._encoders = None if model is None else Encoders(model.model, max_bytes)

    def start(self) -> None:
        _free_others(self._key, "prepare")
        super().start()

    def prompt(self, payload: StagePayload) -> Any:
        """Return the prompt of a request."""
        if self._model is None or self._prompts is None:
            return payload.request
        inputs = placed(self._prompts.inputs(payload.request), self._model.model)
        return captured(self._model, inputs, self._encoders).sent()

    def statistics(self) -> dict[str, float]:
        return {**super().statistics(), **({} if self._encoders is None else self._encoders.cache.statistics())}

    def flush_caches(self) -> None:
        """Forget what was encoded before. From any thread."""
        if self._encoders is not None:
            self._encoders.cache.clear()


def create_prepare(
    model_path: str,
    device: str = "cpu",
    dtype: str = "auto",
    backend: str = "auto",
    limits: dict[str, Any] | None = None,
    cache_mb: int = 256,
) -> Scheduler:
    """Return the stage that makes a :class:`Prompt` of a request; for another backend than the engine the request itself.

    Args:
        limits: of the media of a request, as fields of :class:`Limits`.
        cache_mb: MiB of encoder outputs kept for media that are sent again; 0 keeps none.

    Raises:
        ConfigError: as :func:`engine_model`, or ``cache_mb`` is negative.
    """
    key = model_path, device, dtype, backend
    model = engine_model(*key, stage="prepare")
    if model is None:
        return Prepare(None, None, 0, key)
    found = read(model_path).architecture
    prompts = Prompts(load_processor(model_path), found.inputs, found.name, Limits(**(limits or {})))
    return Prepare(model, prompts, cache_mb * 2**20, key)


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
    attention: str = "auto",
    gpu_memory: int | float | None = None,
) -> Scheduler:
    """Return the stage that answers.

    Args:
        backend: ``auto``, ``engine``, ``steps`` or ``generate``.
        limits: as of :func:`create_prepare`.
        max_running: requests computed together; by default 32, in turns 8.
        max_batch_tokens, chunk_size, kv_cache_mb, kv_blocks, max_context, prefix_cache, attention, gpu_memory: as the engine has them.

    Raises:
        ConfigError: as :func:`engine_model`, or an option is out of range.
    """
    key = model_path, device, dtype, backend
    model = engine_model(*key)
    if model is None:
        running = 1 if backend == "generate" else 8 if max_running is None else max_running
        return create_writer(model_path, device, dtype, limits, running)
    most = context_of(model.model)
    if max_context is not None and most is not None and max_context > most:
        raise ConfigError(f"max_context: {max_context} is more than the {most} positions that the model has")
    defaults = defaults_of(read(model_path).generation, max_new_tokens=1024)
    return _Answering(
        key,
        Answers(model, _tokenizer(load_processor(model_path)), defaults, device),
        max_running=32 if max_running is None else max_running,
        max_batch_tokens=max_batch_tokens,
        chunk_size=chunk_size,
        kv_cache_mb=kv_cache_mb,
        kv_blocks=kv_blocks,
        max_context=max_context,
        prefix_cache=prefix_cache,
        attention=attention,
        gpu_memory=gpu_memory,
    )


class _Answering(EngineScheduler):
    """The engine of a model, of which the encoders are freed if another process runs them."""

    def __init__(self, key: _Key, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self._key = key

    def start(self) -> None:
        _free_others(self._key, GROUP)
        super().start()


@define(eq=False)
class _Answer:
    """A request's prompt, and its text so far, of which ``sent`` characters were streamed."""

    prompt: Prompt
    stops: StopStrings
    step: Callable[[int], str | None]
    sent: int = 0
    fed: int = field(default=0)

    def feed(self, ids: list[int]) -> bool:
        """Add the text of new ids; return True once it has a stop string."""
        for token in ids[self.fed :]:
            self.stops.feed(self.step(token) or "")
        self.fed = len(ids)
        return self.stops.end is not None


class Answers(ARModelRunner):
    """Writes the answers to prompts, and streams their text.

    Args:
        tokenizer: of the checkpoint.
        defaults: of the parameters that a request does not give.
    """

    model: EngineModel

    def __init__(self, model: EngineModel, tokenizer: Any, defaults: dict[str, Any], device: str = "cpu") -> None:
        super().__init__(model, device)
        self._tokenizer, self._defaults = tokenizer, defaults
        generation = model.model.generation_config or GenerationConfig.from_model_config(model.model.config)
        ends = generation.eos_token_id
        self._stop_ids = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)
        self._suppressed = list(generation.suppress_tokens or ())
        self.max_context = context_of(model.model)

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        if message.type != "new_request":
            return None
        payload: StagePayload = message.data
        given = {**self._defaults, **payload.request.params.get(GROUP, {})}
        stops = StopStrings(given.pop("stop", None) or ())
        sampling = sampling_from(given, f"params.{GROUP}", stop_ids=self._stop_ids, suppressed_ids=self._suppressed)
        prompt = Prompt.received(payload.data, self.device)
        return request_of(
            prompt,
            payload.request_id,
            request=payload.request.without_inputs(),
            sampling=sampling,
            random=RandomStream(sampling.seed),
            state=_Answer(prompt, stops, text_decoder(self._tokenizer.backend_tokenizer)),
        )

    def before_forward(self, batch: ForwardBatch) -> None:
        fill_extra(batch, lambda request: request.state.prompt)

    def after_sampling(self, batch: ForwardBatch, output: ForwardOutput, sampled: list[tuple[ARRequest, int]]) -> None:
        for request, _ in sampled:
            if request.state.feed(request.output_ids):
                request.finish_reason = "stop"

    def emit(self, request: ARRequest, token_id: int) -> Iterable[OutgoingMessage]:
        answer: _Answer = request.state
        stops = answer.stops
        if request.finish_reason is not None:  # what is still incomplete is a replacement mark in the text of all ids
            whole = self._tokenizer.backend_tokenizer.decode(request.output_ids, skip_special_tokens=True)
            stops.feed(whole[len(stops.text) :])
        end = stops.end if stops.end is not None else stops.safe if request.finish_reason is None else len(stops.text)
        if end > answer.sent:
            yield OutgoingMessage(request.request_id, "stream", TextChunk(stops.text[answer.sent : end]))
            answer.sent = end

    def result(self, request: ARRequest) -> TextResult:
        usage = {"prompt_tokens": len(request.prompt_ids), "completion_tokens": len(request.output_ids)}
        text = request.state.stops.text[: request.state.sent]
        return TextResult(text, list(request.output_ids), request.finish_reason or "stop", usage)
