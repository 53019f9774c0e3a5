"""Digests of media, their runs of positions, and sharing by them."""

from __future__ import annotations

import pytest
import torch

from omni_qwen3.content import ROWS_TOGETHER, digest_of, row_spans, runs


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


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_rows_that_begin_alike_have_the_same_digests(dtype: torch.dtype) -> None:
    rows = torch.randn(3 * ROWS_TOGETHER + 5, 8, generator=torch.Generator().manual_seed(1)).to(dtype)
    marks = torch.arange(len(rows)) % 3 == 0
    spans = row_spans(rows, marks)
    assert [(each.start, each.end) for each in spans] == [(0, 16), (16, 32), (32, 48), (48, 53)]
    assert len({each.digest for each in spans}) == 4
    longer = row_spans(torch.cat([rows, rows]), torch.cat([marks, marks]))
    assert longer[:3] == spans[:3]
    assert longer[3].digest != spans[3].digest
    other, marked = rows.clone(), marks.clone()
    other[20, 3] += 1
    marked[40] = ~marked[40]
    assert [a == b for a, b in zip(row_spans(other, marks), spans, strict=True)] == [True, False, True, True]
    assert [a == b for a, b in zip(row_spans(rows, marked), spans, strict=True)] == [True, True, False, True]
