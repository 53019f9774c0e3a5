"""The aggregation stage: orders encoder outputs by their positions in the prompt."""

from __future__ import annotations

from omni_core.api import SimpleScheduler
from omni_qwen3.aggregate import Aggregator
from omni_qwen25.config import read_config


def create_aggregate(model_path: str) -> SimpleScheduler:
    """Return the scheduler of the aggregation stage."""
    config = read_config(model_path)
    return SimpleScheduler(Aggregator(config.image, config.video, config.audio))
