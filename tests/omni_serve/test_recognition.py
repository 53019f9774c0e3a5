"""Recordings written down by a stage whose role that is: a toy that counts their tenths of a second."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any

import httpx2
import openai
import pytest
import pytest_asyncio
from attrs import evolve
from omni_serve_clients import http_client
from recogniser import INTERFACE, recogniser, recording

from omni_core import open_async
from omni_core.interface import TEXT
from omni_core.protocol.outputs import Segment, TextResult, Transcript, TranscriptChunk
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.auth import ANYONE
from omni_serve.calls import Call
from omni_serve.errors import ApiError
from omni_serve.realtime.actions import Transcribe
from omni_serve.realtime.pipeline import Turns, offer_of
from omni_serve.recognition import has_recogniser, writes_down
from omni_serve.transcript_forms import subtitles

pytestmark = pytest.mark.asyncio(loop_scope="module")

FILE = ("a.wav", recording(0.45))
TEXT_OF_IT = "one two three four"


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app() -> AsyncIterator[Application]:
    async with open_async(recogniser()) as pipe:
        yield create_app(pipe, Settings())


@pytest.fixture
def client(app: Application) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http_client(app), max_retries=0)


async def test_the_text_is_that_of_the_transcript(client: openai.AsyncOpenAI) -> None:
    answer = await client.audio.transcriptions.create(model="count", file=FILE)
    assert answer.text == TEXT_OF_IT
    german = await client.audio.transcriptions.create(
        model="count", file=FILE, language="de", response_format="text", temperature=0
    )
    assert german == "eins zwei drei vier\n"
    stream = await client.audio.transcriptions.create(model="count", file=FILE, stream=True)
    events = [each async for each in stream]
    assert [each.delta for each in events if each.type == "transcript.text.delta"] == ["one", " two", " three", " four"]
    assert events[-1].type == "transcript.text.done"
    assert events[-1].text == TEXT_OF_IT


async def test_the_verbose_form_has_segments_and_words(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "count", "file": FILE, "response_format": "verbose_json"}
    both = await client.audio.transcriptions.create(**asked, timestamp_granularities=["word", "segment"])
    assert (both.text, both.language, both.duration) == (TEXT_OF_IT, "en", pytest.approx(0.45))
    assert both.usage is not None
    assert both.usage.seconds == pytest.approx(0.45)
    assert [(each.id, each.text) for each in both.segments or []] == [(0, "one two three"), (1, "four")]
    first = (both.segments or [])[0]
    assert (first.start, first.end, first.avg_logprob) == (0.0, pytest.approx(0.3), pytest.approx(-0.6931, abs=1e-4))
    assert set(type(first).model_fields) <= first.model_dump(exclude_unset=True).keys()
    assert [each.word for each in both.words or []] == TEXT_OF_IT.split()
    plain = await client.audio.transcriptions.create(**asked)
    assert plain.segments
    assert plain.words is None
    words = await client.audio.transcriptions.create(**asked, timestamp_granularities=["word"])
    assert words.words
    assert words.segments is None
    apart = await client.audio.transcriptions.create(**asked, extra_body={"diarize": "true"})
    assert [each.model_extra["speaker"] for each in apart.segments or [] if each.model_extra] == ["A", "B"]


async def test_segments_are_subtitles(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "count", "file": FILE}
    assert await client.audio.transcriptions.create(**asked, response_format="srt") == (
        "1\n00:00:00,000 --> 00:00:00,300\none two three\n\n2\n00:00:00,300 --> 00:00:00,400\nfour\n"
    )
    assert await client.audio.transcriptions.create(**asked, response_format="vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:00.300\none two three\n\n00:00:00.300 --> 00:00:00.400\nfour\n"
    )


async def test_no_text_of_a_segment_ends_its_subtitle() -> None:
    odd = [Segment("a --> b\n\n<i> & c\r\n ", 0, 1), Segment(" \n", 1, 2), Segment("d", 3600, 3601)]
    assert subtitles(odd, "srt") == (
        "1\n00:00:00,000 --> 00:00:01,000\na -> b\n<i> & c\n\n2\n01:00:00,000 --> 01:00:01,000\nd\n"
    )
    assert subtitles(odd, "vtt") == (
        "WEBVTT\n\n00:00:00.000 --> 00:00:01.000\na --&gt; b\n&lt;i&gt; &amp; c\n\n01:00:00.000 --> 01:00:01.000\nd\n"
    )


async def test_silence_has_no_segments_and_no_words(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "count", "file": ("a.wav", recording(0.05)), "response_format": "verbose_json"}
    answer = await client.audio.transcriptions.create(**asked, timestamp_granularities=["word", "segment"])
    assert (answer.text, answer.segments, answer.words) == ("", [], [])


@pytest.mark.parametrize(
    ("given", "param", "words"),
    [
        ({"language": "fr"}, "language", "language: must be one of: en, de, is 'fr'"),
        ({"task": "translate"}, "task", "task: only 'transcribe' is supported here"),
        ({"diarize": "perhaps"}, "diarize", "diarize: must be of the type boolean"),
        ({"timestamp_granularities[]": "word"}, "timestamp_granularities[]", "only verbose_json has them"),
        (
            {"timestamp_granularities[]": "letter", "response_format": "verbose_json"},
            "timestamp_granularities[]",
            "must be segment, word, is 'letter'",
        ),
    ],
)
async def test_mistakes_are_named(app: Application, given: dict[str, str], param: str, words: str) -> None:
    async with http_client(app) as http:
        answer = await http.post("/v1/audio/transcriptions", data={"model": "count", **given}, files={"file": FILE})
    error = answer.json()["error"]
    assert (answer.status_code, error["param"]) == (400, param), answer.text
    assert words in error["message"]


async def test_a_transcript_that_was_cut_is_an_error(app: Application, client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APIStatusError, match=r"the transcript was cut after 0\.4 s by a limit") as caught:
        await client.audio.transcriptions.create(model="count", file=FILE, prompt="cut", response_format="verbose_json")
    assert (caught.value.status_code, caught.value.code) == (413, "transcript_cut")
    async with http_client(app) as http:
        data = {"model": "count", "prompt": "cut", "stream": "true"}
        answer: httpx2.Response = await http.post("/v1/audio/transcriptions", data=data, files={"file": FILE})
    assert "transcript_cut" in answer.text
    assert "transcript.text.done" not in answer.text


async def test_turns_of_a_session_are_written_down_by_it(app: Application) -> None:
    server = app.state.server
    assert offer_of(server, ANYONE).transcribes
    turns = Turns(server, ANYONE, "session")
    text, _, _ = await turns.transcription(Transcribe("item", FILE[1], "de", None)).whole()
    assert text == "eins zwei drei vier"
    with pytest.raises(ApiError, match="language: must be one of: en, de"):
        turns.transcription(Transcribe("item", FILE[1], "fr", None))


async def test_models_say_how_it_is_done(client: openai.AsyncOpenAI) -> None:
    model = await client.models.retrieve("count")
    assert model.model_extra is not None
    assert model.model_extra["capabilities"]["transcription"] == "direct"


async def test_a_pipeline_that_also_answers_names_transcripts_as_an_output(app: Application) -> None:
    answers = evolve(INTERFACE, roles={**INTERFACE.roles, TEXT: "write"})
    assert not writes_down(answers)
    assert has_recogniser(evolve(answers, outputs=["text", "transcript"]))
    assert writes_down(evolve(answers, prompts={"transcription": "Write down what is said."}))


@pytest.mark.parametrize(("transcribes", "expected"), [(True, "heard"), (False, None)])
async def test_what_it_has_heard_is_not_its_answer(app: Application, transcribes: bool, expected: str | None) -> None:
    server = app.state.server
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(server, "interface", evolve(INTERFACE, roles={**INTERFACE.roles, TEXT: "write"}))
        call = Call(server, None, None, speech=False, transcribes=transcribes)  # type: ignore[arg-type]
        assert call._piece(TranscriptChunk("heard", " it")) == expected
        assert call._piece(Transcript("heard")) is None
        assert (call.transcript is not None) is transcribes
        assert call._piece(TextResult("")) is None
