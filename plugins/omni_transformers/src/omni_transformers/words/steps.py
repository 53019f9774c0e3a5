"""Text by transformers' own ``generate()``, token by token, in turns with other requests."""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

import torch
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.logits_process import LogitsProcessorList

from omni_core.api import Scheduler, StagePayload, TextChunk, TextResult
from omni_torch.api import StopStrings
from omni_transformers.checkpoints import read
from omni_transformers.defaults import defaults_of
from omni_transformers.interleaved import Interleaved, in_turns
from omni_transformers.loading import generation_config, load_model, load_processor
from omni_transformers.sampling import Choice, greedy
from omni_transformers.words.declaration import GROUP
from omni_transformers.words.prompts import Prompts


class _Reports(StoppingCriteria):
    """Reports the ids after each token, and ends where it is told to."""

    def __init__(self, choice: Choice, report: Callable[[Any], None]) -> None:
        self._choice, self._report, self.stopped = choice, report, False

    def __call__(self, input_ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        self._report(list(self._choice.ids))
        return torch.full((len(input_ids),), self.stopped, dtype=torch.bool, device=input_ids.device)


def create_writer(model_path: str, device: str = "cpu", dtype: str = "auto", max_running: int = 8) -> Scheduler:
    """Return the stage that answers with text.

    Args:
        max_running: requests that generate in turns; further ones wait.

    Raises:
        ConfigError: the checkpoint cannot be loaded.
    """
    model, processor = load_model(model_path, dtype, device), load_processor(model_path)
    tokenizer = getattr(processor, "tokenizer", processor)
    prompts, defaults = (
        Prompts(processor, read(model_path).architecture.inputs),
        defaults_of(read(model_path).generation, max_new_tokens=1024),
    )
    ends = model.generation_config.eos_token_id
    stop_ids = [] if ends is None else [ends] if isinstance(ends, int) else list(ends)

    def write(payload: StagePayload) -> Generator[Any, None, TextResult]:
        inputs = prompts.inputs(payload.data or payload.request).to(device=device)
        given = {**defaults, **payload.request.params.get(GROUP, {})}
        stops = StopStrings(given.pop("stop", None) or ())
        prompt = inputs["input_ids"][0].tolist()
        choice = Choice(given, GROUP, prompt, stop_ids)
        config = greedy(generation_config(model))
        config.max_new_tokens, config.max_length = choice.params.max_new_tokens, None
        config.eos_token_id = sorted(choice.params.stop_ids) or None

        def call(report: Callable[[Any], None]) -> None:
            criteria.append(_Reports(choice, report))
            model.generate(
                **inputs,
                generation_config=config,
                logits_processor=LogitsProcessorList([choice]),
                stopping_criteria=StoppingCriteriaList(criteria),
            )

        criteria: list[_Reports] = []
        sent = 0
        for ids in in_turns(call):
            whole = tokenizer.decode(ids, skip_special_tokens=True)
            if not whole.endswith("\ufffd"):  # a character may take several tokens
                stops.feed(whole[len(stops.text) :])
            criteria[0].stopped = stops.end is not None
            piece, sent = stops.text[sent : stops.safe], max(sent, stops.safe)
            yield TextChunk(piece) if piece else None
        ids = choice.ids
        text = tokenizer.decode(ids, skip_special_tokens=True)
        stops.feed(text[len(stops.text) :])
        end = len(text) if stops.end is None else stops.end
        if end > sent:
            yield TextChunk(text[sent:end])
        ended = stops.end is not None or (bool(ids) and ids[-1] in choice.params.stop_ids)
        usage = {"prompt_tokens": len(prompt), "completion_tokens": len(ids)}
        return TextResult(text[:end], ids, "stop" if ended else "length", usage)

    return Interleaved(write, max_running)
