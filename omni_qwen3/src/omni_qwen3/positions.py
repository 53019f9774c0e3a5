"""Computes the rotary positions of multimodal prompts, of the thinker's and of the talker's."""

from __future__ import annotations

import itertools

import torch
from attrs import evolve

from omni_qwen3.config import QwenConfig
from omni_qwen3.rope_index import MediaGrids, Rule, rope_index

Positions = tuple[torch.Tensor, float]
"""Rotary positions ``[3, P]`` of a prompt, and the delta: a later token's position is its index in the sequence plus
the delta.

Both are integers (int64, int) unless a video's time steps fall between them; then float32 and float, as in the
reference.
"""


class RopeIndex:
    """The index rule of one checkpoint."""

    def __init__(self, config: QwenConfig) -> None:
        thinker = config.raw["thinker_config"]
        self._rule = Rule(
            image=config.image_token,
            video=config.video_token,
            audio=config.audio_token,
            vision_start=thinker["vision_start_token_id"],
            audio_start=thinker["audio_start_token_id"],
            per_second=thinker["position_id_per_seconds"],
            merge=config.vision.merge,
            clip_tokens=config.audio.tokens,
        )
        self._pad = config.tts_pad

    def thinker(self, ids: torch.Tensor, grids: MediaGrids, *, use_audio_in_video: bool) -> Positions:
        """Return the positions of a prompt ``[P]``."""
        return _whole(*self._index(ids, grids, use_audio_in_video))

    def talker(self, ids: torch.Tensor, user: torch.Tensor, grids: MediaGrids) -> Positions | None:
        """Return the positions of the talker's prompt: the user rows (``user``: ``[P]`` bool) and nine more; ``None``
        for text.

        As in the reference, the talker ignores ``use_audio_in_video``: sound inside a video is laid out by the plain
        rule. Two cases in which the reference crashes work here: audio beside images or videos (it lacks a config
        field), and a silent video after one with sound.
        """
        if grids.images is None and grids.videos is None:
            return None
        rows = torch.cat([ids[user], ids.new_full((9,), self._pad)])
        try:
            return _whole(*self._index(rows, grids, False))
        except LookupError:
            # The rule counts the silent videos only, so a video with sound uses up the count of a silent one after it.
            return _whole(*self._piecewise(rows, grids))

    def _index(self, ids: torch.Tensor, grids: MediaGrids, use_audio_in_video: bool) -> Positions:
        if grids.images is None and grids.videos is None:
            return torch.arange(len(ids)).expand(3, -1).contiguous(), 0
        return rope_index(self._rule, ids.tolist(), grids, use_audio_in_video=use_audio_in_video)

    def _piecewise(self, ids: torch.Tensor, grids: MediaGrids) -> Positions:
        """Apply the rule to the prompt cut before and after every silent video, each piece continuing where the last
        one ended.
        """
        rule = self._rule
        opens = (ids[:-1] == rule.vision_start).nonzero()[:, 0]
        silent = [int(start) for start in opens if ids[start + 1] == rule.video]
        taken = dict.fromkeys(("images", "videos", "audio_frames"), 0)
        cuts = {0, len(ids)}
        for start in silent:
            tokens = int((ids[start + 1 :] != rule.video).nonzero()[0, 0])
            cuts |= {start, start + tokens + 2}  # including its begin and end markers
        pieces, following = [], 0.0
        bounds = sorted(cuts)
        for begin, end in itertools.pairwise(bounds):
            piece = ids[begin:end]
            after = piece[1:][piece[:-1] == rule.vision_start]
            counts = {
                "images": int((after == rule.image).sum()),
                "videos": int((after != rule.image).sum()),
                "audio_frames": int((piece == rule.audio_start).sum()),
            }
            own = {name: _part(getattr(grids, name), taken[name], count) for name, count in counts.items()}
            seconds = _part(grids.seconds_per_grid, taken["videos"], counts["videos"])
            positions, _ = self._index(piece, evolve(grids, **own, seconds_per_grid=seconds), False)
            pieces.append(positions.float() + following)
            following = float(pieces[-1].max()) + 1
            taken = {name: taken[name] + count for name, count in counts.items()}
        return torch.cat(pieces, dim=1), following - len(ids)


def _part(values: torch.Tensor | None, first: int, count: int) -> torch.Tensor | None:
    return values[first : first + count] if values is not None and count else None


def _whole(positions: torch.Tensor, delta: float) -> Positions:
    """Return positions as integers if all of them are integers."""
    if positions.is_floating_point() and bool((positions != positions.round()).any()):
        return positions, delta
    return positions.long().contiguous(), int(delta)
