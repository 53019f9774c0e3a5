"""Decodes media files into arrays, bounded and checked before any network sees them."""

from omni_qwen3.media.source import Limits, MediaSource

__all__ = ["Limits", "MediaSource"]
