"""Text by transformers' own ``generate()``, token by token, in turns with other requests."""

from __future__ import annotations

import omni_transformers.stand_ins.first  # noqa: F401

# isort: split

from collections.abc import Callable, Generator
from functools import partial
from typing import Any

import torch
from attrs import define, field, frozen
from transformers import GenerationMixin, StoppingCriteria, StoppingCriteriaList
from transformers.generation.logits_process import LogitsProcessorList

from omni_core.api import (
    InvalidRequestError,
    OmniRequest,
    ReasoningChunk,
    Scheduler,
    StagePayload,
    TextChunk,
    TextResult,
)
from omni_media.api import Limits
from omni_torch.api import Constraints, StopStrings, TextConstraint, TokenLogprobs
from omni_transformers.calls.choice import Loop, calls_of
from omni_transformers.calls.lines import in_turns
from omni_transformers.checkpoints import read
from omni_transformers.defaults import defaults_of
from omni_transformers.interleaved import Interleaved
from omni_transformers.loading import generation_config, load_model, load_processor
from omni_transformers.sampling import Choice, greedy
from omni_transformers.words.adapters import DROPS_PROCESSORS, ONE_AT_A_TIME
from omni_transformers.words.declaration import GROUP
from omni_transformers.words.forms import Form, form_of
from omni_transformers.words.pieces import Pieces
from omni_transformers.words.prompts import Prompts
from omni_transformers.words.recognisers import RECOGNISERS
from omni_transformers.words.replies import Replies, chunks_of, one_by_one


class _Reports(StoppingCriteria):
    """Reports each token, and ends where it is told to."""

    def __init__(self, choice: Choice, report: Callable[[Any], None]) -> None:
        self._choice, self._report, self.stopped = choice, report, False

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._report(self._choice.ids[-1])
        return torch.full((len(input_ids),), self.stopped, dtype=torch.bool, device=input_ids.device)


def placed(inputs: Any, model: Any) -> dict[str, Any]:
    """Return the inputs of a forward on its model's device, floats in its type."""

    def place(value: Any) -> Any:
        if isinstance(value, list | tuple):
            return type(value)(map(place, value))
        if not isinstance(value, torch.Tensor):
            return value
        return value.to(model.device, model.dtype if value.is_floating_point() else None)

    return {name: place(value) for name, value in inputs.items()}


@define
class Text:
    """A text that :meth:`Writer.write` has written.

    Attributes:
        text: up to the stop string.
        ids: the tokens, the last one included.
        finish_reason: ``stop`` or ``length``.
        logprobs: of the tokens, if they were asked for.
    """

    text: str
    ids: list[int]
    finish_reason: str
    usage: dict[str, int]
    logprobs: list[float] = field(factory=list)


@frozen
class Writer:
    """A loaded checkpoint that writes.

    Args:
        defaults: of the parameters that a request does not give.
        replies: reads them.
    """

    model: Any
    prompts: Prompts
    defaults: dict[str, Any]
    replies: Replies
    _constraints: list[Constraints] = field(factory=list)

    def constraint(self, structured: Any, *, held: bool) -> TextConstraint | None:
        """Return the constraint of a request, made; ``None`` if it has none. Raises as :meth:`TextConstraint.check`."""
        if structured is None:
            return None
        if not self._constraints:  # few models are asked for any
            size, tokenizer = self.model.config.get_text_config(decoder=True).vocab_size, self.backend_tokenizer
            self._constraints.append(Constraints(lambda: tokenizer, size, self.stop_ids))
        constraint = self._constraints[0].begin(structured, f"params.{GROUP}", held=held)
        assert constraint is not None
        constraint.check()
        return constraint

    @property
    def backend_tokenizer(self) -> Any:
        """The tokenizer of the package tokenizers. Raises InvalidRequestError: it is none."""
        found = getattr(self.prompts.tokenizer, "backend_tokenizer", None)
        if found is None:
            raise InvalidRequestError(
                f"params.{GROUP}: the tokenizer of this checkpoint is none of the package tokenizers, which `structured` and "
                "`top_logprobs` need"
            )
        return found

    @property
    def stop_ids(self) -> list[int]:
        """The tokens that end a text."""
        ends = getattr(self.model.generation_config, "eos_token_id", None)
        return [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    def running(self, most: int) -> int:
        """Return how many texts of at most so many may be written in turns."""
        return 1 if self.prompts.architecture in ONE_AT_A_TIME else most

    def inputs(self, request: OmniRequest) -> dict[str, Any]:
        """Return the inputs of a request, :func:`placed`. Raises as :meth:`Prompts.inputs`."""
        return placed(self.prompts.inputs(request), self.model)

    def write(
        self,
        inputs: dict[str, Any],
        params: dict[str, Any],
        constraint: TextConstraint | None = None,
        logprobs: TokenLogprobs | None = None,
    ) -> Generator[str | None, None, Text]:
        """Yield the text that each token adds, ``None`` if none.

        Args:
            inputs: of the model's ``generate()``.
            params: of the request.
            constraint: of the text.
            logprobs: are given those of each token, before what it adds is yielded.
        """
        given = {**self.defaults, **params}
        stops = StopStrings(given.pop("stop", None) or ())
        prompt = inputs["input_ids"][0].tolist() if "input_ids" in inputs else []
        config = greedy(generation_config(self.model))
        penalised = [] if self.model.config.is_encoder_decoder else prompt
        told, top = given.pop("logprobs", False), given.pop("top_logprobs", None)
        choice = Choice(given, GROUP, penalised, self.stop_ids, constraint, 0 if told else top)
        most = config.max_new_tokens = self._room(prompt, choice.params.max_new_tokens)
        config.max_length = None
        config.eos_token_id = sorted(choice.params.stop_ids) or None

        generate = self.model.generate
        if self.prompts.architecture in DROPS_PROCESSORS:
            generate = partial(GenerationMixin.generate, self.model)

        def call(report: Callable[[Any], None]) -> None:
            criteria.append(_Reports(choice, report))
            generate(
                **inputs,
                generation_config=config,
                logits_processor=LogitsProcessorList([choice]),
                stopping_criteria=StoppingCriteriaList(criteria),
            )

        criteria: list[_Reports] = []
        step, sent = Pieces(self.prompts.tokenizer, self.replies.marks), 0
        for token in in_turns(call):
            if logprobs is not None:
                logprobs.add(choice.logprobs[-1], len(stops.text))
            stops.feed(step(token))
            criteria[0].stopped = stops.end is not None
            piece, sent = stops.text[sent : stops.safe], max(sent, stops.safe)
            yield piece or None
        ids = choice.ids
        stops.feed(step.rest())
        end = len(stops.text) if stops.end is None else stops.end
        yield stops.text[sent:end] or None
        ended = stops.end is not None or len(ids) < most or (bool(ids) and ids[-1] in choice.params.stop_ids)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        values = [each[0][1] for each in choice.logprobs]
        return Text(stops.text[:end], ids, "stop" if ended else "length", usage, values)

    def _room(self, prompt: list[int], wanted: int) -> int:
        """Return how many tokens may be written.

        Raises:
            InvalidRequestError: the prompt fills the positions that the model has.
        """
        config = self.model.config
        most = getattr(config.get_text_config(decoder=True), "max_position_embeddings", None)
        if not isinstance(most, int) or most <= 0:
            return wanted
        if len(prompt) >= most:
            raise InvalidRequestError(f"messages: {len(prompt)} tokens; this model has room for {most}")
        return min(wanted, most - (1 if config.is_encoder_decoder else len(prompt)))


def load_writer(model_path: str, device: str, dtype: str, limits: dict[str, Any]) -> Writer:
    """Load a checkpoint that writes.

    Args:
        limits: of the media of a request, as fields of :class:`Limits`.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """
    source = read(model_path)
    model, processor = load_model(model_path, dtype, device), load_processor(model_path)
    prompts = Prompts(processor, source.architecture.inputs, source.architecture.name, Limits(**limits))
    defaults = defaults_of(source.generation, max_new_tokens=1024)
    form = Form() if source.architecture.name in RECOGNISERS else form_of(source.folder)
    return Writer(model, prompts, defaults, Replies(prompts.tokenizer, form))


def create_writer(
    model_path: str,
    device: str = "cpu",
    dtype: str = "auto",
    limits: dict[str, Any] | None = None,
    backend: str = "auto",
    max_running: int = 8,
    kv_cache_mb: int | None = None,
) -> Scheduler:
    """Return the stage that answers with text.

    Args:
        limits: of the media of a request, as fields of :class:`Limits`.
        backend: ``auto``, ``engine``, ``steps`` or ``generate``.
        max_running: requests that are written at one time; further ones wait.
        kv_cache_mb: of the engine's cache.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """
    writer = load_writer(model_path, device, dtype, limits or {})

    def write(payload: StagePayload) -> Generator[Any, None, TextResult]:
        inputs = writer.inputs(payload.data or payload.request)  # the stage before hands the request on
        told = writer.replies.begin(inputs["input_ids"][0].tolist() if "input_ids" in inputs else [])
        params = dict(payload.request.params.get(GROUP, {}))
        constraint = writer.constraint(params.pop("structured", None), held=told.thinks)
        logprobs = None if params.get("top_logprobs") is None else TokenLogprobs(writer.backend_tokenizer)
        count = characters = 0

        def made(piece: str) -> list[TextChunk | ReasoningChunk]:
            nonlocal count, characters
            count, characters = count + 1, characters + len(piece)
            found = chunks_of(told.read(piece))
            if constraint is not None and constraint.held and not told.thinks:
                constraint.begin_at(count)
            if logprobs is not None and found and isinstance(found[-1], TextChunk):
                found[-1] = TextChunk(found[-1].text, logprobs.until(characters))
            return found

        text = yield from one_by_one(chunks(writer.write(inputs, params, constraint, logprobs), made))
        yield from chunks_of(told.read("", last=True))
        usage = text.usage | ({"reasoning_tokens": told.tokens} if told.thoughts else {})
        ended, tokens = text.finish_reason, [] if logprobs is None else logprobs.told
        return TextResult(told.text, text.ids, ended, usage, reasoning=told.thoughts, logprobs=tokens)

    running = writer.running(1 if backend == "generate" else max_running)
    return Interleaved(write, running, calls_of(Loop(writer.model), backend, running, kv_cache_mb))


def chunks(written: Generator[str | None, None, Text], make: Callable[[str], Any]) -> Generator[Any, None, Text]:
    """Yield what is made of each piece of a text that :meth:`Writer.write` writes, an empty one too; return the text."""
    try:
        while True:
            try:
                piece = next(written)
            except StopIteration as end:
                text: Text = end.value
                return text
            yield make(piece or "")
    finally:
        written.close()
