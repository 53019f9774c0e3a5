"""A program of a user, which type checkers accept; test_types.py says what they must say about it. It is not run."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import omni_core as omni


def blocking(picture: bytes) -> None:
    with omni.open(
        "demo", options={"processes": "one"}, set={"decode.replicas": 1}, max_in_flight=8, retries=1
    ) as pipe:
        reply = pipe.chat("What is your name?", system="Be brief.", image=picture, temperature=0.5, seed=1)
        assert_type(reply, omni.Reply)
        assert_type(reply.text, str)
        assert_type(reply.usage.completion_tokens, int)
        assert_type(reply.audio.save("x.wav"), Path)
        peak: float = float(reply.audio.samples.max())
        print(peak, reply.outputs["text"], reply.notices[0].upper())
        for piece in pipe.chat([{"role": "user", "content": "Hello"}], stream=True):
            if isinstance(piece, omni.TextPiece):
                assert_type(piece.text, str)
            elif isinstance(piece, omni.AudioPiece):
                assert_type(piece.seconds, float)
        spoken = pipe.speak("Good morning", voice=omni.Recording("me.wav", "what is said in it"))
        assert_type(spoken, omni.Reply)
        results = pipe.submit(omni.OmniRequest({"messages": []}))
        print(results, pipe.health(), pipe.statistics())


async def asynchronous() -> str:
    policy = omni.MediaPolicy(allow_paths=False, allow_urls=True)
    async with omni.open_async("qwen3-omni", model=Path("folder"), config={"retries": 1}, media=policy) as pipe:
        try:
            reply = await pipe.chat("Hello", voice="anna", timeout=3.0)
        except omni.OverloadedError as error:
            assert_type(error.retry_after, float)
            return ""
        except omni.RequestFailedError as error:
            assert_type(error.stage, str | None)
            return error.error_type
        stream = pipe.chat("Hello", stream=True)
        texts = [piece.text async for piece in stream if isinstance(piece, omni.TextPiece)]
        assert_type(stream.reply, omni.Reply)
        return reply.text + "".join(texts)
