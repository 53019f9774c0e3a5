"""Models that speak, through ``/v1/audio/speech`` and OpenAI's client, and through the command line."""

from __future__ import annotations

import base64
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
from click.testing import CliRunner
from tiny_transformers import checkpoint, frame_recognisers, speakers, speakers_by_frame
from tiny_transformers.heard import HEARD
from tiny_transformers.serving import served

from omni_core.cli.main import omni
from omni_transformers.speak.declaration import SPEAKERS

assert frame_recognisers and speakers and speakers_by_frame  # noqa: PT018
ALL = [pytest.param(name, marks=() if name == "VitsModel" else pytest.mark.full) for name in SPEAKERS]


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("forks")
@pytest.mark.parametrize("architecture", ALL)
async def test_the_sdk_gets_the_sound_as_wav_and_as_pcm(architecture: str) -> None:
    folder = checkpoint(architecture)
    async with served(folder) as client:
        asked: Any = {"model": "tiny", "voice": "default", "input": "Hello there.", "extra_body": {"seed": 3}}
        wav = await client.audio.speech.create(**asked, response_format="wav")
        pcm = await client.audio.speech.create(**asked, response_format="pcm")
    samples, rate = soundfile.read(io.BytesIO(wav.content), dtype="float32")
    [wanted] = HEARD[architecture](folder, ["Hello there."], 3)
    assert len(samples) == len(wanted)
    np.testing.assert_allclose(samples, wanted.clip(-1, 1), atol=2e-4)
    if rate == 24_000:
        assert pcm.content == wav.content[44:]
    assert len(pcm.content) / 2 == pytest.approx(len(samples) * 24_000 / rate, abs=2)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.usefixtures("forks")
async def test_the_sdk_gets_the_words_of_a_voice_that_does_not_know_them() -> None:
    given: dict[str, Any] = {"model": "tiny", "voice": "0", "input": "One, two. And three!", "response_format": "pcm"}
    extra: dict[str, Any] = {"seed": 3, "max_new_tokens": 20}
    async with served(checkpoint("CsmForConditionalGeneration"), aligner=str(checkpoint("Wav2Vec2ForCTC"))) as client:
        asked = {**extra, "timestamps": "word"}
        told = (await client.audio.speech.create(**given, extra_body=asked)).response.json()
        plain = await client.audio.speech.create(**given, extra_body=extra)
        async with client.audio.speech.with_streaming_response.create(
            **given, stream_format="sse", extra_body=asked
        ) as answer:
            events = [json.loads(line[6:]) async for line in answer.iter_lines() if line.startswith("data: ")]
    assert base64.b64decode(told["audio"]) == plain.content
    assert [each["word"] for each in told["words"]] == ["One,", "two.", "And", "three!"]
    at = [time for each in told["words"] for time in (each["start"], each["end"])]
    assert at == sorted(at)
    assert 0 <= at[0] < at[-1] <= told["duration"] == pytest.approx(1.6, abs=0.01)
    assert [each["words"] for each in events if "words" in each] == [told["words"]]


@pytest.mark.full
def test_the_command_line_writes_the_sound(tmp_path: Path) -> None:
    folder, out = checkpoint("VitsModel"), tmp_path / "x.wav"
    ran = CliRunner().invoke(omni, ["run", str(folder), "Hello there.", "--seed", "3", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    [wanted] = HEARD["VitsModel"](folder, ["Hello there."], 3)
    np.testing.assert_allclose(soundfile.read(out, dtype="float32")[0], wanted.clip(-1, 1), atol=2e-4)
