"""Seeds: every bit counts, and short ones give PyTorch's own numbers."""

from __future__ import annotations

import re
from pathlib import Path

import torch

from omni_torch.api import seeded_generator


def drawn(seed: int | None) -> tuple[float, ...]:
    return tuple(torch.rand(4, generator=seeded_generator(seed)).tolist())


def test_every_bit_of_a_seed_counts() -> None:
    seeds = [0, 5, 2**33 + 5, 2**64 - 1, *(2**bit for bit in range(64))]
    assert len({drawn(seed) for seed in seeds}) == len(set(seeds))
    assert drawn(2**40) == drawn(2**40)
    assert drawn(None) != drawn(None)


def test_short_seeds_give_the_numbers_of_pytorch() -> None:
    for seed in (0, 3, 2**32 - 1):
        assert drawn(seed) == tuple(torch.rand(4, generator=torch.Generator().manual_seed(seed)).tolist())


def test_models_take_their_generators_from_here() -> None:
    """A seed of a request that goes to PyTorch by itself loses half of its bits."""
    root = Path(__file__).parents[3]
    sources = [*root.glob("omni_*/src/**/*.py"), *root.glob("plugins/*/src/**/*.py")]
    assert len(sources) > 300
    seeding = {path for path in sources if re.search(r"(?<!torch)\.manual_seed\((?!\d)", path.read_text())}
    assert {path.name for path in seeding if "omni_testing" not in path.parts} == {"seeds.py"}
