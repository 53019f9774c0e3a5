"""Results and partial results for clients, text, audio and images, in one form for every model.

A terminal stage streams :class:`TextChunk`, :class:`AudioChunk` or :class:`ImageChunk` and finishes with a :class:`TextResult`, an
:class:`AudioResult` or an :class:`ImageResult`; any other plain data is allowed too and passes through as it is.
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


@register
@frozen
class ImageChunk:
    """The progress of images: ``step`` of ``steps`` is done. ``pixels``: a preview as in :class:`ImageResult`, if there is one."""

    step: int
    steps: int
    pixels: Any = None


@register
@frozen
class ImageResult:
    """Images of one size, or the frames of a video: uint8 ``pixels`` of shape ``[n, height, width, 3]``, red, green, blue.

    ``frames_per_second`` is that of a video, which a reply has as ``video``; 0: the images are separate. With ``seeds``, one per image,
    they can be made again.
    """

    pixels: Any
    frames_per_second: float = 0.0
    seeds: list[int] = field(factory=list)
    notices: list[str] = field(factory=list)
