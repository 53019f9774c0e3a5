"""Recognisers behind the transcription endpoint, and on the command line."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import wave
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
from tiny_transformers import MAKERS, checkpoint, recognisers
from tiny_transformers.driving import replies, running
from tiny_transformers.serving import ending, served, wav
from tiny_transformers.tiny_whisper import hear, tone
from tiny_transformers.written import LANGUAGE, reference

from omni_core.api import AudioChunk, OmniRequest, Transcript, open_async
from omni_transformers.architectures import table
from omni_transformers.pipeline import transformers as pipeline
from omni_transformers.recognise.whisper import create_whisper

assert recognisers
pytestmark = pytest.mark.asyncio(loop_scope="module")


def recorded(samples: np.ndarray) -> bytes:
    """Return samples at 16 kHz as a WAV file."""
    stream = io.BytesIO()
    with wave.open(stream, "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes((samples * 32_767).astype("<i2").tobytes())
    return stream.getvalue()


NAMES = [name for name in MAKERS if table()[name].kind == "recognise"]
ALL = [pytest.param(name, id=name, marks=[] if name == "Wav2Vec2ForCTC" else [pytest.mark.full]) for name in NAMES]

FILE = ("talk.wav", recorded(tone(5.0, 2)))
"""Three windows of the tiny Whisper."""


@pytest_asyncio.fixture(scope="module", loop_scope="module", params=["WhisperForConditionalGeneration"])
async def client(request: pytest.FixtureRequest, forks: None) -> AsyncIterator[openai.AsyncOpenAI]:
    async with served(checkpoint(request.param)) as client:
        yield client


def expected() -> Transcript:
    with wave.open(io.BytesIO(FILE[1])) as file:
        samples = np.frombuffer(file.readframes(file.getnframes()), "<i2").astype(np.float32) / 32_768
    folder = checkpoint("WhisperForConditionalGeneration")
    with running(create_whisper(str(folder))) as scheduler:
        [(_, result)] = replies(scheduler, [hear(samples, timestamps="word")])
    assert isinstance(result, Transcript)
    return result


async def test_a_recording_is_written_down_in_every_form(client: openai.AsyncOpenAI) -> None:
    whole = expected()
    answer = await client.audio.transcriptions.create(model="tiny", file=FILE)
    assert answer.text == whole.text != ""
    text = await client.audio.transcriptions.create(model="tiny", file=FILE, response_format="text")
    assert text == f"{whole.text}\n"
    both = await client.audio.transcriptions.create(
        model="tiny",
        file=FILE,
        response_format="verbose_json",
        timestamp_granularities=["segment", "word"],
    )
    assert (both.text, both.language, both.duration) == (whole.text, whole.language, 5.0)
    assert both.segments is not None
    assert both.words is not None
    assert [(each.text, each.start, each.end, each.tokens) for each in both.segments] == [
        (each.text, each.start, each.end, each.token_ids) for each in whole.segments
    ]
    assert [(each.word, each.start) for each in both.words] == [(each.text, each.start) for each in whole.words]
    stream = await client.audio.transcriptions.create(model="tiny", file=FILE, stream=True)
    events = [each async for each in stream]
    deltas = [each.delta for each in events if each.type == "transcript.text.delta"]
    assert len(deltas) > 1
    assert "".join(deltas) == events[-1].text == whole.text  # type: ignore[union-attr]


async def test_the_request_chooses_language_and_task(client: openai.AsyncOpenAI) -> None:
    german = await client.audio.transcriptions.create(
        model="tiny",
        file=FILE,
        language="de",
        prompt="abc",
        response_format="verbose_json",
        extra_body={"task": "translate"},
    )
    assert german.language == "de"
    with pytest.raises(openai.BadRequestError, match="language: must be one of: de, en, ja, is 'fr'"):
        await client.audio.transcriptions.create(model="tiny", file=FILE, language="fr")


@pytest.mark.full
@pytest.mark.parametrize("client", ["Wav2Vec2ForCTC", "ParakeetForTDT"], indirect=True)
async def test_models_of_other_forms_tell_times_and_stream(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "tiny", "file": FILE}
    both = await client.audio.transcriptions.create(
        **asked, response_format="verbose_json", timestamp_granularities=["segment", "word"]
    )
    assert " ".join(each.word for each in both.words or []) == both.text != ""
    assert " ".join(each.text for each in both.segments or []) == both.text
    stream = await client.audio.transcriptions.create(**asked, stream=True)
    assert [each async for each in stream][-1].text == both.text


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


@pytest.mark.usefixtures("forks")
async def test_a_pipeline_is_spoken_to_while_it_writes() -> None:
    config = pipeline(str(checkpoint("NemotronAsrStreamingForRNNT")))
    assert config.interface is not None
    assert config.interface.input_streams == ["audio"]
    samples = tone(5.0, 1)
    async with open_async(config) as pipe:
        [whole] = (await pipe.submit(hear(samples))).values()
        async with pipe.open_request(OmniRequest({"messages": []}, {"listen": {}})) as request:
            await request.send(AudioChunk(samples[:40_000], 16_000))
            first = await anext(request)
            await request.send(AudioChunk(samples[40_000:], 16_000))
            await request.finish()
            events = [first, *[each async for each in request]]
    assert "".join(each.data.text for each in events if not each.final) == whole.text != ""
    assert events[-1].data == whole


@pytest.mark.full
async def test_a_recording_on_the_command_line() -> None:
    folder = checkpoint("WhisperForConditionalGeneration")
    sound = folder / "talk.wav"
    sound.write_bytes(FILE[1])
    command = [sys.executable, "-m", "omni_core.cli", "run", str(folder), "--audio", str(sound), "--json"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["text"] == expected().text
