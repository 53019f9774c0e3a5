"""The language between processes: requests, payloads and control messages, and the codec that makes bytes of them.

Every class that travels is registered with the codec where it is defined; nothing is pickled. Tensors are handled in
:mod:`omni_core.protocol.tensors` alone, the only module of the core that imports torch.
"""

from omni_core.protocol.messages import ErrorInfo, OmniRequest, StagePayload
from omni_core.protocol.outputs import (
    AudioChunk,
    AudioResult,
    ImageChunk,
    ImageResult,
    ReasoningChunk,
    Segment,
    TextChunk,
    TextResult,
    TokenLogprob,
    Transcript,
    TranscriptChunk,
    Word,
)
from omni_core.protocol.registry import register

__all__ = [
    "AudioChunk",
    "AudioResult",
    "ErrorInfo",
    "ImageChunk",
    "ImageResult",
    "OmniRequest",
    "Segment",
    "StagePayload",
    "ReasoningChunk",
    "TextChunk",
    "TextResult",
    "TokenLogprob",
    "Transcript",
    "TranscriptChunk",
    "Word",
    "register",
]
