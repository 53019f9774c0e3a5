"""Rotary positions of a prompt by time, height and width (TMRoPE), and the order of pictures and sound in videos with both.

The rule is the reference's (``get_rope_index`` of transformers' ``qwen2_5_omni``, 5.23): text and sound advance all three axes by one;
a picture stays at one time and spreads over height and width; the pictures of a video advance by the time between them; with sound,
pictures and sound alternate every ``chunk_seconds``, at the same times.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from attrs import frozen

from omni_core.api import InvalidRequestError


@frozen
class Piece:
    """A piece of media in a prompt.

    Attributes:
        kind: ``image``, ``video`` or ``audio``.
        grid: ``(time, height, width)`` in placeholders, of pictures.
        seconds: between two steps of ``time``, of a video.
        sound: placeholders of a clip, or of a video's sound; 0: none.
    """

    kind: str
    grid: tuple[int, int, int] = (0, 0, 0)
    seconds: float = 0.0
    sound: int = 0

    @property
    def mixed(self) -> bool:
        """True if it has pictures and sound."""
        return self.kind == "video" and self.sound > 0


def picture_times(piece: Piece, per_second: int) -> torch.Tensor:
    """Return the times of a piece's pictures in positions, int64 ``[placeholders]``."""
    time, height, width = piece.grid
    steps = (torch.arange(time) * torch.tensor(piece.seconds, dtype=torch.float32) * per_second).long()
    return steps.repeat_interleave(height * width)


def chunks(times: Sequence[int], size: int) -> list[tuple[int, int]]:
    """Divide ascending times: a new chunk begins at the first that reaches the next multiple of ``size``. Returns begins and ends."""
    found: list[tuple[int, int]] = []
    begin = 0
    for index, time in enumerate(times):
        if time >= (len(found) + 1) * size:
            found.append((begin, index))
            begin = index
    return [*found, (begin, len(times))]


def alternating(piece: Piece, per_second: int, chunk_seconds: float) -> list[tuple[str, int, int]]:
    """Return the order of a video's pictures and sound: runs of ``video`` or ``audio`` with their begins and ends."""
    size = int(per_second * chunk_seconds)
    pictures, sound = chunks(picture_times(piece, per_second).tolist(), size), chunks(range(piece.sound), size)
    order = []
    for number in range(max(len(pictures), len(sound))):
        order += [("video", *pictures[number])] if number < len(pictures) else []
        order += [("audio", *sound[number])] if number < len(sound) else []
    return order


def rope_index(
    ids: torch.Tensor, pieces: list[Piece], placeholders: set[int], per_second: int, chunk_seconds: float
) -> tuple[torch.Tensor, int]:
    """Return the positions ``[3, P]`` int64 of a prompt, and how much further than its index the next token's position is.

    Args:
        ids: ``[P]``.
        pieces: the prompt's media, in order.
        placeholders: the ids that stand for media.

    Raises:
        InvalidRequestError: the placeholders do not fit the media.
    """
    blocks: list[torch.Tensor] = []
    following = at = 0

    def add(block: torch.Tensor) -> None:
        nonlocal following, at
        blocks.append(block + following)
        at += block.shape[1]
        following = int(blocks[-1].max()) + 1

    is_media = torch.isin(ids, torch.tensor(sorted(placeholders)))
    for piece in pieces:
        found = is_media[at:].nonzero()
        before = int(found[0]) if len(found) else 0
        if before < (2 if piece.mixed else 1):
            raise InvalidRequestError("the placeholders of the prompt do not fit its media")
        if piece.mixed:  # both markers are at one position, before and after
            if before > 2:
                add(_line(before - 2))
            add(torch.zeros(3, 2, dtype=torch.int64))
            block = _mixed(piece, per_second, chunk_seconds)
            add(block)
            add(torch.zeros(3, 2, dtype=torch.int64))
        else:
            add(_line(before))
            add(_line(piece.sound) if piece.kind == "audio" else _pictures(piece, per_second))
    if at < len(ids):
        add(_line(len(ids) - at))
    positions = torch.cat(blocks, 1)
    if positions.shape[1] != len(ids) or bool(is_media[at:].any()):
        raise InvalidRequestError("the placeholders of the prompt do not fit its media")
    return positions, following - len(ids)


def _line(tokens: int) -> torch.Tensor:
    return torch.arange(tokens).expand(3, -1)


def _pictures(piece: Piece, per_second: int) -> torch.Tensor:
    time, height, width = piece.grid
    rows = torch.arange(height).repeat_interleave(width).repeat(time)
    return torch.stack([picture_times(piece, per_second), rows, torch.arange(width).repeat(height * time)])


def _mixed(piece: Piece, per_second: int, chunk_seconds: float) -> torch.Tensor:
    parts = {"video": _pictures(piece, per_second), "audio": _line(piece.sound)}
    return torch.cat(
        [parts[kind][:, begin:end] for kind, begin, end in alternating(piece, per_second, chunk_seconds)], 1
    )
