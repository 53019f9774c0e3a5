"""Draws: the reference's numbers in its order, the same for a recomputed step, and no row depends on other rows."""

from __future__ import annotations

import torch

from omni_fish_s2.sampling import Draws, SpeechSampling, choose

CANDIDATES = torch.tensor([3, 10, 11, 12, 13])


def draws(seed: int | None) -> Draws:
    return Draws(seed, CANDIDATES, 20, (2, 4))


def test_a_seed_draws_for_every_id_twice_and_then_for_every_code() -> None:
    torch.manual_seed(9)
    expected = [[torch.rand(20), torch.rand(20), torch.rand(4), torch.rand(4)] for _ in range(3)]
    ours = draws(9)
    for step, (first, second, *codes) in enumerate(expected):
        numbers = ours.at(step)
        assert torch.equal(numbers.first, first[CANDIDATES])
        assert torch.equal(numbers.second, second[CANDIDATES])
        assert torch.equal(numbers.codes, torch.stack(codes))


def test_a_step_that_is_computed_again_draws_the_same() -> None:
    ours, other = draws(4), draws(4)
    once = [ours.at(step) for step in (0, 1, 2)]
    again = [[other.at(step) for _ in range(times)][-1] for step, times in ((0, 2), (1, 3), (2, 1))]
    for one, two in zip(once, again, strict=True):
        assert torch.equal(one.first, two.first)
        assert torch.equal(one.codes, two.codes)
    assert not torch.equal(once[0].first, once[1].first)


def test_without_a_seed_every_request_is_another() -> None:
    assert draws(None).at(0).first.shape == (5,)
    assert not torch.equal(draws(None).at(0).first, draws(None).at(0).first)


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = 3 * torch.randn(6, 50, generator=generator)
    uniforms = torch.rand(6, 50, generator=generator)
    params = [
        SpeechSampling(),
        SpeechSampling(temperature=0.3, top_k=0),
        SpeechSampling(top_k=1),
        SpeechSampling(temperature=1.9, top_p=1.0, top_k=0),
        SpeechSampling(top_p=0.01),
        SpeechSampling(temperature=0.7, top_k=3),
    ]
    together = choose(logits, params, uniforms)
    for row, each in enumerate(params):
        assert choose(logits[row : row + 1], [each], uniforms[row : row + 1]).item() == together[row]
    best = logits.argmax(-1)
    assert together[2] == best[2], "top_k 1 is greedy"
    assert together[4] == best[4], "the best one stays, however small top_p"


def test_the_distribution_is_that_of_the_filtered_logits() -> None:
    logits = torch.tensor([[2.0, 1.0, 0.0, -1.0, -9.0]])
    # The mass of the two best is 0.88, of the three best 0.97: a top_p of 0.9 keeps two, before any temperature.
    params = SpeechSampling(temperature=2.0, top_p=0.9, top_k=0)
    uniforms = torch.rand(20_000, 5, generator=torch.Generator().manual_seed(2))
    drawn = choose(logits.expand(20_000, -1), [params] * 20_000, uniforms)
    shares = drawn.bincount(minlength=5) / 20_000
    expected = torch.cat([(logits[0, :2] / 2.0).softmax(-1), torch.zeros(3)])
    torch.testing.assert_close(shares, expected, atol=0.015, rtol=0)
