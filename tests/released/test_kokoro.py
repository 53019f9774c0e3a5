"""Kokoro's released file of 8 bits speaks English so that two recognisers write it down; what that costs beside onnxruntime alone."""

from __future__ import annotations

import asyncio
import shutil
import time
from pathlib import Path

import numpy as np
import onnxruntime
import psutil
import pytest
import soxr
from index_packages import kokoro, other_recogniser, whisper
from spoken_sentences import SENTENCES, errors, wav, words

from omni_core import open_async
from omni_core.protocol.outputs import AudioResult
from omni_kokoro.config import read_config
from omni_kokoro.interface import RATE
from omni_kokoro.languages import language_of
from omni_kokoro.pipeline import kokoro as voice
from omni_kokoro.spelling.espeak import Espeak
from omni_kokoro.spelling.tokens import known, phonemes_of
from omni_kokoro.voices import Voices
from omni_transformers.pipeline import transformers as pipeline

pytestmark = pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
TEXTS = SENTENCES[:12]
SPEAKER = "jf_alpha"


def test_twelve_sentences_are_heard(folder: Path) -> None:
    """The voices are Japanese; Whisper tiny.en hears three quarters of the words right nevertheless, faster-whisper's base two thirds."""

    async def spoken() -> tuple[list[AudioResult], float]:
        async with open_async(voice(str(kokoro(folder)))) as pipe:
            before = cpu()
            asked = [pipe.chat(each, voice=SPEAKER, speech={"language": "en-us"}) for each in TEXTS]
            return [reply.audio for reply in await asyncio.gather(*asked)], cpu() - before

    async def heard(sounds: list[AudioResult]) -> list[str]:
        async with open_async(pipeline(str(whisper(folder)))) as pipe:
            parts = [{"type": "audio", "data": wav(each.samples, each.sample_rate)} for each in sounds]
            asked = [pipe.chat([{"role": "user", "content": [part]}]) for part in parts]
            return [reply.text for reply in await asyncio.gather(*asked)]

    sounds, seconds = asyncio.run(spoken())
    other = other_recogniser(folder)
    found = {
        "Whisper tiny.en": asyncio.run(heard(sounds)),
        "Whisper base": [other(soxr.resample(each.samples, each.sample_rate, 16_000)) for each in sounds],
    }
    for text, *both in zip(TEXTS, *found.values(), strict=True):
        print(f"\n{text} -> {' -> '.join(each.strip() for each in both)}", end="")
    total = sum(len(words(text)) for text in TEXTS)
    wrong = {
        name: sum(errors(words(text), words(each)) for text, each in zip(TEXTS, texts, strict=True))
        for name, texts in found.items()
    }
    print("\n\n| 12 sentences of Kokoro in 8 bits | |\n|---|---|")
    for name, count in wrong.items():
        print(f"| words that {name} hears wrong | {count} of {total}, {count / total:.1%} |")
    length = sum(len(each.samples) / each.sample_rate for each in sounds)
    print(
        f"| seconds of CPU for a second of sound | {seconds / length:.2f} |\n| onnxruntime alone | {alone(folder):.2f} |"
    )
    assert wrong["Whisper tiny.en"] <= total / 4
    assert wrong["Whisper base"] <= total / 3


def cpu() -> float:
    """Return the seconds of CPU that this process and its children have used."""
    each = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return sum(sum(process.cpu_times()[:2]) for process in each)


def alone(folder: Path) -> float:
    """Return the seconds of CPU that onnxruntime takes for a second of sound of the same sentences, from phonemes on."""
    made, options = kokoro(folder), onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    session = onnxruntime.InferenceSession(str(made / "model.onnx"), options, providers=["CPUExecutionProvider"])
    config = read_config(made)
    voices, spell = Voices(made, None, 2 * config.style), Espeak(language_of(SPEAKER, "en-us"))
    ids_of = next(each.name for each in session.get_inputs() if each.name not in ("style", "speed"))
    inputs = []
    for text in TEXTS:
        ids = [config.vocabulary[each] for each in phonemes_of(known(spell(text), config.vocabulary)[0])]
        style = voices.style(voices.named(SPEAKER), len(ids))[None]
        inputs.append({ids_of: np.array([[0, *ids, 0]]), "style": style, "speed": np.ones(1, np.float32)})
    begin = time.process_time()
    length = sum(session.run(None, each)[0].size for each in inputs) / RATE
    return (time.process_time() - begin) / length
