"""Uploaded voices and consents."""

from __future__ import annotations

import asyncio
import io
import shutil
import threading
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import openai
import pytest
import soundfile
from attrs import evolve
from omni_serve_clients import http_client
from serve_stages import INTERFACE, RATE, tone

from omni_core import AsyncPipe
from omni_core.errors import ConfigError
from omni_serve import Settings, create_app, voice_store
from omni_serve.app import Application
from omni_serve.auth import ANYONE
from omni_serve.encoders import whole
from omni_serve.errors import ApiError
from omni_serve.settings import Limits
from omni_serve.voice_names import apply_voice
from omni_serve.voice_store import VoiceStore

RECORDING = whole("wav", [tone("x")], RATE)


def form(**given: Any) -> dict[str, Any]:
    return {
        "data": {"name": "Anna", "text": "hello", **given},
        "files": {"audio_sample": ("a.wav", RECORDING, "audio/wav")},
    }


@pytest.mark.asyncio(loop_scope="session")
async def test_a_voice_from_upload_to_deletion(client: openai.AsyncOpenAI, http: httpx2.AsyncClient) -> None:
    consent = await client.audio.voice_consents.create(
        name="Anna agrees", language="en-US", recording=("c.wav", RECORDING)
    )
    voice = await client.audio.voices.create(
        name="Anna", audio_sample=("a.wav", RECORDING), consent=consent.id, extra_body={"text": "hello there"}
    )
    assert (voice.object, voice.name, voice.type) == ("audio.voice", "Anna", "audio_sample")
    listed = (await http.get("/v1/audio/voices")).json()["data"]
    assert [each["name"] for each in listed] == ["low", "high", "Anna"]
    for asked in ({"id": voice.id}, "Anna"):
        answer = await client.chat.completions.create(
            model="tones",
            messages=[{"role": "user", "content": "one"}],
            modalities=["text", "audio"],
            audio={"voice": asked, "format": "wav"},  # type: ignore[typeddict-item]
        )
        assert answer.choices[0].message.audio.transcript == "one like:hello there"  # type: ignore[union-attr]
    assert (await http.post("/v1/audio/voices", **form())).status_code == 409
    deleted = await client.audio.voices.delete(voice.id)
    assert (deleted.object, deleted.deleted) == ("audio.voice.deleted", True)
    with pytest.raises(openai.NotFoundError):
        await client.audio.voices.delete(voice.id)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    ("recording", "words"),
    [
        (np.full(RATE, np.nan, np.float32), "is nan"),
        (np.zeros(700, np.float32), "29 ms of sound; at least 50 ms"),
    ],
)
async def test_a_recording_that_cannot_be_spoken_with_is_refused_at_upload(
    pipe: AsyncPipe, tmp_path: Path, recording: Any, words: str
) -> None:
    app = create_app(pipe, Settings(voices_dir=tmp_path))
    app.state.server.interface = evolve(INTERFACE, limits={"min_reference_seconds": 0.05})
    file = io.BytesIO()
    soundfile.write(file, recording, RATE, format="WAV", subtype="FLOAT")
    asked = form(name="bad") | {"files": {"audio_sample": ("a.wav", file.getvalue())}}
    answer = await http_client(app).post("/v1/audio/voices", **asked)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] == "audio_sample"
    assert words in answer.json()["error"]["message"]


@pytest.mark.asyncio(loop_scope="session")
async def test_consents(client: openai.AsyncOpenAI) -> None:
    consents = [
        await client.audio.voice_consents.create(name=f"c{number}", language="de", recording=("c.wav", RECORDING))
        for number in range(3)
    ]
    page = await client.audio.voice_consents.list(limit=2)
    assert [each.name for each in page.data] == ["c2", "c1"]
    assert [each.name async for each in client.audio.voice_consents.list(limit=2)][:3] == ["c2", "c1", "c0"]
    assert (await client.audio.voice_consents.update(consents[0].id, name="other")).name == "other"
    assert (await client.audio.voice_consents.retrieve(consents[0].id)).name == "other"
    for each in consents:
        assert (await client.audio.voice_consents.delete(each.id)).deleted
    with pytest.raises(openai.NotFoundError):
        await client.audio.voice_consents.retrieve(consents[0].id)


@pytest.mark.asyncio(loop_scope="session")
@pytest.mark.parametrize(
    ("given", "param"),
    [
        (form(name="../../etc/passwd"), "name"),
        (form(name=""), "name"),
        (form(name="x" * 65), "name"),
        (form(name="low\x00"), "name"),
        (form(text=""), "text"),
        (form(consent="cons_1"), "consent"),
        ({"data": {"name": "B", "type": "prompt", "prompt": "deep"}}, "type"),
        ({"data": {"name": "B", "text": "x"}, "files": {"other": ("a", b"x")}}, "audio_sample"),
        ({"data": {"name": "B", "text": "x", "audio_sample": "x"}, "files": {}}, "audio_sample"),
        (form(type="built_in"), "type"),
        (form(type="prompt", prompt="deep"), "type"),
        (form(prompt="deep"), "prompt"),
        (form(model="auto"), "model"),
        (form(script_hint="Hello."), "script_hint"),
        ({"json": {"name": "B", "type": "prompt", "prompt": "deep"}}, "type"),
        ({"json": {"name": "B", "prompt": "deep"}}, "prompt"),
        ({"json": {"name": "B", "text": "x"}}, "audio_sample"),
        ({"json": {"name": "B", "type": 1}}, "type"),
        ({"data": {"name": "B", "text": "x"}, "files": {"audio_sample": ("a", b"no sound")}}, "audio_sample"),
        ({"data": {"name": "B", "text": "x"}, "files": {"audio_sample": ("a", b"")}}, "audio_sample"),
    ],
)
async def test_mistakes_are_named(http: httpx2.AsyncClient, given: dict[str, Any], param: str) -> None:
    if not given.get("files") and "data" in given:  # a form of text only, as the SDK sends it
        given = {"files": {name: (None, value) for name, value in given["data"].items()}}
    answer = await http.post("/v1/audio/voices", **given)
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


@pytest.mark.asyncio(loop_scope="session")
async def test_the_sdk_s_two_ways_to_make_a_voice(client: openai.AsyncOpenAI, http: httpx2.AsyncClient) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        await client.audio.voices.create(name="Deep", type="prompt", prompt="A deep voice.", script_hint="Hello.")
    assert caught.value.param == "type"
    consent = await client.audio.voice_consents.create(name="yes", language="en-US", recording=("c.wav", RECORDING))
    voice = await client.audio.voices.create(
        type="audio_sample",
        name="Typed",
        audio_sample=("a.wav", RECORDING),
        consent=consent.id,
        extra_body={"text": "hello"},
    )
    assert (voice.type, voice.prompt) == ("audio_sample", None)
    recording = {"recording": ("c.wav", RECORDING, "audio/wav")}
    for extra, param in (({"names": "x"}, "names"), ({"language": "?"}, "language")):
        data = {"name": "no", "language": "de", **extra}
        answer = await http.post("/v1/audio/voice_consents", data=data, files=recording)
        assert (answer.status_code, answer.json()["error"]["param"]) == (400, param)
    gone = await asyncio.gather(*(http.delete(f"/v1/audio/voices/{voice.id}") for _ in range(5)))
    assert sorted(each.status_code for each in gone) == [200, 404, 404, 404, 404]
    await client.audio.voice_consents.delete(consent.id)


@pytest.mark.asyncio(loop_scope="session")
async def test_recordings_are_read_beside_the_event_loop(
    client: openai.AsyncOpenAI, http: httpx2.AsyncClient, app: Application, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = await http.post("/v1/audio/voices", **form(name="Slow"))
    threads = []
    read = Path.read_bytes

    def read_bytes(path: Path) -> bytes:
        threads.append(threading.current_thread())
        return read(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    speech = {"model": "tones", "input": "one", "voice": "Slow"}
    assert (await http.post("/v1/audio/speech", json=speech)).status_code == 200
    assert threads
    assert threading.main_thread() not in threads
    voice = app.state.server.voices.voices[made.json()["id"]]
    shutil.rmtree(voice.folder)  # another process, or a fault of the disk
    answer = await http.post("/v1/audio/speech", json=speech)
    assert (answer.status_code, answer.json()["error"]["code"]) == (400, "voice_not_found")
    del app.state.server.voices.voices[voice.id]


@pytest.mark.asyncio(loop_scope="session")
async def test_voices_belong_to_the_key_that_has_uploaded_them(
    pipe: AsyncPipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(voice_store, "MOST", 1)
    app = create_app(pipe, Settings(keys={"a": "secret of a", "b": "secret of b"}, voices_dir=tmp_path))
    a, b = (http_client(app, headers={"authorization": f"Bearer secret of {each}"}) for each in "ab")
    operator = http_client(app, headers={"authorization": f"Bearer {app.state.server.keys.add('o', ['admin'])}"})
    twice = await asyncio.gather(*(a.post("/v1/audio/voices", **form()) for _ in range(2)))
    assert sorted(each.status_code for each in twice) in ([200, 403], [200, 409])
    voice = next(each.json() for each in twice if each.status_code == 200)
    assert (await a.post("/v1/audio/voices", **form(name="Berta"))).json()["error"]["code"] == "too_many_voices"
    path, speech = f"/v1/audio/voices/{voice['id']}", {"model": "tones", "input": "one", "voice": "Anna"}
    assert (await b.get(path)).status_code == (await b.delete(path)).status_code == 404
    assert voice["id"] not in (await b.get("/v1/audio/voices")).text
    assert (await b.post("/v1/audio/speech", json=speech)).json()["error"]["code"] == "voice_not_found"
    assert (await a.post("/v1/audio/speech", json=speech)).status_code == 200
    assert (await b.post("/v1/audio/voices", **form())).status_code == 200  # a name is its owner's
    recording = {"recording": ("c.wav", RECORDING, "audio/wav")}
    consent = await a.post("/v1/audio/voice_consents", data={"name": "yes", "language": "de"}, files=recording)
    path_of_consent = f"/v1/audio/voice_consents/{consent.json()['id']}"
    assert (await b.post(path_of_consent, json={"name": "no"})).status_code == 404
    assert (await b.delete(path_of_consent)).status_code == 404
    assert (await b.get("/v1/audio/voice_consents")).json()["data"] == []
    assert (await operator.delete(path)).status_code == 200


@pytest.mark.asyncio(loop_scope="session")
async def test_uploads_are_bounded_and_may_be_off(pipe: AsyncPipe, tmp_path: Path) -> None:
    small = create_app(pipe, Settings(voices_dir=tmp_path, limits=Limits(upload_mib=0.001)))
    async with http_client(small) as http:
        answer = await http.post("/v1/audio/voices", **form())
        assert (answer.status_code, answer.json()["error"]["code"]) == (413, "media_too_large")
    async with http_client(create_app(pipe, Settings())) as http:
        answer = await http.post("/v1/audio/voices", **form())
        assert (answer.status_code, answer.json()["error"]["code"]) == (403, "uploads_off")
    app = create_app(pipe, Settings(voices_dir=tmp_path))
    app.state.server.interface = evolve(INTERFACE, inputs=["text"])
    async with http_client(app) as http:
        answer = await http.post("/v1/audio/voices", **form())
        assert (answer.status_code, answer.json()["error"]["code"]) == (400, "unsupported_operation")


def test_voices_outlive_the_server_and_interrupted_writes_do_not(tmp_path: Path) -> None:
    store = VoiceStore(tmp_path)
    voice = store.add_voice("Anna", b"sound", "hello", None, "mine")
    consent = store.add_consent("yes", "en", b"sound", "mine")
    (tmp_path / ".new-x").mkdir()
    again = VoiceStore(tmp_path)
    assert again.find("Anna") == voice
    assert again.consents == {consent.id: consent}
    assert voice.reference() == {"data": b"sound", "text": "hello"}
    assert not (tmp_path / ".new-x").exists()
    again.remove(voice)
    assert sorted(each.name for each in tmp_path.iterdir()) == [consent.id]
    (consent.folder / "voice.json").write_text("{")
    with pytest.raises(ConfigError, match=r"voice\.json cannot be read"):
        VoiceStore(tmp_path)


@pytest.mark.parametrize("voice", ["low(2)+high", "alloy"])
@pytest.mark.asyncio(loop_scope="session")
async def test_names_that_are_not_listed_reach_a_pipeline_with_open_voices(pipe: AsyncPipe, voice: str) -> None:
    app, metadata = create_app(pipe, Settings()), dict[str, Any]()
    app.state.server.interface = evolve(INTERFACE, voices_open=True)
    apply_voice(app.state.server, ANYONE, voice, {}, metadata, "voice")
    assert metadata == {"speaker": voice}
    app.state.server.interface = evolve(INTERFACE, voices_open=False)
    if voice != "alloy":
        with pytest.raises(ApiError, match="no voice is called"):
            apply_voice(app.state.server, ANYONE, voice, {}, {}, "voice")
