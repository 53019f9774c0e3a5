"""Alignment by Viterbi: the same as the best of all paths, one by one."""

from __future__ import annotations

from itertools import groupby, product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from omni_transformers.align import viterbi
from omni_transformers.align.viterbi import aligned


def of_all_paths(scores: np.ndarray, tokens: list[int], blank: int) -> float | None:
    """Return the highest sum of a path that collapses to the tokens."""
    sums = [
        sum(float(scores[frame, label]) for frame, label in enumerate(path))
        for path in product(range(scores.shape[1]), repeat=len(scores))
        if [label for label, _ in groupby(path) if label != blank] == tokens
    ]
    return max(sums, default=None)


@settings(max_examples=100, deadline=None)
@given(st.data())
def test_it_is_the_best_of_all_paths(data: st.DataObject) -> None:
    vocabulary, frames = data.draw(st.integers(2, 4)), data.draw(st.integers(1, 5))
    blank = data.draw(st.integers(0, vocabulary - 1))
    others = [each for each in range(vocabulary) if each != blank]
    tokens = data.draw(st.lists(st.sampled_from(others), max_size=4))
    coarse = data.draw(st.booleans())  # with ties
    logits = np.random.default_rng(data.draw(st.integers(0, 2**32))).normal(size=(frames, vocabulary)) * 3
    logits = logits.round() if coarse else logits
    scores = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    found, wanted = aligned(scores, tokens, blank), of_all_paths(scores, tokens, blank)
    if wanted is None:
        assert found is None
        return
    assert found is not None
    path = [blank] * frames
    for token, (begin, end) in zip(tokens, found, strict=True):
        assert begin < end
        path[begin:end] = [token] * (end - begin)
    assert [label for label, _ in groupby(path) if label != blank] == tokens
    assert [begin for begin, _ in found] == sorted(begin for begin, _ in found)
    assert sum(scores[frame, label] for frame, label in enumerate(path)) == pytest.approx(wanted, abs=1e-9)


def test_frames_that_say_nothing_and_impossible_tokens_leave_a_path() -> None:
    scores = np.full((6, 3), -np.inf)
    scores[3] = np.nan
    found = aligned(scores, [1, 2], 0)
    assert found is not None
    assert [0 <= begin < end <= 6 for begin, end in found] == [True, True]


def test_its_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(viterbi, "MOST_CELLS", 5 * 7 - 1)
    scores = np.zeros((5, 2))
    assert aligned(scores, [1, 1, 1], 0) is None
    assert aligned(scores[:3], [1, 1], 0) == [(0, 1), (2, 3)]
