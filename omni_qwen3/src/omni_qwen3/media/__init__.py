"""Media files to arrays: decoded, bounded and checked before any network sees them."""

from omni_qwen3.media.source import Limits, MediaSource

__all__ = ["Limits", "MediaSource"]
