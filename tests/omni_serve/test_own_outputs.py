"""The speech of the server goes back into it: every format, each way, into transcriptions and voices."""

from __future__ import annotations

import base64
import json

import httpx2
import pytest

from omni_media.api import sound
from omni_serve.encoders import PCM_RATE, wav_header

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("form", ["mp3", "opus", "aac", "flac", "wav", "pcm"])
@pytest.mark.parametrize("way", ["audio", "sse"])
async def test_speech_goes_back(http: httpx2.AsyncClient, form: str, way: str) -> None:
    asked = {"model": "tones", "input": "one two", "response_format": form, "stream_format": way}
    spoken = (await http.post("/v1/audio/speech", json=asked)).content
    if way == "sse":
        events = [json.loads(line[6:]) for line in spoken.decode().splitlines() if line.startswith("data: {")]
        spoken = b"".join(base64.b64decode(each["audio"]) for each in events if "audio" in each)
    plain = (
        await http.post("/v1/audio/speech", json=asked | {"response_format": "pcm", "stream_format": "audio"})
    ).content
    seconds = len(plain) / 2 / PCM_RATE
    name = f"speech.{form}"
    verbose = {"model": "tones", "response_format": "verbose_json"}
    heard = await http.post("/v1/audio/transcriptions", data=verbose, files={"file": (name, spoken)})
    assert heard.status_code == 200, heard.text
    assert heard.json()["duration"] == pytest.approx(seconds, abs=0.1)
    decoded = sound({"data": wav_header(PCM_RATE, len(spoken)) + spoken if form == "pcm" else spoken}, PCM_RATE)
    assert len(decoded) / PCM_RATE == pytest.approx(seconds, abs=0.1)
    voice = {"name": f"of {form} {way}", "text": "one two"}
    kept = await http.post("/v1/audio/voices", data=voice, files={"audio_sample": (name, spoken)})
    assert kept.status_code == 200, kept.text
    assert (await http.delete(f"/v1/audio/voices/{kept.json()['id']}")).status_code == 200
