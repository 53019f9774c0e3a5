"""Checks how much of a recording a processor has taken: none is cut without a word."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from omni_core.api import InvalidRequestError

_MASKS = ("feature_attention_mask", "input_features_mask", "audio_attention_mask")
"""Masks of the frames of sound that are sound, not padding."""


def longest(processor: Any) -> float | None:
    """Return the seconds of sound that a processor takes of a recording; ``None``: it does not say."""
    own = getattr(processor, "max_audio_len", None)
    return float(own) if isinstance(own, int | float) else None


def check_heard(processor: Any, inputs: Any, sounds: Sequence[Any]) -> None:
    """Check that the frames cover the recordings.

    Raises:
        InvalidRequestError: the processor has cut one.
    """
    part = getattr(processor, "feature_extractor", None) or getattr(processor, "audio_processor", None)
    hop, rate = getattr(part, "hop_length", None), getattr(part, "sampling_rate", None)
    if not sounds or not hop or not rate:
        return
    heard = longest(processor)
    cut = heard is not None and any(len(each) > heard * rate for each in sounds)
    mask = next((inputs[name] for name in _MASKS if name in inputs), None)
    if mask is not None and not cut:
        taken = int(mask.sum()) * hop
        cut = sum(map(len, sounds)) - taken > hop * (1 + len(sounds))
        heard = getattr(part, "chunk_length", None) or taken / rate / len(sounds)
    if cut:
        raise InvalidRequestError(
            f"messages: {max(map(len, sounds)) / rate:.1f} s of sound; this model hears the first {heard:.3g} s of a recording: "
            "send shorter ones"
        )
