"""The whole pipeline: conformance, the server, faults."""

from __future__ import annotations

import base64
import io
import json
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import pytest_asyncio
import soundfile
from click.testing import CliRunner
from omni_serve_clients import http_client

from omni_core import AsyncPipe, open_async
from omni_core.api import ConfigError, OmniRequest, TextChunk
from omni_core.cli.main import omni
from omni_kokoro.pipeline import kokoro
from omni_kokoro.tiny import VOICES, write_tiny_checkpoint
from omni_serve import Settings, create_app
from omni_testing.ours.kokoro import PARAMS, TEXTS, SpeechConformance


class TestPipeline(SpeechConformance):
    pass


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipe(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[AsyncPipe]:
    folder = write_tiny_checkpoint(tmp_path_factory.mktemp("kokoro") / "served")
    async with open_async(kokoro(str(folder))) as opened:
        yield opened


def client(pipe: AsyncPipe) -> openai.AsyncOpenAI:
    http = http_client(create_app(pipe, Settings(model="kokoro")))
    return openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http, max_retries=0, timeout=120)


def asked(text: str, voice: str) -> OmniRequest:
    return OmniRequest({"messages": [{"role": "user", "content": text}]}, PARAMS, metadata={"speaker": voice})


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize("voice", ["af_heart", "af_heart(2)+bf_emma", "coral"])
async def test_the_sdk_gets_the_sound_whole_and_as_events(pipe: AsyncPipe, voice: str) -> None:
    meant = "bf_emma" if voice == "coral" else voice
    wanted = (await pipe.submit(asked(TEXTS[0], meant)))["speak"]
    given: Any = {"model": "kokoro", "voice": voice, "input": TEXTS[0], "extra_body": {"phonemes": True, "seed": 3}}
    speech = client(pipe).audio.speech
    whole = await speech.create(**given, response_format="wav")
    samples, rate = soundfile.read(io.BytesIO(whole.content), dtype="float32")
    assert rate == wanted.sample_rate == 24_000
    np.testing.assert_allclose(samples, wanted.samples, atol=1e-4)
    async with speech.with_streaming_response.create(**given, response_format="pcm", stream_format="sse") as answer:
        events = [json.loads(line[6:]) async for line in answer.iter_lines() if line.startswith("data: {")]
    deltas = [base64.b64decode(each["audio"]) for each in events if each["type"] == "speech.audio.delta"]
    assert len(deltas) == 3
    assert b"".join(deltas) == whole.content[44:]
    assert events[-1]["type"] == "speech.audio.done"


@pytest.mark.asyncio(loop_scope="module")
async def test_the_server_lists_voices_and_names_the_nearest(pipe: AsyncPipe) -> None:
    async with httpx2.AsyncClient(
        transport=httpx2.ASGITransport(create_app(pipe, Settings(model="kokoro"))), base_url="http://x"
    ) as http:
        listed = (await http.get("/v1/audio/voices")).json()["data"]
        assert [each["id"] for each in listed] == [*VOICES]
        for voice, message in (("af_hart", "did you mean 'af_heart'"), ("af_heart+x", "no voice is called 'x'")):
            answer = await http.post(
                "/v1/audio/speech", json={"model": "kokoro", "voice": voice, "input": "a", "phonemes": True}
            )
            assert answer.status_code == 400
            error = answer.json()["error"]
            assert message in error["message"]
            assert (error["param"], error["message"][:7]) == ("voice", "voice: ")


@pytest.mark.asyncio(loop_scope="module")
async def test_a_text_that_is_still_written_is_spoken_by_sentence(pipe: AsyncPipe) -> None:
    whole = (await pipe.submit(asked(TEXTS[0], "af_heart")))["speak"]
    request = OmniRequest({"messages": []}, PARAMS, metadata={"speaker": "af_heart"})
    async with pipe.open_request(request) as opened:
        await opened.send(TextChunk(TEXTS[0][:14]))
        outputs = aiter(opened)
        first = (await anext(outputs)).data  # the text has not ended yet
        await opened.send(TextChunk(TEXTS[0][14:]))
        await opened.finish()
        rest = [each.data async for each in outputs]
    assert np.array_equal(rest[-1].samples, whole.samples)
    assert np.array_equal(first.samples, whole.samples[: len(first.samples)])
    assert [each.text for each in rest[-1].words] == TEXTS[0].split()


@pytest.mark.skipif(shutil.which("espeak-ng") is None, reason="espeak-ng is not installed")
@pytest.mark.asyncio(loop_scope="module")
async def test_words_have_times(pipe: AsyncPipe) -> None:
    request = OmniRequest({"messages": [{"role": "user", "content": "Hello there, world."}]})
    assert pipe.config.interface is not None
    assert pipe.config.interface.word_times
    sound = (await pipe.submit(request))["speak"]
    assert [each.text for each in sound.words] == ["Hello", "there", "world"]
    times = [time for each in sound.words for time in (each.start, each.end)]
    assert times == sorted(times)
    assert 0 < times[0] < times[-1] <= len(sound.samples) / sound.sample_rate


def test_a_folder_is_found_by_its_config(tiny: Path, tmp_path: Path) -> None:
    out = tmp_path / "x.wav"
    ran = CliRunner().invoke(omni, ["run", str(tiny), TEXTS[1], "--param", "phonemes=true", "--out", str(out)])
    assert ran.exit_code == 0, ran.output
    assert soundfile.info(out).samplerate == 24_000


def test_a_bad_voice_file_is_an_error_at_the_start(tiny: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(tiny, tmp_path / "bad")
    (folder / "voices" / "af_new.pt").write_bytes(b"nothing")
    ran = CliRunner().invoke(omni, ["run", str(folder), "x"])
    assert "af_new.pt" in str(ran.exception)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"spelling": "espeek"}, "did you mean 'espeak'"), ({"wieghts": "x"}, "did you mean 'weights'")],
)
def test_options_are_checked(tiny: Path, options: Any, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        kokoro(str(tiny), **options)
