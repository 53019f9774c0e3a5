"""Computes rotary positions of multimodal prompts by transformers' own index rule.

The rule has quirks that parity must keep (the layout of audio inside video, the inputs that the talker does not get),
so transformers' method is called instead of being reimplemented; it needs a few config values of its model and nothing
else.
"""

from __future__ import annotations

import itertools
from types import SimpleNamespace
from typing import Any

import torch
from attrs import evolve, frozen
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoePreTrainedModelForConditionalGeneration as _Reference,
)

from omni_qwen3.config import QwenConfig

Positions = tuple[torch.Tensor, float]
"""Rotary positions ``[3, P]`` of a prompt, and the delta: a later token's position is its index in the sequence plus
the delta.

Both are integers (int64, int) unless a video's time steps fall between them; then float32 and float, as in the
reference.
"""


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


class RopeIndex:
    """The index rule of one checkpoint."""

    def __init__(self, config: QwenConfig) -> None:
        thinker = config.raw["thinker_config"]
        audio = SimpleNamespace(n_window=thinker["audio_config"].get("n_window", 50))
        names = ("image_token_id", "video_token_id", "audio_token_id", "vision_start_token_id", "audio_start_token_id")
        values = {name: thinker[name] for name in (*names, "position_id_per_seconds")}
        self._model = SimpleNamespace(
            config=SimpleNamespace(**values, audio_config=audio),
            spatial_merge_size=thinker["vision_config"].get("spatial_merge_size", 2),
        )
        self._model.get_llm_pos_ids_for_vision = self._vision_positions
        self._pad, self._config = config.tts_pad, config

    def _vision_positions(self, *arguments: Any) -> torch.Tensor:
        positions: torch.Tensor = _Reference.get_llm_pos_ids_for_vision(self._model, *arguments)
        return positions

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
        except IndexError:
            # The rule counts the silent videos only, so a video with sound uses up the count of a silent one after it.
            return _whole(*self._piecewise(rows, grids))

    def _index(self, ids: torch.Tensor, grids: MediaGrids, use_audio_in_video: bool) -> Positions:
        if grids.images is None and grids.videos is None:
            return torch.arange(len(ids)).expand(3, -1).contiguous(), 0
        positions, delta = _Reference.get_rope_index(
            self._model,
            ids.unsqueeze(0),
            grids.images,
            grids.videos,
            torch.ones_like(ids).unsqueeze(0),
            use_audio_in_video,
            grids.audio_frames,
            grids.seconds_per_grid,
        )
        return positions[:, 0].contiguous(), float(delta.flatten()[0])

    def _piecewise(self, ids: torch.Tensor, grids: MediaGrids) -> Positions:
        """Apply the rule to the prompt cut before and after every silent video, each piece continuing where the last
        one ended.
        """
        config = self._model.config
        opens = (ids[:-1] == config.vision_start_token_id).nonzero()[:, 0]
        silent = [int(start) for start in opens if ids[start + 1] == config.video_token_id]
        taken = dict.fromkeys(("images", "videos", "audio_frames"), 0)
        cuts = {0, len(ids)}
        for start in silent:
            tokens = int((ids[start + 1 :] != config.video_token_id).nonzero()[0, 0])
            cuts |= {start, start + tokens + 2}  # including its begin and end markers
        pieces, following = [], 0.0
        bounds = sorted(cuts)
        for begin, end in itertools.pairwise(bounds):
            piece = ids[begin:end]
            after = piece[1:][piece[:-1] == config.vision_start_token_id]
            counts = {
                "images": int((after == config.image_token_id).sum()),
                "videos": int((after != config.image_token_id).sum()),
                "audio_frames": int((piece == config.audio_start_token_id).sum()),
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
