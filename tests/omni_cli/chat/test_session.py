"""A chat without a terminal: its commands, replies and speech, with a client that answers at once."""

from __future__ import annotations

import asyncio
import io
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from omni_cli.chat.numbered_files import numbered_files
from omni_cli.chat.screen import Screen
from omni_cli.chat.session import Session, no_recordings
from omni_cli.request.generation import Generation
from omni_core.coordinator import StreamEvent
from omni_core.errors import InvalidRequestError
from omni_core.interface import Interface, Parameter
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioChunk, AudioResult, TextChunk, TextResult

INTERFACE = Interface(
    inputs=["text", "image"],
    outputs=["text", "audio"],
    metadata=[Parameter("speaker", "string", "the voice", "ethan", choices=["chelsie", "ethan"])],
    voices=["chelsie", "ethan"],
)


class Echo:
    """Says the last message backwards, and a tone."""

    interface = INTERFACE

    def __init__(self) -> None:
        self.requests: list[OmniRequest] = []

    async def stream(self, request: OmniRequest) -> AsyncIterator[StreamEvent]:
        self.requests.append(request)
        text = " ".join(part.get("text", part["type"]) for part in request.inputs["messages"][-1]["content"])
        if text == "bad":
            raise InvalidRequestError("messages: no")
        if text == "long":
            yield StreamEvent("text", TextChunk("begun "), final=False)
            await asyncio.sleep(60)
        yield StreamEvent("text", TextChunk(text[::-1]), final=False)
        yield StreamEvent("text", TextResult(text[::-1], notices=["a notice"]), final=True)
        tone = np.full(800, 0.5, np.float32)
        yield StreamEvent("sound", AudioChunk(tone, 8000), final=False)
        yield StreamEvent("sound", AudioResult(tone, 8000), final=True)


class Chat:
    """A session and what it prints."""

    def __init__(self, **options: Any) -> None:
        self.client = Echo()
        self.output = io.StringIO()
        console = Console(file=self.output, width=200, force_terminal=False)
        self.session = Session(self.client, INTERFACE, Generation(), Screen(console), **options)

    async def say(self, *lines: str) -> str:
        """Return what is printed for these lines."""
        self.output.truncate(0)
        self.output.seek(0)
        for line in lines:
            assert await self.session.handle(line)
        return self.output.getvalue()


async def test_a_reply_and_its_notices() -> None:
    chat = Chat()
    shown = await chat.say("hello")
    assert shown.startswith("olleh\na notice\n0.10 s of speech, neither played nor saved: --play")
    assert "neither" not in await chat.say("hello"), "it is said once"
    assert [len(request.inputs["messages"]) for request in chat.client.requests] == [1, 3]


@pytest.mark.parametrize("line", ["/quit", "quit", " exit ", "/exit"])
async def test_leaving(line: str) -> None:
    assert not await Chat().session.handle(line)


async def test_an_error_leaves_the_chat_as_it_was() -> None:
    chat = Chat()
    assert "Error: messages: no" in await chat.say("bad")
    await chat.say("hello")
    assert len(chat.client.requests[-1].inputs["messages"]) == 1


async def test_commands_change_the_next_request(tmp_path: Path) -> None:
    picture = tmp_path / "my red.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    chat = Chat()
    await chat.say("/system be kind", "/voice CHELSIE", f'/image "{picture}"')
    assert chat.session.attached() == ["my red.png"]
    await chat.say("what?")
    request = chat.client.requests[-1]
    assert request.metadata == {"speaker": "chelsie"}
    assert [message["role"] for message in request.inputs["messages"]] == ["system", "user"]
    assert request.inputs["messages"][1]["content"][0] == {"type": "image", "path": str(picture)}
    await chat.say("/reset", "/system", f"'{picture}'", "again")
    assert [len(message["content"]) for message in chat.client.requests[-1].inputs["messages"]] == [2]
    await chat.say("/retry")
    assert chat.client.requests[-1].inputs == chat.client.requests[-2].inputs


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("/sysetm x", "no such command '/sysetm'; did you mean '/system'?"),
        ("/voice ethn", "no such voice 'ethn'; did you mean 'ethan'?"),
        ("/voice", "voice: ethan; there are: chelsie, ethan"),
        ("/image", "/image needs a file"),
        ("/image nowhere.png", "no such file: nowhere.png"),
        (f"/image {__file__}", "is no image: it is text"),
        ("/image 'x.png", "a quotation mark is not closed"),
        ("/audio x.wav", "takes no audio; it takes: text, image"),
        ("/retry", "there is no message to try again"),
        ("/retry now", "/retry takes nothing after it"),
        ("/save", "/save needs one file"),
        ("/save x.wav", "there is no speech to save"),
        ("/save /nowhere/x.md", "No such file"),
        ("/save x.mp3", "there is no speech to save"),
        ("/save x.gif", "x.gif: speech is saved as .wav, .mp3"),
        ("/help", "/voice [NAME]"),
    ],
)
async def test_wrong_lines_are_explained(line: str, words: str) -> None:
    chat = Chat()
    assert words in await chat.say(line)
    assert not chat.client.requests


async def test_speech_is_numbered_by_turn_and_nothing_is_overwritten(tmp_path: Path) -> None:
    (tmp_path / "reply-2.wav").write_bytes(b"mine")
    chat = Chat(files=numbered_files(tmp_path / "reply.wav"))
    shown = await chat.say("one", "two", "three")
    assert [path.name for path in sorted(tmp_path.iterdir())] == [f"reply-{n}.wav" for n in (1, 2, 3, 4)]
    assert (tmp_path / "reply-2.wav").read_bytes() == b"mine"
    assert f"0.10 s of speech in {tmp_path / 'reply-3.wav'}" in shown
    with wave.open(str(tmp_path / "reply-4.wav")) as file:
        assert (file.getframerate(), file.getnframes()) == (8000, 800)


async def test_saving(tmp_path: Path) -> None:
    chat = Chat()
    await chat.say("hello", f"/save {tmp_path}/my chat.md", f"/save {tmp_path}/a.wav")
    assert (tmp_path / "my chat.md").read_text() == "**user**: hello\n\n**assistant**: olleh\n"
    with wave.open(str(tmp_path / "a.wav")) as file:
        assert file.getnframes() == 800
    await chat.say(f"/save {tmp_path}/a.flac")
    assert (tmp_path / "a.flac").read_bytes().startswith(b"fLaC")
    assert "exists; choose another name" in await chat.say(f"/save {tmp_path}/a.wav")


async def test_a_cancelled_chat_ends_within_a_reply() -> None:
    chat = Chat()
    task = asyncio.ensure_future(chat.session.handle("long"))
    while not chat.client.requests:
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert "(reply ended)" not in chat.output.getvalue()


async def test_a_pipeline_that_hears_nothing_is_not_spoken_to() -> None:
    chat = Chat()
    assert "this pipeline takes no audio; it takes: text, image" in await chat.say("/mic")
    assert no_recordings(None) == no_recordings(Interface(inputs=["text", "audio"])) == ""
