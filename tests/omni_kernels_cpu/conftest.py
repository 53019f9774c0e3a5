"""Every test that asks for ``instruction_set`` runs on each that this processor has, by default on AVX2."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from omni_kernels_cpu import library

OTHERS = ("portable", "avx512", "avx512_bf16", "amx")


@pytest.fixture(params=["avx2", *(pytest.param(each, marks=pytest.mark.full) for each in OTHERS)])
def instruction_set(request: pytest.FixtureRequest) -> Iterator[str]:
    if not library.PATH.exists():
        pytest.skip(str(library.problem()))
    if not library.use(request.param):
        pytest.skip(f"this processor has no {request.param}")
    assert library.instruction_set() == request.param
    yield request.param
    library.use(None)


@pytest.fixture
def threads() -> Iterator[None]:
    """As many threads as a test sets, whatever is faster."""
    before = torch.get_num_threads()
    library.measure_threads(False)
    yield
    library.measure_threads(True)
    torch.set_num_threads(before)
