"""Omni serves models that take text, images, audio and video and answer with text and speech.

::

    import omni_core as omni

    with omni.open("demo") as pipe:
        print(pipe.chat("What is your name?").text)

This package is the core: contracts for plugins, the pipeline runtime, the Python client and the command line. It knows no model, no
relay, no engine and no kernel. Importing it imports neither torch nor transformers, and the runtime only when a pipeline is opened.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from omni_core.errors import (
    ConfigError,
    InvalidRequestError,
    OmniError,
    OverloadedError,
    PluginError,
    RequestAbortedError,
    RequestFailedError,
    RequestTimeoutError,
    StartupError,
)

if TYPE_CHECKING:
    from omni_core.client import AsyncPipe, AsyncReplyStream, MediaPolicy, Pipe, Recording, open, open_async  # noqa: I001
    from omni_core.client import Audio, AudioPiece, Reply, ReplyStream, TextPiece, TranscriptPiece, Usage
    from omni_core.protocol.messages import OmniRequest

__all__ = [
    "AsyncPipe", "AsyncReplyStream", "Audio", "AudioPiece", "ConfigError", "InvalidRequestError", "MediaPolicy", "OmniError",
    "OmniRequest", "OverloadedError", "Pipe", "PluginError", "Recording", "Reply", "ReplyStream", "RequestAbortedError",
    "RequestFailedError", "RequestTimeoutError", "StartupError", "TextPiece", "TranscriptPiece", "Usage",
    "open", "open_async",
]  # fmt: skip

__version__ = "0.1.0"


if not TYPE_CHECKING:  # or checkers would take any name for one of this module

    def __getattr__(name: str) -> Any:
        from omni_core.elsewhere import NAMES
        from omni_core.references import load

        if name in NAMES:
            raise ImportError(f"cannot import {name!r} from {__name__!r}; here it is {NAMES[name]}")
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return load(f"omni_core.{'protocol.messages' if name == 'OmniRequest' else 'client'}:{name}")
