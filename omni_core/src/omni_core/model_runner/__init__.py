"""The contracts of a model: a :class:`ModelRunner`, which a scheduler drives step by step, runs a network, an :class:`ARModel`.

A model whose input depends on its last output has a :class:`FeedbackStrategy` beside its runner. The room holds contracts and
their data only.
"""

from omni_core.model_runner.attention import AttentionForm, CacheAttention, DecodeCache, PagedAttention
from omni_core.model_runner.base import ARModel, FeedbackStrategy, Forward, ModelRunner
from omni_core.model_runner.types import (
    ARRequest,
    Constraint,
    ContentSpan,
    FinishReason,
    ForwardBatch,
    ForwardOutput,
    KVLayout,
    RandomStream,
    SamplingParams,
)

__all__ = [
    "ARModel",
    "ARRequest",
    "AttentionForm",
    "CacheAttention",
    "Constraint",
    "ContentSpan",
    "DecodeCache",
    "FeedbackStrategy",
    "FinishReason",
    "Forward",
    "ForwardBatch",
    "ForwardOutput",
    "KVLayout",
    "ModelRunner",
    "PagedAttention",
    "RandomStream",
    "SamplingParams",
]
