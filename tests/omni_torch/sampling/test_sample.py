"""Sampling keeps exactly the tokens that transformers' processors keep, with the same probabilities."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from tiers import few

from omni_core.errors import InvalidRequestError
from omni_core.model_runner import ARRequest, RandomStream, SamplingParams
from omni_torch.sampling import sample as sampling
from omni_torch.sampling.sample import candidates, draw, penalized, sample, sample_tokens, sampling_from

reference = pytest.importorskip("transformers.generation.logits_process", reason="transformers is the reference")


def row(seed: int, size: int = 200) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2


def request(sampling: SamplingParams, outputs: list[int], prompt: list[int]) -> ARRequest:
    made = ARRequest("r", None, prompt, sampling, random=RandomStream(sampling.seed))  # type: ignore[arg-type]
    made.output_ids = outputs
    return made


def kept(logits: torch.Tensor, params: SamplingParams) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the ids that may be drawn from one row, and their probabilities."""
    temperature, top_p, min_p = (torch.tensor([each]) for each in (params.temperature, params.top_p, params.min_p))
    ids, probabilities = candidates(
        logits[None],
        temperature,
        params.top_k,
        top_p if params.top_p < 1 else None,
        min_p if params.min_p > 0 else None,
    )
    return ids[0], probabilities[0]


@pytest.mark.parametrize("seed", few(range(20), 4))
@pytest.mark.parametrize(
    ("params", "processors"),
    [
        (SamplingParams(temperature=0.7), [reference.TemperatureLogitsWarper(0.7)]),
        (SamplingParams(temperature=1.0, top_k=9), [reference.TopKLogitsWarper(9)]),
        (SamplingParams(temperature=1.0, top_p=0.6), [reference.TopPLogitsWarper(0.6)]),
        (SamplingParams(temperature=1.0, min_p=0.05), [reference.MinPLogitsWarper(0.05)]),
        (
            SamplingParams(temperature=1.3, top_k=30, top_p=0.8, min_p=0.02),
            [
                reference.TemperatureLogitsWarper(1.3),
                reference.TopKLogitsWarper(30),
                reference.TopPLogitsWarper(0.8),
                reference.MinPLogitsWarper(0.02),
            ],
        ),
    ],
)
def test_the_candidates_are_the_references(seed: int, params: SamplingParams, processors: list[object]) -> None:
    scores = row(seed)[None]
    for processor in processors:
        scores = processor(None, scores)  # type: ignore[operator]
    expected = scores[0].softmax(-1)
    ids, probabilities = kept(row(seed), params)
    full = torch.zeros(200).index_add(0, ids, probabilities)
    assert full.nonzero().tolist() == expected.nonzero().tolist()
    torch.testing.assert_close(full, expected)


def test_ties_with_the_last_of_top_k_are_kept() -> None:
    logits = torch.zeros(50)
    logits[10], logits[20:25] = 5.0, 4.0
    ids, probabilities = kept(logits, SamplingParams(temperature=1.0, top_k=3))
    assert ids[probabilities > 0].tolist() == [10, 20, 21, 22, 23, 24]


@pytest.mark.parametrize("top_k", [0, 6, 9])
def test_ties_with_the_last_of_top_p_are_kept(top_k: int) -> None:
    logits = torch.zeros(50)
    logits[10], logits[20:25] = 5.0, 4.0
    ids, probabilities = kept(logits, SamplingParams(temperature=1.0, top_k=top_k, top_p=0.5))
    assert ids[probabilities > 0].tolist() == [10, 20, 21, 22, 23, 24]
    ids, probabilities = kept(logits, SamplingParams(temperature=1.0, top_k=top_k, top_p=0.2))
    assert ids[probabilities > 0].tolist() == [10]


@pytest.mark.parametrize("setting", [{"top_p": 0.0}, {"temperature": 1e-30}, {"top_k": 1}, {"min_p": 1.0}], ids=str)
def test_the_narrowest_settings_leave_the_best_id(setting: dict[str, float]) -> None:
    params = SamplingParams(**{"temperature": 1.0, **setting})  # type: ignore[arg-type]
    assert [draw(row(1)[None], [params], [u])[0] for u in (0.0, 0.5, 1 - 2**-53)] == [int(row(1).argmax())] * 3


@pytest.mark.parametrize("penalize_prompt", [True, False])
def test_the_repetition_penalty_is_the_references(penalize_prompt: bool) -> None:
    params = SamplingParams(repetition_penalty=1.4, penalize_prompt=penalize_prompt)
    history = ([1, 2, 3] if penalize_prompt else []) + [7, 8, 8]
    expected = reference.RepetitionPenaltyLogitsProcessor(1.4)(torch.tensor([history]), row(0)[None])[0]
    given = row(0)[None]
    torch.testing.assert_close(penalized(given, [request(params, [7, 8, 8], [1, 2, 3])])[0], expected)
    assert torch.equal(given[0], row(0)), "the caller's logits were changed"


def test_the_repetition_penalty_follows_a_growing_output_and_ignores_placeholders() -> None:
    made = request(SamplingParams(repetition_penalty=1.3), [], [2, -1, 5])
    for step in range(300):
        processor = reference.RepetitionPenaltyLogitsProcessor(1.3)
        expected = processor(torch.tensor([[2, 5, *made.output_ids]]), row(step)[None] + 2)
        assert torch.equal(penalized(row(step)[None] + 2, [made]), expected)
        made.output_ids.append(int(expected.argmax()))


def test_draws_follow_the_distribution_and_suppressed_ids_never_come() -> None:
    params = SamplingParams(temperature=1.0, suppressed_ids=frozenset({0, 1}), seed=1)
    logits = torch.tensor([5.0, 5.0, 1.0, 0.0, -1.0])
    made = request(params, [], [])
    counts = torch.zeros(5)
    for step in range(20_000):
        counts[draw(penalized(logits[None], [made]), [params], [made.random.uniform(step)])[0]] += 1
    expected = torch.tensor([0.0, 0.0, *logits[2:].softmax(-1).tolist()])
    torch.testing.assert_close(counts / counts.sum(), expected, atol=0.012, rtol=0)


def test_a_row_does_not_depend_on_other_rows() -> None:
    settings: list[dict[str, Any]] = [
        {},
        {"temperature": 1.0},
        {"temperature": 0.7, "top_k": 5},
        {"temperature": 0.9, "top_k": 50, "repetition_penalty": 1.2},
        {"temperature": 1.1, "top_k": 50, "top_p": 0.8},
        {"temperature": 1.3, "top_p": 0.6, "min_p": 0.05},
        {"temperature": 1.0, "min_p": 0.1, "suppressed_ids": frozenset(range(50))},
    ]

    def run(chosen: list[int]) -> dict[int, list[int]]:
        made = {index: request(SamplingParams(seed=index, **settings[index]), [], [1, 2]) for index in chosen}
        for step in range(12):
            logits = torch.stack([row(100 * step + index) for index in chosen])
            for index, token in zip(chosen, sample(logits, list(made.values())), strict=True):
                made[index].output_ids.append(token)
        return {index: made[index].output_ids for index in chosen}

    together = run(list(range(len(settings))))
    assert run(list(reversed(range(len(settings))))) == together
    for index in range(len(settings)):
        assert run([index])[index] == together[index]


def ways(*arguments: torch.Tensor) -> list[list[int]]:
    """Compare the reference's CPU path with its GPU path, which branches on no value."""
    return [each(*arguments).tolist() for each in (sampling._choose_by_path, sampling._choose_alike)]


def test_the_gpu_path_chooses_the_same() -> None:
    for arguments in sample_tokens.examples(torch.float32, torch.Generator().manual_seed(3)):
        here, there = ways(*arguments)
        assert here == there
        assert here[0] == int(arguments[0][0].argmax()), "temperature 0"


@pytest.mark.parametrize("seed", few(range(5), 4))
def test_the_gpu_path_chooses_the_same_where_logits_tie(seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(0, 8, (200, 60), generator=generator).double()
    logits[:, 3], logits[:, 40:] = 8.0, -math.inf
    logits[10, 5], logits[20], logits[30, 1] = math.nan, -math.inf, math.inf

    def one_of(*values: float) -> torch.Tensor:
        return torch.tensor(values)[torch.randint(len(values), (200,), generator=generator)]

    params = one_of(0.0, 0.7, 1.0), one_of(0, 1, 3, 50, 60), one_of(1.0, 0.9, 0.37), one_of(0.0, 0.04, 1.0)
    here, there = ways(logits, *params, torch.rand(200, generator=generator, dtype=torch.float64))
    assert here == there
    assert [row for row, token in enumerate(here) if token < 0] == [10, 20, 30]
    assert max(here) < 40, "what is at minus infinity is never chosen"
    for row, token in enumerate(here):
        if params[0][row] == 0 and token >= 0:
            assert token == int(logits[row].argmax())


def test_sampling_does_not_synchronise_with_a_gpu() -> None:
    """On the device "meta" there are no values; reading one is an error there, and a synchronisation on a GPU."""
    examples = sample_tokens.examples(torch.float32, torch.Generator().manual_seed(0))
    assert sample_tokens(*(each.to("meta") for each in examples[0])).shape == (len(examples[0][0]),)
    params = SamplingParams(repetition_penalty=1.2, suppressed_ids=frozenset({3, 5}))
    assert penalized(torch.empty(2, 200, device="meta"), [request(params, [7], [1])] * 2).shape == (2, 200)


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_logits_that_are_not_finite_are_an_error_that_names_the_request(bad: float) -> None:
    logits = row(0)[None].clone()
    logits[0, 5] = bad
    for temperature in (0.0, 1.0):
        with pytest.raises(FloatingPointError, match=f"request r: .* position 1, the largest logit is {bad};"):
            sample(logits, [request(SamplingParams(temperature=temperature), [], [1])])


def test_suppressing_everything_is_an_error() -> None:
    with pytest.raises(FloatingPointError, match="suppressed_ids"):
        sample(row(0)[None], [request(SamplingParams(suppressed_ids=frozenset(range(200))), [], [1])])


def test_random_streams_are_uniform_and_repeatable() -> None:
    values = [RandomStream(7).uniform(step, 2) for step in range(5000)]
    assert values == [RandomStream(7).uniform(step, 2) for step in range(5000)]
    assert len(set(values)) == 5000
    assert abs(sum(values) / 5000 - 0.5) < 0.02
    assert RandomStream().seed != RandomStream().seed


@pytest.mark.parametrize(
    ("given", "word"),
    [({"temperature": -1}, "temperature"), ({"top_p": 0}, "top_p"), ({"top_k": 1.5}, "top_k"), ({"tempratur": 1}, "temperature"),
     ({"seed": "x"}, "seed"), ({"max_new_tokens": 0}, "max_new_tokens"), ({"temperature": True}, "temperature")],
)  # fmt: skip
def test_bad_parameters_are_named(given: dict[str, object], word: str) -> None:
    with pytest.raises(InvalidRequestError, match=rf"params\.thinker.*{word}"):
        sampling_from(given, "params.thinker")
