"""The kernel samples from the reference's distribution: each row is asked for one id, in the middle of that id's share."""

from __future__ import annotations

import math
from importlib import import_module
from typing import Any

import pytest
import torch

from omni_torch.sampling.sample import _probabilities, sample_tokens

Arguments = tuple[torch.Tensor, ...]


@pytest.fixture(scope="module")
def kernel(device: str) -> Any:
    def on_the_device(*arguments: torch.Tensor) -> list[int]:
        chosen: list[int] = (
            import_module("omni_kernels.sampling").sample_tokens(*(a.to(device) for a in arguments)).tolist()
        )
        return chosen

    return on_the_device


def drawn_from(values: list[float], rows: int, generator: torch.Generator) -> torch.Tensor:
    return torch.tensor(values)[torch.randint(len(values), (rows,), generator=generator)]


def params(rows: int, vocab: int, generator: torch.Generator) -> Arguments:
    temperature = drawn_from([0.0, 1e-7, 0.3, 1.0, 1.0, 2.0], rows, generator)
    top_k = drawn_from([0, 0, 1, 5, 50, vocab], rows, generator).long()
    top_p = drawn_from([1.0, 0.9, 0.1], rows, generator)
    min_p = drawn_from([0.0, 0.0, 0.05, 0.5], rows, generator)
    return temperature, top_k, top_p, min_p


def aimed(logits: torch.Tensor, *given: torch.Tensor) -> tuple[torch.Tensor, list[int]]:
    """Uniform numbers for the first id that each row may draw, the last, the least and the most likely in turn; and the
    ids.

    The sums of float32 cannot resolve shares under a hundred thousandth, so no such id is tested.
    """
    shares = _probabilities(logits.double(), *(each.double() for each in given))
    shares /= shares.sum(-1, keepdim=True)
    ids = []
    for row, share in enumerate(shares):
        may = (share > 1e-5).nonzero()[:, 0]
        ids.append(int([may[0], may[-1], may[share[may].argmin()], share.argmax()][row % 4]))
    index = torch.tensor(ids).unsqueeze(1)
    middle = shares.cumsum(-1).gather(-1, index) - shares.gather(-1, index) / 2
    return middle[:, 0], [int(logits[row].argmax()) if given[0][row] == 0 else each for row, each in enumerate(ids)]


def normal(rows: int, vocab: int, generator: torch.Generator) -> torch.Tensor:
    return torch.randn(rows, vocab, generator=generator) * 3


def tied(rows: int, vocab: int, generator: torch.Generator) -> torch.Tensor:
    """A few values, both zeros among them."""
    logits = torch.randint(-3, 4, (rows, vocab), generator=generator).float()
    return torch.where(torch.rand(rows, vocab, generator=generator) < 0.5, -logits, logits)


def holed(rows: int, vocab: int, generator: torch.Generator) -> torch.Tensor:
    logits = normal(rows, vocab, generator)
    holes = torch.rand(rows, vocab, generator=generator) < torch.rand(rows, 1, generator=generator)
    holes[:, vocab // 2] = False
    return logits.masked_fill(holes, -math.inf)


@pytest.mark.parametrize("make", [normal, tied, holed], ids=lambda each: each.__name__)
@pytest.mark.parametrize("vocab", [1, 65, 1000, 3001])
def test_every_id_is_drawn_where_the_reference_draws_it(vocab: int, make: Any, kernel: Any) -> None:
    generator = torch.Generator().manual_seed(vocab)
    logits = make(16, vocab, generator)
    given = params(16, vocab, generator)
    uniforms, expected = aimed(logits, *given)
    assert sample_tokens.reference(logits.double(), *given, uniforms).tolist() == expected, "the reference itself"
    assert kernel(logits, *given, uniforms) == expected


@pytest.mark.parametrize("make", [normal, tied, holed], ids=lambda each: each.__name__)
def test_a_vocabulary_of_several_tiles(make: Any, kernel: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("omni_kernels.sampling"), "TILE", 128)
    generator = torch.Generator().manual_seed(5)
    logits = make(12, 1000, generator)
    given = params(12, 1000, generator)
    uniforms, expected = aimed(logits, *given)
    assert kernel(logits, *given, uniforms) == expected


def row_of(
    values: list[float], temperature: float, top_k: int, top_p: float, min_p: float, uniform: float
) -> Arguments:
    columns = [torch.tensor([each], dtype=torch.float64) for each in (temperature, top_k, top_p, min_p, uniform)]
    return torch.tensor([values]), *columns


@pytest.mark.parametrize(
    ("top_k", "top_p", "min_p", "kept"),
    [
        (3, 1.0, 0.0, [1, 4, 5, 6]),
        (1, 1.0, 0.0, [1]),
        (5, 1.0, 0.0, [0, 1, 2, 4, 5, 6, 7]),
        (0, 0.7, 0.0, [1, 4, 5, 6]),
        (5, 0.7, 0.0, [1, 4, 5, 6]),
        (0, 1e-6, 0.0, [1]),
        (0, 1.0, 0.3, [1, 4, 5, 6]),
        (0, 1.0, 1.0, [1]),
        (8, 1.0, 0.0, [0, 1, 2, 4, 5, 6, 7]),
    ],
    ids=str,
)
def test_ties_with_the_last_id_are_kept(top_k: int, top_p: float, min_p: float, kept: list[int], kernel: Any) -> None:
    values = [0.0, 4.0, 0.0, -math.inf, 3.0, 3.0, 3.0, -0.0]
    for uniform, expected in ((0.0, kept[0]), (1 - 2**-53, kept[-1]), (1.0, kept[-1])):
        arguments = row_of(values, 1.0, top_k, top_p, min_p, uniform)
        assert sample_tokens(*arguments).tolist() == [expected]
        assert kernel(*arguments) == [expected]


def test_a_row_that_is_not_finite_gets_no_id_and_its_neighbours_theirs(kernel: Any) -> None:
    logits = normal(8, 300, torch.Generator().manual_seed(7))
    logits[1, 299], logits[3, 0], logits[5] = math.nan, math.inf, -math.inf
    given = params(8, 300, torch.Generator().manual_seed(8))
    uniforms = torch.rand(8, dtype=torch.float64, generator=torch.Generator().manual_seed(9))
    together = kernel(logits, *given, uniforms)
    assert together == sample_tokens(logits, *given, uniforms).tolist()
    assert [row for row, token in enumerate(together) if token == -1] == [1, 3, 5]
    for row in (0, 2, 5, 7):
        assert kernel(*(each[row : row + 1] for each in (logits, *given, uniforms))) == [together[row]]


def test_strided_logits_are_read_and_not_changed(kernel: Any) -> None:
    wide = normal(4, 700, torch.Generator().manual_seed(1))
    before = wide.clone()
    given = params(4, 200, torch.Generator().manual_seed(3))
    uniforms = torch.tensor([0.1, 0.4, 0.6, 0.9], dtype=torch.float64)
    for logits in (wide[:, 7:207], wide[:, ::3]):
        assert kernel(logits, *given, uniforms) == kernel(logits.clone(), *given, uniforms)
    assert torch.equal(wide, before)
    assert kernel(wide[:0], *(each[:0] for each in given), uniforms[:0]) == []
