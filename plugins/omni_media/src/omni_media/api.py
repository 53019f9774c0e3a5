"""Public names for stages that read media: sound, pictures and frames of content parts, decoded and checked.

Each is imported when it is first asked for, so that the light module of a plugin stays light. ``docs/media.md`` is the guide.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from omni_core.api import exports

if TYPE_CHECKING:
    from omni_media.forward import forward_sound, reads_forward, sound_pieces
    from omni_media.frames import Frames, Video, frames
    from omni_media.images import images
    from omni_media.sound import Samples, sound
    from omni_media.source import LIMITS, Fits, Limits, MediaSource, Spent

__all__ = [
    "LIMITS",
    "Fits",
    "Frames",
    "Limits",
    "MediaSource",
    "Samples",
    "Spent",
    "Video",
    "forward_sound",
    "frames",
    "images",
    "reads_forward",
    "sound",
    "sound_pieces",
]

_HOMES = {
    "omni_media.forward": "forward_sound reads_forward sound_pieces",
    "omni_media.frames": "Frames Video frames",
    "omni_media.images": "images",
    "omni_media.sound": "Samples sound",
    "omni_media.source": "LIMITS Fits Limits MediaSource Spent",
}

if not TYPE_CHECKING:  # or checkers would take any name for one of this module
    __getattr__ = exports(__name__, _HOMES)
