"""Our sampling inside ``generate()``: the parameters of requests, and random numbers that do not depend on other requests."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from transformers import GenerationConfig, LogitsProcessor

from omni_core.api import ARRequest, OmniRequest, RandomStream
from omni_torch.api import TextConstraint, keep_logprobs, sample, sampling_from


class Choice(LogitsProcessor):
    """Chooses the next token of a request and leaves it as the only one: ``generate()`` then takes it, greedily.

    Args:
        given: sampling parameters of the request, with the model's defaults.
        group: the group of parameters, for messages.
        prompt_ids: count for the repetition penalty, as in transformers.
        stop_ids: end the text.
        constraint: holds the text to a structure.
        logprobs: as of :class:`SamplingParams`.
    """

    def __init__(
        self,
        given: dict[str, Any],
        group: str,
        prompt_ids: Iterable[int] = (),
        stop_ids: Iterable[int] = (),
        constraint: TextConstraint | None = None,
        logprobs: int | None = None,
    ) -> None:
        self.params = sampling_from(given, f"params.{group}", stop_ids=stop_ids, logprobs=logprobs)
        ids, random = list(prompt_ids), RandomStream(self.params.seed)
        self._request = ARRequest("", OmniRequest(), ids, self.params, random=random, constraint=constraint)

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Return scores ``[1, vocab]`` in which one token is possible."""
        [token] = sample(scores, [self._request])
        keep_logprobs(scores, [self._request], [token])
        self._request.output_ids.append(token)
        if self._request.constraint is not None:
            self._request.constraint.advance(self._request.output_ids)
        chosen = torch.full_like(scores, -torch.inf)
        chosen[0, token] = 0.0
        return chosen

    @property
    def ids(self) -> list[int]:
        """The tokens chosen so far."""
        return self._request.output_ids

    @property
    def logprobs(self) -> list[list[tuple[int, float]]]:
        """Their log probabilities, if they are asked for."""
        return self._request.logprobs


def greedy(config: GenerationConfig) -> GenerationConfig:
    """Return the config without what :class:`Choice` does itself."""
    config.do_sample, config.num_beams, config.repetition_penalty = False, 1, None
    config.temperature = config.top_k = config.top_p = config.min_p = None
    return config
