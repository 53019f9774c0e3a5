"""Computes digests of media, which are equal for equal encoder inputs, and the runs of their positions in a prompt."""

from __future__ import annotations

import hashlib

import torch


def digest_of(kind: str, values: torch.Tensor) -> bytes:
    """Return a 16-byte digest of an encoder's input: its kind (with the grid), shape, type and values."""
    hashed = hashlib.blake2b(f"{kind} {tuple(values.shape)} {values.dtype}".encode(), digest_size=16)
    hashed.update(values.contiguous().numpy().data)
    return hashed.digest()


def runs(positions: list[int]) -> list[tuple[int, int]]:
    """Group ascending positions into runs, each as its first position and its last plus one."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and found[-1][1] == position:
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    return found
