"""Random number generators of seeds of 64 bits."""

from __future__ import annotations

from hashlib import blake2b

import torch

_BITS = 32


def seeded_generator(seed: int | None) -> torch.Generator:
    """Return a generator of the CPU, of which every bit of a seed counts.

    PyTorch's takes the lower 32 bits of a seed and ignores the others. Seeds of 32 bits give the numbers that they give there; longer
    ones are hashed.

    Args:
        seed: 0 or more, below 2**64; ``None``: a random one.
    """
    generator = torch.Generator()
    if seed is None:
        generator.seed()
        return generator
    if seed >> _BITS:
        seed = int.from_bytes(blake2b(seed.to_bytes(8, "little"), digest_size=_BITS // 8).digest(), "little")
    return generator.manual_seed(seed)
