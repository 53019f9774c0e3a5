"""Qwen3-Omni's thinker with a logit bias per request."""

from __future__ import annotations

from typing import Any

import torch

from omni_core.api import ARRequest, IncomingMessage, InvalidRequestError
from omni_qwen3.thinker import ThinkerRunner


class BiasedThinkerRunner(ThinkerRunner):
    """Adds ``metadata["logit_bias"]``, ``{token id: bias}``, to a request's logits before sampling.

    Everything else is inherited, including the loader and its options.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._biases: dict[str, tuple[torch.Tensor, torch.Tensor]] = {}

    def receive(self, message: IncomingMessage) -> ARRequest | None:
        """See :meth:`ModelRunner.receive`."""
        request = super().receive(message)
        if request is not None:
            bias = logit_bias(request.request.metadata.get("logit_bias", {}), self.model.vocab_size)
            if bias:
                ids, values = torch.tensor(list(bias)), torch.tensor(list(bias.values()))
                self._biases[request.request_id] = (ids.to(self.device), values.to(self.device))
        return request

    def choose(self, logits: torch.Tensor, requests: list[ARRequest]) -> list[int]:
        """See :meth:`ARModelRunner.choose`."""
        for row, request in zip(logits, requests, strict=True):
            if request.request_id in self._biases:
                ids, values = self._biases[request.request_id]
                row[ids] += values.to(row)
        return super().choose(logits, requests)

    def release(self, request_id: str) -> None:
        """See :meth:`ModelRunner.release`."""
        self._biases.pop(request_id, None)
        super().release(request_id)


def logit_bias(given: Any, vocab_size: int) -> dict[int, float]:
    """Return ``{token id: bias}`` from a request's metadata.

    Raises:
        InvalidRequestError: it is not such a mapping, or an id is outside the vocabulary.
    """
    try:
        bias = {int(token): float(value) for token, value in given.items()}
    except (AttributeError, TypeError, ValueError):
        raise InvalidRequestError(f"metadata.logit_bias: must map token ids to numbers, is {given!r}") from None
    for token in bias:
        if not 0 <= token < vocab_size:
            raise InvalidRequestError(f"metadata.logit_bias: the model has ids 0 to {vocab_size - 1}, not {token}")
    return bias
