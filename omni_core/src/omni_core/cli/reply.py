"""One reply of a pipeline as it comes: its text to a display, its speech to whatever takes samples, all of it as JSON at its end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from attrs import asdict

from omni_core.client import AudioPiece, Reply, TextPiece
from omni_core.client.replies import Collector
from omni_core.interface import TEXT
from omni_core.protocol.messages import OmniRequest

_SHOWN = ("text", "audio", "image", "video", "transcript")
"""Outputs that are shown as what they are."""


class Screen(Protocol):
    """The display of a reply."""

    def text(self, piece: str) -> None:
        """Show a piece of text."""

    def audio(self, seconds: float) -> None:
        """Show the seconds of speech so far."""


class SpeechSink(Protocol):
    """The destination of speech."""

    def write(self, samples: Any, sample_rate: int) -> None:
        """Take float32 samples in [-1, 1], shape ``[n]``."""


async def receive_reply(pipe: Any, request: OmniRequest, screen: Screen, sinks: Sequence[SpeechSink] = ()) -> Reply:
    """Send one request and show its reply as it comes; every piece of speech goes to all of ``sinks``.

    ``pipe`` has the ``interface`` and the ``stream`` of an :class:`~omni_core.client.AsyncPipe`.
    """
    collector, seconds = Collector("", pipe.interface), 0.0
    answers = pipe.interface is not None and TEXT in pipe.interface.roles
    async for event in pipe.stream(request):
        for piece in collector.add(event):
            if isinstance(piece, AudioPiece):
                for sink in sinks:
                    sink.write(piece.samples, piece.sample_rate)
                seconds += piece.seconds
                screen.audio(seconds)
            elif isinstance(piece, TextPiece) or not answers:
                screen.text(piece.text)
    reply = collector.reply()
    for name in reply.outputs.keys() - _SHOWN:
        screen.text(f"{reply.outputs[name]}\n")
    return reply


def seconds_of(reply: Reply) -> float | None:
    """Return the length of a reply's speech; ``None`` if none was wanted."""
    return reply.audio.seconds if reply.audio or "audio" in reply.outputs else None


def reply_document(reply: Reply, audio_file: str | None = None) -> dict[str, Any]:
    """Return a reply as ``--json`` prints it."""
    others = {name: data for name, data in reply.outputs.items() if name not in _SHOWN}
    if reply.transcript is not None:
        others["transcript"] = asdict(reply.transcript)
    return {
        "text": reply.text,
        **({"reasoning": reply.reasoning} if reply.reasoning else {}),
        "audio_seconds": seconds_of(reply),
        "audio_file": audio_file,
        "finish_reason": reply.finish_reason,
        "usage": getattr(reply.outputs.get("text", reply.transcript), "usage", {}),
        "notices": reply.notices,
        **others,
    }
