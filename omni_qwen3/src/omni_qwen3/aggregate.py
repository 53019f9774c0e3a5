"""The aggregation stage: orders encoder outputs by their positions in the prompt."""

from __future__ import annotations

from typing import Any

import torch

from omni_core.api import SimpleScheduler, StagePayload
from omni_qwen3.config import read_config
from omni_qwen3.payloads import ThinkerInputs


def merge_for_thinker(payloads: dict[str, StagePayload]) -> dict[str, Any]:
    """Merge preprocessing's prompt with the features of the encoders that ran."""
    merged = dict(payloads["preprocessing"].data)
    merged["features_by_kind"] = {
        name: value
        for stage, payload in payloads.items()
        if stage != "preprocessing"
        for name, value in payload.data.items()
    }
    return merged


class Aggregator:
    """Orders features by prompt position and marks the multimodal positions; with deepstack features the visual ones too.

    Args:
        image, video, audio: ids of the placeholders.
    """

    def __init__(self, image: int, video: int, audio: int) -> None:
        self._tokens = {"image": image, "video": video, "audio": audio}

    def __call__(self, payload: StagePayload) -> ThinkerInputs:
        data: dict[str, Any] = payload.data
        by_kind = data["features_by_kind"]
        kept = {name: value for name, value in data.items() if name not in ("encoders", "features_by_kind")}
        if by_kind:
            kept |= self._placed(data["input_ids"], by_kind)
        return ThinkerInputs(**kept)  # type: ignore[typeddict-item]

    def _placed(self, ids: torch.Tensor, by_kind: dict[str, Any]) -> dict[str, Any]:
        masks = {kind: ids == token for kind, token in self._tokens.items() if kind in by_kind}
        for kind, mask in masks.items():
            if int(mask.sum()) != len(by_kind[kind]):
                raise ValueError(f"{len(by_kind[kind])} {kind} features for {int(mask.sum())} {kind} positions")
        placed: dict[str, Any] = {"feature_mask": _any(masks.values())}
        placed["features"] = _ordered(placed["feature_mask"], {kind: (masks[kind], by_kind[kind]) for kind in masks})
        visual = {kind: mask for kind, mask in masks.items() if f"{kind}_deepstack" in by_kind}
        if visual:
            placed["visual_mask"] = _any(visual.values())
            levels = len(next(by_kind[f"{kind}_deepstack"] for kind in visual))
            placed["deepstack"] = [
                _ordered(
                    placed["visual_mask"],
                    {kind: (visual[kind], by_kind[f"{kind}_deepstack"][level]) for kind in visual},
                )
                for level in range(levels)
            ]
        return placed


def _any(masks: Any) -> torch.Tensor:
    return torch.stack(list(masks)).any(0)


def _ordered(mask: torch.Tensor, parts: dict[str, tuple[torch.Tensor, torch.Tensor]]) -> torch.Tensor:
    """Return features of several kinds in prompt order: ``[mask.sum(), hidden]``."""
    first = next(iter(parts.values()))[1]
    rows = first.new_empty(int(mask.sum()), first.shape[-1])
    for positions, features in parts.values():
        rows[positions[mask]] = features
    return rows


def create_aggregate(model_path: str) -> SimpleScheduler:
    """Return the scheduler of the aggregation stage."""
    config = read_config(model_path)
    return SimpleScheduler(Aggregator(config.image_token, config.video_token, config.audio_token))
