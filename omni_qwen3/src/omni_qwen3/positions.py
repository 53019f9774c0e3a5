"""Rotary positions of multimodal prompts, by transformers' own index rule.

The rule has quirks that parity must keep (how audio inside video is laid out, what the talker is not told), so it is
called rather than written again: the method needs a few config values of its model and nothing else.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from attrs import frozen
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoePreTrainedModelForConditionalGeneration as _Reference,
)

from omni_qwen3.config import QwenConfig


@frozen
class MediaGrids:
    """What the rule needs to know of a prompt's media, each in prompt order; ``None`` where there is none.

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

    def thinker(self, ids: torch.Tensor, grids: MediaGrids, *, use_audio_in_video: bool) -> tuple[torch.Tensor, int]:
        """Positions ``[3, P]`` of a prompt ``[P]``, and the delta for what follows it."""
        return self._index(ids, grids, use_audio_in_video)

    def talker(self, ids: torch.Tensor, user: torch.Tensor, grids: MediaGrids) -> tuple[torch.Tensor, int] | None:
        """Positions of the talker's prompt: the user rows (``user``: ``[P]`` bool) and nine more; ``None`` for text only.

        As in the reference, the talker is never told of ``use_audio_in_video``: sound inside a video is laid out by the
        plain rule. Unlike there, audio beside images or videos works (the reference crashes for want of a config field).
        """
        if grids.images is None and grids.videos is None:
            return None
        rows = torch.cat([ids[user], ids.new_full((9,), self._pad)])
        return self._index(rows, grids, False)

    def _index(self, ids: torch.Tensor, grids: MediaGrids, use_audio_in_video: bool) -> tuple[torch.Tensor, int]:
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
        return positions[:, 0].long().contiguous(), int(delta.flatten()[0])
