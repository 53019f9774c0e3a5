"""Sampling keeps exactly the tokens that transformers' processors keep, with the same probabilities."""

from __future__ import annotations

import pytest
import torch
from transformers.generation import logits_process as reference

from omni_core.errors import InvalidRequestError
from omni_core.model_runner.sampling import candidates, draw, penalized, sample, sampling_from
from omni_core.model_runner.types import ARRequest, RandomStream, SamplingParams


def row(seed: int, size: int = 200) -> torch.Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed)) * 2


def request(sampling: SamplingParams, outputs: list[int], prompt: list[int]) -> ARRequest:
    made = ARRequest("r", None, prompt, sampling, random=RandomStream(sampling.seed))  # type: ignore[arg-type]
    made.output_ids = outputs
    return made


@pytest.mark.parametrize("seed", range(3))
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
    ids, probabilities = candidates(row(seed), params)
    assert set(ids.tolist()) == set(expected.nonzero()[:, 0].tolist())
    torch.testing.assert_close(probabilities, expected[ids])


@pytest.mark.parametrize("penalize_prompt", [True, False])
def test_the_repetition_penalty_is_the_references(penalize_prompt: bool) -> None:
    params = SamplingParams(repetition_penalty=1.4, penalize_prompt=penalize_prompt)
    history = ([1, 2, 3] if penalize_prompt else []) + [7, 8, 8]
    expected = reference.RepetitionPenaltyLogitsProcessor(1.4)(torch.tensor([history]), row(0)[None])[0]
    torch.testing.assert_close(penalized(row(0), request(params, [7, 8, 8], [1, 2, 3])), expected)


def test_draws_follow_the_distribution_and_suppressed_ids_never_come() -> None:
    params = SamplingParams(temperature=1.0, suppressed_ids=frozenset({0, 1}), seed=1)
    logits = torch.tensor([5.0, 5.0, 1.0, 0.0, -1.0])
    made = request(params, [], [])
    counts = torch.zeros(5)
    for step in range(20_000):
        counts[draw(penalized(logits, made), params, made.random.uniform(step))] += 1
    expected = torch.tensor([0.0, 0.0, *logits[2:].softmax(-1).tolist()])
    torch.testing.assert_close(counts / counts.sum(), expected, atol=0.012, rtol=0)


def test_a_neighbour_changes_nothing() -> None:
    requests = [request(SamplingParams(temperature=1.0, seed=seed), [3] * seed, [1]) for seed in range(5)]
    logits = torch.stack([row(seed) for seed in range(5)])
    together = sample(logits, requests)
    assert together == [sample(logits[index : index + 1], [requests[index]])[0] for index in range(5)]


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
