"""Every recogniser behind ``/v1/audio/transcriptions``, asked by OpenAI's client."""

from __future__ import annotations

from pathlib import Path

import pytest
from tiny_transformers import MAKERS, checkpoint, recognisers
from tiny_transformers.serving import ending, served, wav
from tiny_transformers.tiny_whisper import tone
from tiny_transformers.written import LANGUAGE, reference

from omni_transformers.architectures import table

assert recognisers
NAMES = [name for name in MAKERS if table()[name].kind == "recognise"]
ALL = [pytest.param(name, id=name, marks=[] if name == "Wav2Vec2ForCTC" else [pytest.mark.full]) for name in NAMES]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("name", ALL)
async def test_a_recording_is_written_down_as_by_transformers(name: str, tmp_path: Path) -> None:
    samples, folder = tone(1.5), checkpoint(name)
    ids, text = reference(name, samples)
    ends = [2]
    may_not_end = table()[name].form == "seq2seq" and name != "WhisperForConditionalGeneration"
    while may_not_end and ids[-1] not in ends:
        ends.append(ids[-3])
        folder = ending(name, tmp_path / "tiny", *ends)
        ids, text = reference(name, samples, folder)
    language = {"language": LANGUAGE[name]} if name in LANGUAGE else {}
    async with served(folder) as client:
        written = await client.audio.transcriptions.create(model="tiny", file=("a.wav", wav(samples)), **language)
    assert written.text == text.strip() != ""
