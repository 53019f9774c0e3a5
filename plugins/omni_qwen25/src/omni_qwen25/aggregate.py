"""The aggregation stage: orders encoder outputs by their positions in the prompt."""

from __future__ import annotations

from typing import Any

import torch

from omni_core.protocol.messages import StagePayload
from omni_core.scheduling.simple import SimpleScheduler
from omni_qwen25.config import OmniConfig, read_config
from omni_qwen25.payloads import ThinkerInputs


class Aggregator:
    """Orders features by prompt position and marks the multimodal positions."""

    def __init__(self, config: OmniConfig) -> None:
        self._tokens = {"image": config.image, "video": config.video, "audio": config.audio}

    def __call__(self, payload: StagePayload) -> ThinkerInputs:
        data: dict[str, Any] = payload.data
        by_kind = data["features_by_kind"]
        kept = {name: value for name, value in data.items() if name not in ("encoders", "features_by_kind")}
        if by_kind:
            kept |= self._placed(data["input_ids"], by_kind)
        return ThinkerInputs(**kept)  # type: ignore[typeddict-item]

    def _placed(self, ids: torch.Tensor, by_kind: dict[str, torch.Tensor]) -> dict[str, Any]:
        masks = {kind: ids == self._tokens[kind] for kind in by_kind}
        for kind, mask in masks.items():
            if int(mask.sum()) != len(by_kind[kind]):
                raise ValueError(f"{len(by_kind[kind])} {kind} features for {int(mask.sum())} {kind} positions")
        every = torch.stack(list(masks.values())).any(0)
        first = next(iter(by_kind.values()))
        features = first.new_empty(int(every.sum()), first.shape[-1])
        for kind, mask in masks.items():
            features[mask[every]] = by_kind[kind]
        return {"feature_mask": every, "features": features}


def create_aggregate(model_path: str) -> SimpleScheduler:
    """Return the scheduler of the aggregation stage."""
    return SimpleScheduler(Aggregator(read_config(model_path)))
