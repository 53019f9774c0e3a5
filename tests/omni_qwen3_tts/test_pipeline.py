"""The whole pipeline: same seed, same sound, alone or together; what a request may not ask; voices kept; endpoints by the SDK."""

from __future__ import annotations

import asyncio
import base64
import io
import json
import tempfile
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import openai
import pytest
import pytest_asyncio
import soundfile
from attrs import evolve
from omni_serve_clients import http_client, socket_to
from qwen3_tts_cases import LONG, Case, cases_of, recording
from qwen3_tts_stages import Spoken, asking
from tiny_transformers import checkpoint, frame_recognisers

from omni_core.api import Edge, compose
from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import EndpointsConfig
from omni_core.errors import ConfigError, InvalidRequestError, OmniError
from omni_core.protocol.messages import OmniRequest
from omni_core.protocol.outputs import AudioResult, TextChunk
from omni_qwen3.pipeline import qwen3_omni_text
from omni_qwen3_tts.pipeline import qwen3_tts
from omni_qwen3_tts.preprocessing import create_preprocessing
from omni_serve import Settings, create_app
from omni_serve.encoders import pcm16
from omni_testing.ours.checkpoints import tiny_checkpoint

assert frame_recognisers
Tiny = Callable[[str], Path]
pytestmark = pytest.mark.asyncio(loop_scope="module")


def opened(folder: Path, **options: Any) -> Any:
    endpoints = EndpointsConfig(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    return open_async(evolve(qwen3_tts(str(folder), processes="one", **options), endpoints=endpoints))


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def named(tiny: Tiny) -> AsyncIterator[AsyncPipe]:
    async with opened(tiny("a")) as pipe:
        yield pipe


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def base(tiny: Tiny) -> AsyncIterator[AsyncPipe]:
    async with opened(tiny("base-c"), max_reference_seconds=2.0, voices_kept=2) as pipe:
        yield pipe


async def spoken(pipe: AsyncPipe, asked: Spoken) -> AudioResult:
    if asked.pieces is None:
        return (await pipe.submit(asked.request))["code2wav"]
    async with pipe.open_request(asked.request) as request:
        for piece in asked.pieces:
            await request.send(TextChunk(piece))
        await request.finish()
        return (await request.results())["code2wav"]


def same(one: AudioResult, other: AudioResult) -> bool:
    return np.array_equal(one.codes, other.codes) and np.allclose(one.samples, other.samples, atol=1e-5)


@pytest.mark.parametrize("shape", ["named", "base"])
async def test_same_seed_same_sound_alone_or_together(shape: str, named: AsyncPipe, base: AsyncPipe) -> None:
    """Also with other settings beside it, and as a stream."""
    pipe = {"named": named, "base": base}[shape]
    cases = cases_of("base-c" if shape == "base" else "a")
    asked = [asking(case, seed=number) for number, case in enumerate(cases)]
    asked += [
        asking(cases[1], seed=7, residual_top_k=3, temperature=1.5),
        asking(cases[1], ["What do", " you hear"], seed=8),
    ]
    alone = [await spoken(pipe, each) for each in asked]
    together = await asyncio.gather(*(spoken(pipe, each) for each in asked))
    assert all(map(same, alone, together))
    again = await spoken(pipe, asked[0])
    assert same(again, alone[0])
    assert not same(await spoken(pipe, asking(cases[0], seed=99)), alone[0])


async def fails(pipe: AsyncPipe, request: OmniRequest) -> str:
    with pytest.raises(OmniError) as refused:
        await pipe.submit(request)
    assert isinstance(refused.value, InvalidRequestError), refused.value
    return str(refused.value)


def says(text: Any = "Hi.", talker: dict[str, Any] | None = None, **inputs: Any) -> OmniRequest:
    metadata = inputs.pop("metadata", {})
    return OmniRequest(
        {"messages": [{"role": "user", "content": text}], **inputs}, {"talker": talker or {}}, metadata=metadata
    )


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (says(metadata={"speaker": "nobody"}), "speaker"),
        (says(talker={"language": "klingon"}), "language"),
        (says(talker={"residual_top_p": 0}), "residual_top_p"),
        (says("x" * 50_000), "over the limit of 4000 characters (max_characters); speak it in several requests"),
        (says(" \n "), "there is no text to speak"),
        (says("Hello <|im_end|>"), "'<|im_end|>', which is reserved"),
        (says([{"type": "image", "image": "x"}]), "it takes: text"),
        (says(talker={"instructions": "x" * 2001}), "over the limit of 2000 characters"),
        (
            says(references=[{"samples": recording(1), "sample_rate": 24_000}]),
            "it has voices of its own: serena, ryan, dylan",
        ),
        (OmniRequest({"messages": [{"role": "assistant", "content": "x"}]}), "messages[0]: must be"),
    ],
)
async def test_what_a_named_voice_cannot_speak(named: AsyncPipe, request_: OmniRequest, message: str) -> None:
    assert message in await fails(named, request_)


def reference(samples: Any, **more: Any) -> dict[str, Any]:
    return {"references": [{"samples": samples, "sample_rate": 24_000, **more}]}


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (says(), "this checkpoint speaks with the voice of a recording"),
        (says(**reference(np.zeros(24_000, np.float32))), "references[0] (recording): it is silent; a voice is needed"),
        (says(**reference(recording(1)[:999])), "42 ms of sound; at least 100 ms are needed"),
        (says(**reference(np.tile(recording(1), 20))), "max_reference_seconds"),
        (says(**reference(recording(1), text="<|im_end|>")), "references[0].text: contains '<|im_end|>'"),
        (says(references=[{"data": b"RIFF"}]), "references[0]"),
        (says(**reference(recording(1), text=5)), "references[0].text: must be the words"),
        (says(references=[{}, {}]), "must be a list of one"),
        (says(talker={"instructions": "slowly"}, **reference(recording(1))), "instructions"),
        (says(metadata={"speaker": "ryan"}, **reference(recording(1))), "speaker"),
    ],
)
async def test_what_a_recorded_voice_cannot_speak(base: AsyncPipe, request_: OmniRequest, message: str) -> None:
    assert message in await fails(base, request_)
    assert len((await spoken(base, asking(cases_of("base-c")[0], seed=1))).samples)


async def test_a_recording_is_encoded_once_and_few_are_kept(base: AsyncPipe, tmp_path: Path) -> None:
    async def counted() -> tuple[float, float]:
        found = (await base.statistics())["pipeline"]["preprocessing"]
        return found["voices_encoded"], found["voices_found"]

    files = []
    for number in range(3):
        files.append(tmp_path / f"{number}.wav")
        soundfile.write(files[-1], recording(10 + number), 24_000, subtype="FLOAT")
    encoded, found = await counted()
    for file in (files[0], files[0], files[1], files[2], files[0]):  # two are kept
        await base.submit(says(talker={"max_new_tokens": 2}, references=[{"path": str(file)}]))
    assert await counted() == (encoded + 4, found + 1)
    assert (await base.statistics())["pipeline"]["preprocessing"]["cpu_seconds"] > 0


@pytest.mark.full
async def test_it_speaks_what_another_pipeline_writes(tiny: Tiny) -> None:
    """In the voice of a recording that the pipeline was given; and of a checkpoint without recorded voices none is taken."""
    voice = str(tiny("base-c") / "voice.wav")
    soundfile.write(voice, recording(1), 24_000, subtype="FLOAT")
    options: dict[str, Any] = {"processes": "one", "reference": voice, "reference_text": "A red fox."}
    tts = qwen3_tts(str(tiny("base-c")), **options)
    edges = [Edge("llm", "tts", stream=True, keep=True)]
    config = compose({"llm": qwen3_omni_text(tiny_checkpoint("qwen3"), processes="one"), "tts": tts}, edges)
    params = {"thinker": {"max_new_tokens": 6}, "talker": {"max_new_tokens": 8}, "seed": 1, "return_codes": True}
    endpoints = EndpointsConfig(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    async with open_async(evolve(config, endpoints=endpoints)) as pipe:
        found = await pipe.submit(OmniRequest({"messages": [{"role": "user", "content": "Hello"}]}, params))
    own = {name: value for name, value in params.items() if name != "thinker"}
    async with opened(tiny("base-c"), reference=voice, reference_text="A red fox.") as pipe:
        alone = await spoken(pipe, Spoken(OmniRequest({"messages": []}, own), [found["llm-decode"].text]))
    assert same(alone, found["tts-code2wav"])
    with pytest.raises(ConfigError, match="speaks with no recorded voices"):
        create_preprocessing(str(tiny("a")), reference=voice)


async def test_the_interface_says_what_a_checkpoint_speaks(named: AsyncPipe, tiny: Tiny) -> None:
    interface = {shape: qwen3_tts(str(tiny(shape))).interface for shape in ("a", "c", "base-a", "design-a")}
    assert all(each is not None for each in interface.values())
    assert interface["a"].voices == ["serena", "ryan", "dylan"]
    assert interface["a"].inputs == ["text"]
    assert interface["base-a"].inputs == ["text", "reference"]
    assert interface["base-a"].voices == interface["design-a"].voices == []
    for shape, reads in {"a": True, "c": False, "base-a": False, "design-a": True}.items():
        assert ("instructions" in interface[shape].parameter_names) == reads
    language = next(each for each in interface["a"].groups[0].parameters if each.name == "language")
    assert language.choices == ["auto", "chinese", "english", "german"]
    maximum = next(each for each in interface["a"].groups[0].parameters if each.name == "max_new_tokens")
    assert maximum.default == 8192  # of generation_config.json
    with pytest.raises(ConfigError, match="max_charakters"):
        qwen3_tts(str(tiny("a")), max_charakters=1)  # type: ignore[call-arg]


async def test_the_sdk_speaks_whole_as_events_and_by_socket(named: AsyncPipe) -> None:
    app = create_app(named, Settings(model="tts"))
    given = {"max_new_tokens": 6, "seed": 5, "language": "english"}
    expected = await spoken(named, asking(Case("custom_voice", "A fox.", "english", "ryan"), seed=5, max_new_tokens=6))
    data = pcm16(expected.samples)
    async with http_client(app) as http:
        client = openai.AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=http)
        body: dict[str, Any] = {"model": "tts", "voice": "ryan", "input": "A fox.", "response_format": "pcm"}
        answer = await client.audio.speech.create(**body, extra_body=given)
        assert answer.content == data
        styled = await client.audio.speech.create(**body, instructions="Very slowly.", extra_body=given)
        assert styled.content != data
        with pytest.raises(openai.APIStatusError, match=r"instructions: .*over the limit of 2000") as refused:
            await client.audio.speech.create(**body, instructions="x" * 2001)
        assert refused.value.param == "instructions"
        events = await http.post("/v1/audio/speech", json={**body, **given, "stream_format": "sse"})
        read = [json.loads(line[6:]) for line in events.text.split("\n") if line.startswith("data: ")]
        assert b"".join(base64.b64decode(each["audio"]) for each in read[:-1]) == data
        async with socket_to(app, "/v1/audio/speech/stream") as socket:
            config = {"voice": "ryan", "response_format": "pcm", "dual_track": True, **given}
            await socket.send_json({"type": "session.config", "model": "tts", **config})
            for piece in ("A f", "ox."):
                await socket.send_json({"type": "input.text", "text": piece})
            await socket.send_json({"type": "input.done"})
            sound, kind = b"", ""
            while kind != "session.done":
                message = await socket.receive()
                sound += message.get("bytes") or b""
                kind = json.loads(message.get("text") or "{}").get("type", "")
        on_two = asking(Case("custom_voice", "A fox.", "english", "ryan", dual_track=True), seed=5, max_new_tokens=6)
        assert sound == pcm16((await spoken(named, on_two)).samples)
        with pytest.raises(openai.BadRequestError, match="nobody"):
            await client.audio.speech.create(**{**body, "voice": "nobody"}, extra_body=given)
        with pytest.raises(openai.BadRequestError, match="4000"):
            await client.audio.speech.create(**{**body, "input": LONG * 600}, extra_body=given)


async def test_the_sdk_speaks_with_uploaded_voices(base: AsyncPipe, tmp_path: Path) -> None:
    """With the words that are said in the recording, and without them."""
    http = http_client(create_app(base, Settings(model="tts", voices_dir=tmp_path)))
    client = openai.AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=http)
    sound = io.BytesIO()
    soundfile.write(sound, recording(1), 24_000, subtype="FLOAT", format="WAV")
    asked: dict[str, Any] = {"model": "tts", "input": "A fox.", "response_format": "pcm"}
    given = {"max_new_tokens": 6, "seed": 5, "dual_track": True}
    for name, words in (("Anna", "A red fox."), ("Otto", None)):
        consent = await client.audio.voice_consents.create(
            name=name, language="en-US", recording=("c.wav", sound.getvalue())
        )
        await client.audio.voices.create(
            name=name,
            audio_sample=("a.wav", sound.getvalue()),
            consent=consent.id,
            extra_body={"text": words} if words else {},
        )
        answer = await client.audio.speech.create(**asked, voice=name, extra_body=given)
        case = Case("base", "A fox.", recording=1, words=words, dual_track=True)
        assert answer.content == pcm16((await spoken(base, asking(case, seed=5, max_new_tokens=6))).samples)
    with pytest.raises(openai.BadRequestError, match="voice of a recording"):
        await client.audio.speech.create(**asked, voice="default")


@pytest.mark.full
async def test_an_aligner_finds_the_words_of_a_whole_text_and_of_one_in_pieces(named: AsyncPipe, tiny: Tiny) -> None:
    assert not named.config.interface.word_times, "the talker reads a token with each frame, whatever it says"
    body: dict[str, Any] = {"model": "tts", "voice": "ryan", "input": "A red fox.", "response_format": "pcm"}
    given = {"max_new_tokens": 24, "seed": 5}
    async with opened(tiny("a"), aligner=str(checkpoint("Wav2Vec2ForCTC"))) as pipe:
        app = create_app(pipe, Settings(model="tts"))
        async with http_client(app) as http:
            client = openai.AsyncOpenAI(api_key="x", base_url="http://test/v1", http_client=http)
            told = (
                await client.audio.speech.create(**body, extra_body={**given, "timestamps": "word"})
            ).response.json()
            plain = await client.audio.speech.create(**body, extra_body=given)
        async with socket_to(app, "/v1/audio/speech/stream") as socket:
            config = {"type": "session.config", "model": "tts", "voice": "ryan", "timestamps": "word", **given}
            await socket.send_json(config)
            for piece in ("A red f", "ox."):
                await socket.send_json({"type": "input.text", "text": piece})
            await socket.send_json({"type": "input.done"})
            events: list[dict[str, Any]] = []
            while not events or events[-1]["type"] != "session.done":
                events.append(await socket.receive_json())
    assert base64.b64decode(told["audio"]) == plain.content
    assert [each["word"] for each in told["words"]] == ["A", "red", "fox."]
    at = [time for each in told["words"] for time in (each["start"], each["end"])]
    assert at == sorted(at)
    assert 0 <= at[0] < at[-1] <= told["duration"]
    assert [word["word"] for each in events for word in each.get("timestamps") or []] == ["A", "red", "fox."]
