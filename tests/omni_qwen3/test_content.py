"""Digests of media, their runs of positions, and sharing by them."""

from __future__ import annotations

import pytest
import torch

from omni_qwen3.content import digest_of, runs


def test_a_name_is_of_kind_shape_type_and_values() -> None:
    values = torch.arange(12.0).view(3, 4)
    same = torch.arange(24.0).view(3, 8)[:, ::2].div(2).contiguous()
    assert digest_of("image", values) == digest_of("image", same)
    assert digest_of("image", values.T.contiguous().T) == digest_of("image", values), "the layout in memory counts"
    others = [
        digest_of("video", values),
        digest_of("image", values.view(4, 3)),
        digest_of("image", values.double()),
        digest_of("image", values + torch.eye(3, 4) * 1e-6),
    ]
    assert len({digest_of("image", values), *others}) == 5


@pytest.mark.parametrize(
    ("positions", "expected"), [([], []), ([3], [(3, 4)]), ([1, 2, 3, 7, 9, 10], [(1, 4), (7, 8), (9, 11)])]
)
def test_runs(positions: list[int], expected: list[tuple[int, int]]) -> None:
    assert runs(positions) == expected
