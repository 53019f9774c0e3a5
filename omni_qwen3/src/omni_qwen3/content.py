"""Names for pieces of media: equal bytes at the encoder's door, equal name; and where in a prompt they stand."""

from __future__ import annotations

import hashlib

import torch


def digest_of(kind: str, values: torch.Tensor) -> bytes:
    """16 bytes that name an encoder's input: what it is (kind, grid), its shape, type and values."""
    hashed = hashlib.blake2b(f"{kind} {tuple(values.shape)} {values.dtype}".encode(), digest_size=16)
    hashed.update(values.contiguous().numpy().data)
    return hashed.digest()


def runs(positions: list[int]) -> list[tuple[int, int]]:
    """Ascending positions as runs: first, and last plus one."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and found[-1][1] == position:
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    return found
