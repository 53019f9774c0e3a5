"""Kokoro's released file of 8 bits speaks English so that Whisper tiny.en writes it down."""

from __future__ import annotations

import asyncio
import shutil
from pathlib import Path

import pytest
from index_packages import kokoro, whisper
from spoken_sentences import SENTENCES, errors, wav, words

from omni_core import open_async
from omni_kokoro.pipeline import kokoro as voice
from omni_transformers.pipeline import transformers as pipeline

pytestmark = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")


def test_twelve_sentences_are_heard(folder: Path) -> None:
    """The voices are Japanese, and three quarters of the words are right nevertheless."""
    texts = SENTENCES[:12]

    async def spoken_and_heard() -> list[str]:
        async with open_async(voice(str(kokoro(folder)))) as pipe:
            asked = [pipe.chat(each, voice="jf_alpha", speech={"language": "en-us"}) for each in texts]
            sounds = [reply.audio for reply in await asyncio.gather(*asked)]
        async with open_async(pipeline(str(whisper(folder)))) as pipe:
            parts = [{"type": "audio", "data": wav(each.samples, each.sample_rate)} for each in sounds]
            heard = [pipe.chat([{"role": "user", "content": [part]}]) for part in parts]
            return [reply.text for reply in await asyncio.gather(*heard)]

    found = asyncio.run(spoken_and_heard())
    for text, other in zip(texts, found, strict=True):
        print(f"\n{text} -> {other.strip()}")
    wrong = sum(errors(words(text), words(other)) for text, other in zip(texts, found, strict=True))
    total = sum(len(words(text)) for text in texts)
    print(f"{wrong} of {total} words wrong, {wrong / total:.1%}")
    assert wrong <= total / 4
