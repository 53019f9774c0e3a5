"""Results and partial results for clients, text and audio, in one form for every model.

A terminal stage streams :class:`TextChunk` or :class:`AudioChunk` and finishes with a :class:`TextResult` or an
:class:`AudioResult`; any other plain data is allowed too and passes through as it is.
"""

from __future__ import annotations

from typing import Any

from attrs import field, frozen

from omni_core.protocol.registry import register


@register
@frozen
class TextChunk:
    """A piece of text as it was made."""

    text: str


@register
@frozen
class AudioChunk:
    """A piece of mono audio: ``samples`` is float32, shape ``[n]``, in [-1, 1]; ``sample_rate`` in Hz."""

    samples: Any
    sample_rate: int


@register
@frozen
class TextResult:
    """The whole text. ``token_ids`` are the generated ids; ``finish_reason`` is ``stop``, ``length`` or ``abort``."""

    text: str
    token_ids: list[int] = field(factory=list)
    finish_reason: str = "stop"
    usage: dict[str, int] = field(factory=dict)
    notices: list[str] = field(factory=list)


@register
@frozen
class AudioResult:
    """The whole audio: float32 ``samples`` of shape ``[n]``, ``sample_rate`` in Hz; ``codes`` are the codec frames if asked for."""

    samples: Any
    sample_rate: int
    codes: Any = None
    notices: list[str] = field(factory=list)
