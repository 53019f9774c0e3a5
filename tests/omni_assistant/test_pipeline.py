"""The assistant of scripted parts: what reaches which part, what it offers, and the parts that it refuses."""

from __future__ import annotations

import asyncio
import io
import json
import os
import signal
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import assistant_parts as parts
import numpy as np
import openai
import pytest
import pytest_asyncio
import soundfile
from attrs import evolve
from omni_serve_clients import http_client, socket_to
from realtime_events import append, silence, user_text, voice

from omni_assistant.pipeline import NO_MODEL, assistant
from omni_core.api import (
    AsyncPipe,
    AudioChunk,
    ConfigError,
    EndpointsConfig,
    Interface,
    InvalidRequestError,
    OmniRequest,
    PipelineConfig,
    RequestFailedError,
    RestartConfig,
    TextChunk,
    Transcript,
    TranscriptChunk,
    open_async,
)

pytestmark = pytest.mark.asyncio(loop_scope="module")
pytest.importorskip("omni_serve")  # reads calls of tools
from omni_serve import Settings, create_app  # noqa: E402
from omni_serve.encoders import whole  # noqa: E402


def config(folder: str | Path, **options: Any) -> PipelineConfig:
    given = {"asr": parts.recogniser(), "llm": parts.writer(), "tts": parts.voice(), **options}
    return evolve(assistant(NO_MODEL, **given), endpoints=EndpointsConfig(str(folder)))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def pipe() -> AsyncIterator[AsyncPipe]:
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        often = evolve(config(folder), restart=RestartConfig(limit=100, backoff=0.0))
        async with asyncio.timeout(200), open_async(often) as pipe:
            yield pipe


def heard(text: str) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "audio", "data": text.encode()}]}


def asked(*messages: Any, **fields: Any) -> OmniRequest:
    said = [{"role": "user", "content": each} if isinstance(each, str) else each for each in messages]
    return OmniRequest({"messages": said, **fields.pop("inputs", {})}, timeout=20, **fields)


def given_to_llm(text: str) -> Any:
    """Return what the language model says that it was given."""
    return json.loads(text.removeprefix("You said. ").removesuffix(" Good bye."))


async def test_a_recording_is_answered_in_text_and_sound(pipe: AsyncPipe) -> None:
    found = await pipe.submit(asked(heard("how are you")))
    text = found["llm-answer"].text
    assert given_to_llm(text) == {"messages": [["user", "how are you"]]}
    assert parts.spoken(found["tts-say"].samples) == text
    assert found.keys() == {"llm-answer", "tts-say"}


async def test_the_language_model_gets_the_conversation(pipe: AsyncPipe) -> None:
    history = [{"role": "system", "content": "Be brief."}, heard("one"), {"role": "assistant", "content": "Yes?"}]
    tools = [{"name": "look"}]
    found = await pipe.submit(asked(*history, heard("two"), inputs={"tools": tools}, modalities=["text"]))
    conversation = [["system", "Be brief."], ["user", "one"], ["assistant", "Yes?"], ["user", "two"]]
    assert given_to_llm(found["llm-answer"].text) == {"messages": conversation, "tools": tools}
    found = await pipe.submit(asked(*history, heard("two"), "and three", modalities=["text"]))
    assert given_to_llm(found["llm-answer"].text)["messages"] == [*conversation, ["user", "and three"]]


async def test_each_part_gets_its_parameters_and_computes_only_what_is_wanted(pipe: AsyncPipe) -> None:
    async def completed() -> dict[str, float]:
        stages = {name: each for one in (await pipe.statistics()).values() for name, each in one.items()}
        return {name: stages[name]["completed"] for name in ("asr-listen", "llm-answer", "tts-say")}

    before = await completed()
    found = await pipe.submit(
        asked(heard("hi"), params={"listen": {"language": "de"}, "shout": True}, modalities=["text"])
    )
    assert "HI DE" in found["llm-answer"].text
    found = await pipe.submit(asked(heard("hi"), modalities=["transcript"], params={"listen": {"language": "de"}}))
    assert found == {"asr-listen": Transcript("hi de")}
    found = await pipe.submit(asked("hi", metadata={"speaker": "low"}, modalities=["audio"]))
    assert np.all(found["tts-say"].samples < 0)
    assert {name: count - before[name] for name, count in (await completed()).items()} == {
        "asr-listen": 2, "llm-answer": 2, "tts-say": 1,
    }  # fmt: skip


async def test_a_given_text_is_spoken_and_no_other_part_is_asked(pipe: AsyncPipe) -> None:
    async def completed() -> list[float]:
        stages = {name: each for one in (await pipe.statistics()).values() for name, each in one.items()}
        return [stages[name]["completed"] for name in ("asr-listen", "llm-prepare", "tts-say")]

    before = await completed()
    found = await pipe.submit(asked("Good day.", modalities=["speech"]))
    assert found.keys() == {"tts-say"}
    assert parts.spoken(found["tts-say"].samples) == "Good day."
    assert [one - other for one, other in zip(await completed(), before, strict=True)] == [0, 0, 1]
    with pytest.raises(InvalidRequestError, match="there is nothing to speak"):
        await pipe.submit(asked(" ", modalities=["speech"]))


async def test_the_voice_of_a_recording_speaks(pipe: AsyncPipe) -> None:
    recording = {"references": [{"path": "anna.wav", "text": "hello"}]}
    found = await pipe.submit(asked(heard("hi"), inputs=recording))
    text = found["llm-answer"].text
    assert given_to_llm(text) == {"messages": [["user", "hi"]]}
    assert parts.spoken(found["tts-say"].samples / 2) == text
    found = await pipe.submit(asked("Hi.", modalities=["speech"], inputs=recording, metadata={"speaker": "low"}))
    assert parts.spoken(found["tts-say"].samples / -2) == "Hi."
    assert np.all(found["tts-say"].samples < 0)


async def test_a_server_speaks_given_texts_in_every_voice(pipe: AsyncPipe, tmp_path: Path) -> None:
    app = create_app(pipe, Settings(voices_dir=tmp_path))
    client = openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http_client(app), max_retries=0)
    recorded = {"audio_sample": ("a.wav", whole("wav", [np.zeros(parts.RATE * 3, np.float32)], parts.RATE))}
    uploaded = await http_client(app).post("/v1/audio/voices", data={"name": "Anna"}, files=recorded)
    assert uploaded.status_code == 200, uploaded.text
    names = [each["name"] for each in (await http_client(app).get("/v1/audio/voices")).json()["data"]]
    assert names == ["high", "low", "Anna"]
    for name, factor in {"high": 1, "low": -1, "Anna": 2}.items():
        wav = await client.audio.speech.create(model="assistant", input="Good day.", voice=name, response_format="wav")
        samples, _ = soundfile.read(io.BytesIO(wav.content))
        assert parts.spoken(samples / factor) == "Good day.", name
        assert np.all(samples * factor > 0)
    models = await client.models.list()
    assert (models.data[0].model_extra or {})["capabilities"]["speech"] == "direct"
    async with socket_to(app, "/v1/audio/speech/stream") as socket:
        await socket.send_json({"type": "session.config", "model": "assistant", "voice": "low"})
        for text in ("One", ". Two.", None):
            await socket.send_json({"type": "input.done"} if text is None else {"type": "input.text", "text": text})
        told: list[dict[str, Any]] = []
        while not told or told[-1]["type"] != "session.done":
            told += [json.loads(text)] if (text := (await socket.receive()).get("text")) else []
    assert [each["sentence_text"] for each in told if each["type"] == "audio.start"] == ["One.", "Two."]


async def test_a_user_who_speaks_ends_what_is_said_and_written(pipe: AsyncPipe, tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "wrote")
    async with socket_to(create_app(pipe, Settings()), "/v1/realtime") as socket:
        session = {"type": "realtime", "forever": str(tmp_path / "wrote")}
        await socket.send_json({"type": "session.update", "session": session})
        await socket.send_json(user_text("hello"))
        await socket.send_json({"type": "response.create"})
        kinds: list[str] = []
        while kinds.count("response.output_audio.delta") < 3:
            kinds.append((await socket.receive_json())["type"])
        await socket.send_json(append(np.concatenate([silence(0.3), voice(0.3)])))
        while "response.done" not in kinds:
            kinds.append((last := await socket.receive_json())["type"])
        assert last["response"]["status_details"]["reason"] == "turn_detected"
        detected = kinds.index("input_audio_buffer.speech_started")
        assert "response.output_audio.delta" not in kinds[detected:], "not a chunk after the detection of speech"
        assert await asyncio.to_thread((tmp_path / "wrote").read_text) == "wrote"


async def test_the_client_sees_what_is_heard_and_hears_speech_before_the_text_has_ended(
    pipe: AsyncPipe, tmp_path: Path
) -> None:
    os.mkfifo(tmp_path / "door")
    asking = asked(
        heard("hi there"), params={"door": str(tmp_path / "door")}, modalities=["transcript", "text", "audio"]
    )
    events = []
    async for event in pipe.stream(asking):
        if isinstance(event.data, AudioChunk) and not any(isinstance(each, AudioChunk) for each in events):
            assert "Good bye" not in "".join(each.text for each in events if isinstance(each, TextChunk))
            await asyncio.to_thread((tmp_path / "door").write_text, "open")
        events.append(event.data)
    assert "".join(each.text for each in events if isinstance(each, TranscriptChunk)) == "hi there "
    assert parts.spoken(np.concatenate([each.samples for each in events if isinstance(each, AudioChunk)])) == (
        "".join(each.text for each in events if isinstance(each, TextChunk))
    )


async def test_an_abort_ends_what_every_part_computes(pipe: AsyncPipe, tmp_path: Path) -> None:
    async def aborted() -> dict[str, float]:
        stages = {name: each for one in (await pipe.statistics()).values() for name, each in one.items()}
        assert not any(each.get("in_flight") for each in stages.values())
        return {name: stages[name]["aborted"] for name in ("asr-listen", "llm-answer", "tts-say")}

    before = await aborted()
    for name, asking in {
        "asr": asked(heard(str(tmp_path / "asr")), modalities=["transcript"]),
        "llm": asked("hi", params={"forever": str(tmp_path / "llm")}),
    }.items():
        os.mkfifo(tmp_path / name)
        async for event in pipe.stream(asking, name):
            if isinstance(event.data, TranscriptChunk | AudioChunk):
                break
        await pipe.abort(name)
        assert await asyncio.to_thread((tmp_path / name).read_text) in ("listened", "wrote")
    assert "You said" in (await pipe.chat("hi", timeout=20)).text
    assert {name: count - before[name] for name, count in (await aborted()).items()} == {
        "asr-listen": 1, "llm-answer": 1, "tts-say": 1,
    }  # fmt: skip


@pytest.mark.parametrize("times", [1, pytest.param(20, marks=pytest.mark.full)])
async def test_each_part_restarts_alone_and_the_next_request_is_answered(
    pipe: AsyncPipe, tmp_path: Path, times: int
) -> None:
    for number, killed in enumerate(["asr-p", "llm-p", "tts-p"] * times):
        asking = asked(f"{number} {times}", params={"forever": str(tmp_path / "wrote")})
        if killed == "asr-p":
            asking = asked(heard(f"{tmp_path}/listened {number}"), modalities=["transcript"])
        pids, is_alive = dict(pipe.process_ids), True
        with pytest.raises(RequestFailedError, match=r"killed by signal 9"):
            async for event in pipe.stream(asking):
                if isinstance(event.data, TranscriptChunk | AudioChunk) and is_alive:
                    os.kill(pids[killed], signal.SIGKILL)
                    is_alive = False
        found = await pipe.submit(asked(heard(f"one {killed}"), heard("two")))
        assert f"one {killed}" in parts.spoken(found["tts-say"].samples)
        assert {name for name, pid in pipe.process_ids.items() if pid != pids[name]} == {killed}


async def test_a_recording_that_cannot_be_heard_is_the_requests_fault(pipe: AsyncPipe) -> None:
    with pytest.raises(InvalidRequestError, match="damaged"):
        await pipe.submit(asked(heard("damaged")))
    with pytest.raises(InvalidRequestError, match="there is no recording to write down"):
        await pipe.submit(asked("hi", modalities=["transcript"]))


async def test_sound_is_heard_while_it_is_spoken(run_folder: Path) -> None:
    async with asyncio.timeout(60), open_async(config(run_folder, asr=parts.recogniser(live=True))) as pipe:
        assert pipe.interface is not None
        assert pipe.interface.input_streams == ["audio"]
        before = [{"role": "user", "content": "Hi."}, {"role": "assistant", "content": "Yes?"}]
        opening = asked(*before, modalities=["transcript", "text", "audio"])
        async with pipe.open_request(opening) as opened:
            events = aiter(opened)
            said = ""
            for piece in ("how ", "are", " you"):
                await opened.send(AudioChunk(np.array([ord(each) for each in piece], np.float32), parts.RATE))
                said += (await anext(events)).data.text
            assert said == "how are you"
            await opened.finish()
            found = {event.stage: event.data async for event in events if event.final}
        text = found["llm-answer"].text
        assert given_to_llm(text)["messages"] == [["user", "Hi."], ["assistant", "Yes?"], ["user", "how are you"]]
        assert parts.spoken(found["tts-say"].samples) == text
        # Whole requests go the same ways as without.
        found = await pipe.submit(asked(heard("one"), heard("two")))
        assert given_to_llm(found["llm-answer"].text)["messages"] == [["user", "one"], ["user", "two"]]
        assert (await pipe.submit(asked("hi"))).keys() == {"llm-answer", "tts-say"}
        with pytest.raises(InvalidRequestError, match="one recording beside sound that is still coming"):
            async with pipe.open_request(asked(heard("one"))) as opened:
                await opened.send(AudioChunk(np.array([65], np.float32), parts.RATE))
                await opened.finish()
                await opened.results()


async def test_a_recogniser_of_several_stages_hears_one_recording(run_folder: Path) -> None:
    async with asyncio.timeout(60), open_async(config(run_folder, asr=parts.recogniser(stages=2))) as pipe:
        found = await pipe.submit(asked(heard("one"), modalities=["text"]))
        assert given_to_llm(found["llm-answer"].text)["messages"] == [["user", "one"]]
        with pytest.raises(InvalidRequestError, match="put the words of earlier ones in their places"):
            await pipe.submit(asked(heard("one"), heard("two")))


async def test_what_it_offers_is_that_of_its_parts() -> None:
    offer = config("/tmp").interface
    assert offer is not None
    assert offer.inputs == ["text", "image", "audio", "reference"]
    assert offer.outputs == ["transcript", "text", "audio", "speech"]
    assert offer.roles == {"transcription": "asr-listen", "text": "llm-answer", "speech": "tts-say"}
    assert (offer.voices, offer.sample_rate, offer.tool_format) == (["high", "low"], parts.RATE, "tagged-json")
    assert offer.check_params({"shout": True}) == {"answer": {"shout": True}}
    assert not offer.input_streams


NO_INTERFACE = evolve(parts.voice(), interface=None)
SINGS = evolve(parts.voice(), interface=Interface(outputs=["audio"]))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"asr": None}, "--option asr: name a recogniser: a hub id, a folder"),
        (
            {"asr": parts.writer()},
            "--option asr=mind: must be a pipeline that writes recordings down, and does nothing",
        ),
        ({"llm": parts.voice()}, "--option llm=mouth: must be a pipeline that answers in text alone"),
        (
            {"tts": parts.writer()},
            "--option tts=mind: must be a pipeline that speaks given texts; did you mean --option llm[?]$",
        ),
        ({"tts": SINGS}, "--option tts=mouth: must be a pipeline that speaks given texts$"),
        ({"tts": NO_INTERFACE}, "--option tts=mouth: it declares no interface"),
        ({"tts": parts.voice(streams=False)}, "--option tts=mouth: it speaks whole texts only; choose a voice"),
        ({"llm": "/no/such/folder"}, "--option llm=/no/such/folder: "),
        (
            {"temperature": 1},
            "--option temperature: must be a part .asr, llm, tts., or begin with one: llm_temperature",
        ),
        ({"lm": "some/model"}, "--option lm: must be a part .*; did you mean 'llm'"),
        ({"llm_dtype": "float32"}, "--option llm=mind: "),
        (
            {"llm": "transformers", "llm_model": "/no", "llm_backnd": "engine"},
            "--option llm=transformers: --option llm_backnd: there is no such option; did you mean 'llm_backend'",
        ),
        ({"tts": "no/model"}, "Or name its pipeline: --option tts=PIPELINE --option tts_model=no/model$"),
    ],
)
async def test_parts_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config("/tmp", **options)


async def test_a_model_is_refused() -> None:
    with pytest.raises(ConfigError, match="--model some/model: the models are those of the parts"):
        assistant("some/model")
