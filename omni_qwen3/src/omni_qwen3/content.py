"""Computes digests of media, which are equal for equal encoder inputs, and the runs of their positions in a prompt."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from omni_core.api import ContentSpan
from omni_qwen3.payloads import AudioInputs, ImageInputs


def digest_of(kind: str, values: torch.Tensor) -> bytes:
    """Return a 16-byte digest of an encoder's input: its kind (with the grid), shape, type and values."""
    hashed = hashlib.blake2b(f"{kind} {tuple(values.shape)} {values.dtype}".encode(), digest_size=16)
    hashed.update(values.contiguous().numpy().data)
    return hashed.digest()


def image_inputs(patches: Mapping[str, list[torch.Tensor]], grids: Mapping[str, list[list[int]]]) -> ImageInputs:
    """Return the image encoder's inputs.

    Args:
        patches: of each picture, by ``"image"`` and ``"video"``.
        grids: of each, its patches in time, height and width.
    """
    digests = {
        kind: [digest_of(f"{kind}{grid}", each) for each, grid in zip(patches[kind], grids[kind], strict=True)]
        for kind in ("image", "video")
    }
    found = ImageInputs()
    if grids["image"]:
        found |= {"pixel_values": joined(patches["image"]), "image_grid_thw": torch.tensor(grids["image"])}
        found["image_digests"] = digests["image"]
    if grids["video"]:
        found |= {"pixel_values_videos": joined(patches["video"]), "video_grid_thw": torch.tensor(grids["video"])}
        found["video_digests"] = digests["video"]
    return found


def content_of(
    ids: torch.Tensor, tokens: Mapping[str, int], merge: int, image: ImageInputs, audio: AudioInputs | None
) -> list[tuple[int, int, bytes]]:
    """Return the runs of a prompt's multimodal positions, each with the digest of its content.

    Args:
        ids: ``[P]``, placeholders expanded.
        tokens: the placeholders of ``image``, ``video`` and ``audio``.
        merge: patches of the side of one placeholder's window.
    """
    kinds: list[tuple[int, list[int], list[bytes]]] = []
    if "image_grid_thw" in image:
        kinds.append((tokens["image"], _areas(image["image_grid_thw"], merge), image["image_digests"]))
    if "video_grid_thw" in image:
        kinds.append((tokens["video"], _areas(image["video_grid_thw"], merge), image["video_digests"]))
    if audio is not None:
        kinds.append((tokens["audio"], audio["clip_tokens"], audio["audio_digests"]))
    return [
        (first, last, digest)
        for token, sizes, digests in kinds
        for positions, digest in zip((ids == token).nonzero()[:, 0].split(sizes), digests, strict=True)
        for first, last in runs(positions.tolist())
    ]


def _areas(grids: torch.Tensor, merge: int) -> list[int]:
    """Return the number of positions of each image or video."""
    areas: list[int] = (grids.prod(1) // merge**2).tolist()
    return areas


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


ROWS_TOGETHER = 16
"""Rows that one digest of :func:`row_spans` covers, as many as a block of the KV cache has."""


def row_spans(rows: torch.Tensor, marks: torch.Tensor | None = None) -> list[ContentSpan]:
    """Return digests of a talker's input rows, so that the next turn of a conversation, whose rows begin alike, shares their positions.

    Args:
        rows: ``[n, hidden]`` on the CPU, for the first ``n`` positions.
        marks: ``[n]``, what else decides a row's input.
    """
    each = rows.contiguous().view(torch.uint8).numpy()
    beside = None if marks is None else marks.contiguous().view(torch.uint8).numpy()
    spans, kind = [], f"{rows.dtype}".encode()
    for start in range(0, len(rows), ROWS_TOGETHER):
        end = min(start + ROWS_TOGETHER, len(rows))
        digest = hashlib.blake2b(kind, digest_size=16)
        digest.update(each[start:end].data)
        if beside is not None:
            digest.update(beside[start:end].data)
        spans.append(ContentSpan(start, end, digest.digest()))
    return spans
