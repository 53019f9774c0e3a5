"""Word errors of Whisper tiny.en over 60 spoken sentences, beside faster-whisper with the same weights."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from index_packages import ct2_whisper, whisper
from spoken_sentences import SENTENCES, errors, wav, words

from demo_training.speech.espeak import speak
from omni_core import open_async
from omni_media.api import sound
from omni_transformers.pipeline import transformers as pipeline

RATE = 16_000
SPEAKERS = [("en-us", 150), ("en-us+m3", 140), ("en-us+f3", 160)]


def test_word_errors_are_no_more_than_those_of_faster_whisper(folder: Path) -> None:
    faster_whisper = pytest.importorskip("faster_whisper")
    asked = [
        (text, wav(speak(text, rate=RATE, voice=voice, speed=speed), RATE))
        for voice, speed in SPEAKERS
        for text in SENTENCES
    ]

    async def heard() -> list[str]:
        async with open_async(pipeline(str(whisper(folder))), max_in_flight=len(asked)) as pipe:
            messages = [[{"role": "user", "content": [{"type": "audio", "data": data}]}] for _, data in asked]
            return [reply.text for reply in await asyncio.gather(*map(pipe.chat, messages))]

    recogniser = faster_whisper.WhisperModel(
        str(ct2_whisper(folder)), device="cpu", compute_type="float32", cpu_threads=1
    )
    theirs = [
        "".join(each.text for each in recogniser.transcribe(sound({"data": data}, RATE), beam_size=1, language="en")[0])
        for _, data in asked
    ]
    total = sum(len(words(text)) for text, _ in asked)
    rates = []
    for name, found in (("ours", asyncio.run(heard())), ("faster-whisper", theirs)):
        wrong = sum(errors(words(text), words(other)) for (text, _), other in zip(asked, found, strict=True))
        rates.append(wrong / total)
        print(f"\n{name}: {wrong} of {total} words wrong, {wrong / total:.1%}")
    assert rates[0] <= rates[1] + 0.01
