"""A reply on the command line, as it is shown and as JSON, without processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import pytest

from omni_core.cli.reply import receive_reply, reply_document
from omni_core.coordinator import StreamEvent
from omni_core.interface import TEXT, TRANSCRIPTION, Interface
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import TextResult, Transcript, TranscriptChunk, Word


class Pipe:
    def __init__(self, interface: Interface | None, *events: StreamEvent) -> None:
        self.interface, self.events = interface, events

    async def stream(self, request: OmniRequest) -> AsyncIterator[StreamEvent]:
        for each in self.events:
            yield each


class Screen:
    def __init__(self) -> None:
        self.shown = ""

    def text(self, piece: str) -> None:
        self.shown += piece

    def audio(self, seconds: float) -> None: ...


HEARD = Transcript("hello", "en", words=[Word("hello", 0.0, 0.5)], usage={"prompt_tokens": 3})
EVENTS = [
    StreamEvent("listen", TranscriptChunk("hello", " you?"), final=False),
    StreamEvent("listen", HEARD, final=True),
]


@pytest.mark.parametrize("interface", [None, Interface(roles={TRANSCRIPTION: "listen"})])
async def test_a_transcript_is_shown_and_is_in_the_document(interface: Interface | None) -> None:
    screen = Screen()
    reply = await receive_reply(Pipe(interface, *EVENTS), OmniRequest(), screen)
    assert screen.shown == "hello"
    found: dict[str, Any] = reply_document(reply)
    assert (found["text"], found["usage"]) == ("hello", {"prompt_tokens": 3})
    assert found["transcript"]["words"] == [
        {"text": "hello", "start": 0.0, "end": 0.5, "speaker": None, "confidence": None}
    ]


async def test_what_was_heard_is_not_shown_among_the_answer() -> None:
    screen, interface = Screen(), Interface(roles={TRANSCRIPTION: "listen", TEXT: "write"})
    answer = StreamEvent("write", TextResult("fine"), final=True)
    reply = await receive_reply(Pipe(interface, *EVENTS, answer), OmniRequest(), screen)
    assert (screen.shown, reply.text) == ("fine", "fine")
    assert reply_document(reply)["transcript"]["text"] == "hello"
