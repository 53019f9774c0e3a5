"""Computes digests of media, which are equal for equal encoder inputs, and the runs of their positions in a prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from omni_core.model_runner import ContentSpan


def digest_of(kind: str, values: torch.Tensor) -> bytes:
    """Return a 16-byte digest of an encoder's input: its kind (with the grid), shape, type and values."""
    hashed = hashlib.blake2b(f"{kind} {tuple(values.shape)} {values.dtype}".encode(), digest_size=16)
    hashed.update(values.contiguous().numpy().data)
    return hashed.digest()


def joined(patches: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return patches one after the other; those of one piece as they are."""
    return patches[0] if len(patches) == 1 else torch.cat(list(patches))


def runs(positions: list[int]) -> list[tuple[int, int]]:
    """Group ascending positions into runs, each as its first position and its last plus one."""
    found: list[tuple[int, int]] = []
    for position in positions:
        if found and found[-1][1] == position:
            found[-1] = (found[-1][0], position + 1)
        else:
            found.append((position, position + 1))
    return found


def content_spans(inputs: Mapping[str, Any]) -> list[ContentSpan] | None:
    """Return the digests of a prompt's media runs; ``None`` if some features came without a digest.

    Args:
        inputs: of a thinker.
    """
    if "content" not in inputs:
        return None if "features" in inputs else []
    return [ContentSpan(start, end, bytes(digest)) for start, end, digest in inputs["content"]]
