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
    return spans_of(inputs["content"])


ROWS_TOGETHER = 16
"""Rows that one digest of :func:`row_digests` covers, as many as a block of the KV cache has."""

Content = list[tuple[int, int, bytes]]
"""Runs of positions: the first, the last plus one, and the digest of what they stand for."""


def row_digests(rows: torch.Tensor, inputs: Mapping[str, Any]) -> Content | None:
    """Return digests of the first rows of a talker's prompt, which a thinker makes of some positions of its own.

    A row is a function of all positions of the thinker up to its own, so that conversations that begin alike have equal rows.

    Args:
        rows: ``[P]`` bool on the CPU, the positions of the rows.
        inputs: of the thinker. If some of its features came without a digest, ``None`` is returned: nothing is shared.
    """
    spans = content_spans(inputs)
    if spans is None:
        return None
    table = torch.cat([inputs["input_ids"].unsqueeze(0).double(), inputs["positions"].double()]).T.contiguous().numpy()
    spans = sorted(spans, key=lambda span: span.start)
    places = rows.nonzero()[:, 0].tolist()
    chain, found = hashlib.blake2b(digest_size=16), Content()
    done = at = 0
    for start in range(0, len(places), ROWS_TOGETHER):
        end = min(start + ROWS_TOGETHER, len(places))
        last = places[end - 1] + 1
        until = next((n for n in range(at, len(spans)) if spans[n].start >= last), len(spans))
        chain.update(b"%d:%d:" % (last - done, until - at) + table[done:last].tobytes())
        for span in spans[at:until]:
            chain.update(b"%d:%d:%d:" % (span.start, span.end, len(span.digest)) + span.digest)
        done, at = last, until
        found.append((start, end, chain.copy().digest()))
    return found


def spans_of(content: Content | None) -> list[ContentSpan] | None:
    """Return runs as a scheduler reads them."""
    return None if content is None else [ContentSpan(start, end, bytes(digest)) for start, end, digest in content]
