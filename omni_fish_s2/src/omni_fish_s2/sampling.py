"""Sampling of speech tokens and codes, in the reference's order of filters and of random numbers.

Top-k and top-p look at logits *before* temperature. A draw is ``argmax(p / -log(U))`` with one uniform number per candidate.
A semantic token that was among the last ten is replaced by a second draw at a higher temperature.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen

from omni_core.api import OmniRequest, checked
from omni_fish_s2.interface import SEMANTIC
from omni_torch.api import seeded_generator

WINDOW = 10
"""The number of latest tokens among which a repetition counts."""


@frozen
class SpeechSampling:
    """Sampling parameters of one request's frames. ``temperature == 0`` is greedy, and so is ``top_k == 1``.

    Attributes:
        temperature: 0 to 2.
        top_p: (0, 1]; 1.0 means off.
        top_k: 0 means off.
        max_new_tokens: frames of one turn, the one that ends it included.
        seed: ``None`` draws a fresh one.
    """

    temperature: float = 1.0
    top_p: float = 0.9
    top_k: int = 30
    max_new_tokens: int = 2048
    seed: int | None = None

    @property
    def greedy(self) -> bool:
        return self.temperature == 0 or self.top_k == 1


AGAIN = SpeechSampling(temperature=1.0, top_p=0.9)
"""The settings of the second draw, for a token that would repeat; its ``top_k`` is the request's."""


def speech_sampling(request: OmniRequest) -> SpeechSampling:
    """Return the sampling parameters of a request's speech: ``params["semantic"]``, and the request's seed if it has none of its own.

    Raises:
        InvalidRequestError: a parameter is unknown or out of range.
    """
    given = {"seed": request.params.get("seed"), **request.params.get("semantic", {})}
    return SpeechSampling(**checked(SEMANTIC.parameters, given, "params.semantic"))


@frozen(eq=False)
class StepNumbers:
    """The uniform numbers of one step: ``first`` and ``second`` for the token, ``[W]``; ``codes`` ``[codebooks - 1, codebook_size]``."""

    first: torch.Tensor
    second: torch.Tensor
    codes: torch.Tensor


class Draws:
    """A request's random numbers, step by step.

    With a seed they are those that the reference draws after ``torch.manual_seed(seed)``: a number for every id of the
    vocabulary, twice, then one for every value of every further code. Without one, only candidates get numbers.

    Args:
        candidates: the ids that a step may choose.
        vocab_size: of the head.
        codes: shape of :attr:`StepNumbers.codes`.
    """

    def __init__(self, seed: int | None, candidates: torch.Tensor, vocab_size: int, codes: tuple[int, int]) -> None:
        self._generator = seeded_generator(seed)
        self._width = len(candidates) if seed is None else vocab_size
        self._columns = slice(None) if seed is None else candidates
        self._codes = codes
        self._step = -1
        self._numbers: StepNumbers | None = None

    def at(self, step: int) -> StepNumbers:
        """Return the numbers of a step, counted from 0. A recomputed step gets the same numbers."""
        if step != self._step or self._numbers is None:
            rows, columns = self._codes
            drawn = torch.rand(2 * self._width + rows * columns, generator=self._generator)
            first, second, codes = drawn.split([self._width, self._width, rows * columns])
            columns_of = self._columns
            self._numbers = StepNumbers(first[columns_of], second[columns_of], codes.view(self._codes))
            self._step = step
        return self._numbers


def choose(logits: torch.Tensor, params: Sequence[SpeechSampling], uniforms: torch.Tensor) -> torch.Tensor:
    """Choose one column per row of ``logits`` (``[m, W]``), at the uniform numbers ``[m, W]``: ``[m]`` int64.

    A row's choice does not depend on the others.
    """
    width = logits.shape[-1]
    numbers = filters(params, width).to(logits.device)
    return choose_among(logits, widest(params, width), numbers, uniforms.to(logits.device))


def widest(params: Sequence[SpeechSampling], width: int) -> int:
    """Return an upper bound on the columns that the rows' top-k keep, rounded up to a power of two or ``width``."""
    most: int = max(each.top_k or width for each in params)
    return min(1 << (most - 1).bit_length(), width)


def filters(params: Sequence[SpeechSampling], width: int) -> torch.Tensor:
    """Return ``[m, 3]`` float64: top-k (``width`` if it is off), top-p and temperature of each row, for
    :func:`choose_among`.
    """
    rows = [(each.top_k or width, each.top_p, max(each.temperature, 1e-5)) for each in params]
    return torch.tensor(rows, dtype=torch.float64)


def choose_among(logits: torch.Tensor, most: int, numbers: torch.Tensor, uniforms: torch.Tensor) -> torch.Tensor:
    """Do what :func:`choose` does with all arguments on the device and without a host synchronisation, so that a CUDA
    graph can record it.

    Args:
        most: an upper bound on every row's top-k.
        numbers: of :func:`filters`.
    """
    logits = logits.float()
    top_k, top_p, temperature = numbers.split(1, dim=-1)
    best, columns = logits.topk(most)
    mass = logits.softmax(-1).gather(-1, columns).cumsum(-1)
    dropped = (mass > top_p.float()) | (torch.arange(most, device=logits.device) >= top_k)
    dropped[:, 0] = False
    # Relative to the best instead of normalised: the largest quotient is the same, and does not depend on a row's
    # neighbours.
    weights = ((best - best[:, :1]) / temperature.float()).exp().masked_fill(dropped, 0.0)
    uniforms = uniforms.gather(-1, columns)
    return columns.gather(-1, (weights / -uniforms.log()).argmax(-1, keepdim=True))[:, 0]
