"""Digests of media, their runs of positions, and sharing by them."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from omni_qwen3.content import digest_of, row_digests, runs


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


def test_rows_of_conversations_that_begin_alike_have_the_same_digests() -> None:
    ids = torch.arange(100) + 7
    given = {"input_ids": ids, "positions": ids.expand(3, -1).clone(), "content": [(50, 60, b"two"), (20, 30, b"one")]}
    rows = torch.zeros(100, dtype=torch.bool)
    rows[10:70] = True
    found = row_digests(rows, given)
    assert found is not None
    assert [(first, last) for first, last, _ in found] == [(0, 16), (16, 32), (32, 48), (48, 60)]
    assert len({digest for _, _, digest in found}) == 4

    def same(rows: torch.Tensor = rows, **changed: Any) -> list[bool]:
        other = row_digests(rows, {**given, **changed})
        assert other is not None
        return [one == two for one, two in zip(found, other, strict=True)]

    later = ids.clone()
    later[75] = 1
    assert same(input_ids=later) == [True] * 4
    for place, alike in ((3, 0), (30, 1), (45, 2), (69, 3)):
        other = ids.clone()
        other[place] = 1
        assert same(input_ids=other) == [True] * alike + [False] * (4 - alike)
        moved = given["positions"].clone()  # type: ignore[attr-defined]
        moved[2, place] += 1
        assert same(positions=moved) == [True] * alike + [False] * (4 - alike)
    assert same(content=[(50, 60, b"two"), (20, 30, b"ONE")]) == [False] * 4
    assert same(content=[(50, 60, b"TWO"), (20, 30, b"one")]) == [True, True, False, False]
    assert same(content=[(20, 30, b"one")]) == [True, True, False, False]
    fewer = rows.clone()
    fewer[40], fewer[70] = False, True
    assert same(fewer) == [True, False, False, False]
    assert row_digests(rows, {**given, "features": ids}) is not None
    del given["content"]
    assert row_digests(rows, {**given, "features": ids}) is None
