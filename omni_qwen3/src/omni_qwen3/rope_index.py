"""Lays out the rotary positions of a prompt with media: by time, height and width (multimodal rotary positions, Qwen2-VL).

Text and sound advance all three axes by one per token. A picture or video keeps its beginning and spans its grid; what follows goes
on behind the largest position. The model was trained with a rule that has quirks, which are kept: it counts the media of a prompt
first, takes as many of them as it has counted, from the first on, and treats the others as text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

import torch
from attrs import frozen


@frozen
class MediaGrids:
    """The sizes of a prompt's media, each in prompt order; ``None`` where there is none.

    Attributes:
        images, videos: ``[n, 3]`` patch grids (time, height, width).
        audio_frames: ``[n]`` mel frames per clip.
        seconds_per_grid: ``[n]`` seconds between a video's time steps.
    """

    images: torch.Tensor | None = None
    videos: torch.Tensor | None = None
    audio_frames: torch.Tensor | None = None
    seconds_per_grid: torch.Tensor | None = None


@frozen
class Rule:
    """The values of a checkpoint's config on which positions depend.

    Attributes:
        image, video, audio: ids of the placeholders.
        vision_start, audio_start: ids of the markers before media.
        per_second: positions per second of video.
        merge: patches of the side of one placeholder's window.
        clip_tokens: placeholders of a clip of so many mel frames.
    """

    image: int
    video: int
    audio: int
    vision_start: int
    audio_start: int
    per_second: float
    merge: int
    clip_tokens: Callable[[int], int]


def rope_index(
    rule: Rule, ids: Sequence[int], grids: MediaGrids, *, use_audio_in_video: bool
) -> tuple[torch.Tensor, float]:
    """Return the positions ``[3, len(ids)]`` float32, and how much further than its index the next token's position is.

    Raises:
        LookupError: the rule finds fewer media than it has counted; see the module's docstring.
    """
    walk = _Walk(rule, list(ids), grids, use_audio_in_video)
    walk.run()
    positions = torch.cat(walk.blocks, dim=1) if walk.blocks else torch.empty(3, 0)
    if positions.shape[1] != len(ids):
        raise LookupError("the placeholders of the prompt do not fit the sizes of its media")
    return positions, (float(positions.max()) if len(ids) else -1.0) + 1 - len(ids)


class _Walk:
    """Goes through a prompt from one piece of media to the next.

    Attributes:
        blocks: positions laid out so far.
        following: the position of the next token of text.
    """

    def __init__(self, rule: Rule, ids: list[int], grids: MediaGrids, use_audio_in_video: bool) -> None:
        self._rule, self._ids, self._grids = rule, ids, grids
        self.blocks: list[torch.Tensor] = []
        self.following = 0.0
        self._at = 0
        self._images = self._videos = self._clips = 0  # taken so far
        after = [token for marker, token in pairwise(ids) if marker == rule.vision_start]
        self._images_left = after.count(rule.image)
        self._videos_left = after.count(rule.audio_start if use_audio_in_video else rule.video)
        self._clips_left = ids.count(rule.audio_start)
        # With sound in videos, a video counts by its sound; one that has none does not count.
        self._count = self._images_left + self._clips_left + (0 if use_audio_in_video else self._videos_left)

    def run(self) -> None:
        """Lay out the whole prompt."""
        rule, ids = self._rule, self._ids
        has_pictures, has_sound = rule.image in ids or rule.video in ids, rule.audio in ids
        for _ in range(self._count):
            sees = has_pictures and (self._images_left > 0 or self._videos_left > 0)
            vision = self._next(rule.vision_start) if sees else None
            sound = self._next(rule.audio_start) if has_sound and self._clips_left > 0 else None
            if vision is None and sound is None:
                raise LookupError("a piece of media was counted and is not found")
            if vision is None or (sound is not None and sound < vision):
                assert sound is not None
                self._clip(sound)
            elif ids[vision + 1] == rule.image:
                self._image(vision)
            elif ids[vision + 1] == rule.video:
                self._video(vision)
            elif vision + 1 == sound:
                self._video_with_sound(vision)
            else:
                raise LookupError("a marker of pictures is followed by neither pictures nor sound")
        self._text(len(ids) - self._at)

    def _next(self, marker: int) -> int | None:
        try:
            return self._ids.index(marker, self._at)
        except ValueError:
            return None

    def _clip(self, begin: int) -> None:
        self._text(begin - self._at + 1)
        self._text(self._take_clip())
        self._text(1)

    def _image(self, begin: int) -> None:
        self._text(begin - self._at + 1)
        assert self._grids.images is not None
        self._add(self._cells(self._grids.images[self._images], 1.0))
        self._images += 1
        self._images_left -= 1
        self._text(1)

    def _video(self, begin: int) -> None:
        self._text(begin - self._at + 1)
        self._add(self._take_video())
        self._text(1)

    def _video_with_sound(self, begin: int) -> None:
        """Lay out pictures and sound by their time, pictures first.

        What follows goes on behind the part in which only one of them is left, which need not have the largest position.
        """
        self._text(begin - self._at + 2)
        pictures, sound = self._take_video(), _line(self._take_clip())
        both = torch.cat([pictures, sound], dim=1)
        order = both[0].sort(stable=True).indices
        is_sound = order >= pictures.shape[1]
        others = (is_sound != is_sound[-1]).nonzero()
        self._add(both[:, order])
        alone = self.blocks[-1][:, int(others[-1]) + 1 if len(others) else 0 :]
        self.following = float(alone.max()) + 1
        self._text(2)

    def _take_clip(self) -> int:
        assert self._grids.audio_frames is not None
        tokens = self._rule.clip_tokens(int(self._grids.audio_frames[self._clips]))
        self._clips += 1
        self._clips_left -= 1
        return tokens

    def _take_video(self) -> torch.Tensor:
        assert self._grids.videos is not None
        assert self._grids.seconds_per_grid is not None
        cells = self._cells(self._grids.videos[self._videos], self._grids.seconds_per_grid[self._videos].float())
        self._videos += 1
        self._videos_left -= 1
        return cells

    def _text(self, tokens: int) -> None:
        if tokens > 0:
            self._add(_line(tokens))

    def _add(self, block: torch.Tensor) -> None:
        """Append positions that begin at 0."""
        self.blocks.append(block + self.following)
        self._at += block.shape[1]
        self.following = float(self.blocks[-1].max()) + 1

    def _cells(self, grid: torch.Tensor, seconds: torch.Tensor | float) -> torch.Tensor:
        """Return the positions within a grid, ``[3, placeholders]``."""
        time, height, width = grid.tolist()
        steps = torch.arange(time, dtype=torch.float32) * seconds * self._rule.per_second
        rows, columns = (torch.arange(size // self._rule.merge, dtype=torch.float32) for size in (height, width))
        return torch.stack([each.flatten() for each in torch.meshgrid(steps, rows, columns, indexing="ij")])


def _line(tokens: int) -> torch.Tensor:
    return torch.arange(tokens, dtype=torch.float32).expand(3, -1)
