"""The Python client: :func:`open` and :func:`open_async` start a pipeline by its name and return a face to chat with it.

What is public is imported when it is first used: ``source`` and ``messages``, which the command line reads too, load no runtime.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from omni_core.client.async_pipe import AsyncPipe, AsyncReplyStream, OpenOptions, open_async
    from omni_core.client.chat_request import MediaPolicy, Recording
    from omni_core.client.open_request import OpenRequest
    from omni_core.client.pipe import Pipe, ReplyStream, open, run
    from omni_core.client.replies import Audio, AudioPiece, Piece, Reply, TextPiece, TranscriptPiece, Usage

_MODULES = {
    "async_pipe": ("AsyncPipe", "AsyncReplyStream", "OpenOptions", "open_async"),
    "chat_request": ("MediaPolicy", "Recording"),
    "open_request": ("OpenRequest",),
    "pipe": ("Pipe", "ReplyStream", "open", "run"),
    "replies": ("Audio", "AudioPiece", "Piece", "Reply", "TextPiece", "TranscriptPiece", "Usage"),
}

__all__ = [
    "AsyncPipe", "AsyncReplyStream", "Audio", "AudioPiece", "MediaPolicy", "OpenOptions", "OpenRequest", "Piece", "Pipe", "Recording",
    "Reply", "ReplyStream", "TextPiece", "TranscriptPiece", "Usage", "open", "open_async", "run",
]  # fmt: skip


if not TYPE_CHECKING:  # or checkers would take any name for one of this module

    def __getattr__(name: str) -> Any:
        from omni_core.references import load

        for module, names in _MODULES.items():
            if name in names:
                return load(f"omni_core.client.{module}:{name}")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
