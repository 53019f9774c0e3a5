"""Transcripts and translations in every form, by OpenAI's client: speakers, log probabilities, languages."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import openai
import pytest
import pytest_asyncio
from attrs import evolve
from index_recogniser import counted, index_recogniser
from omni_serve_clients import http_client
from openai.types.audio import TranscriptionTextSegmentEvent
from recogniser import recogniser, recording
from serve_stages import RATE, tone

from omni_core import open_async
from omni_core.api import Segment
from omni_serve import Settings, create_app
from omni_serve.app import Application
from omni_serve.encoders import whole
from omni_serve.errors import ApiError
from omni_serve.transcript_forms import Speakers
from omni_serve.transcriptions import _check_whole

pytestmark = [
    pytest.mark.asyncio(loop_scope="session"),
    pytest.mark.filterwarnings("ignore:deprecated:DeprecationWarning"),  # of translations, in OpenAI's client
]

FILE = ("a.wav", recording(0.65))


def client_of(app: Application) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http_client(app), max_retries=0)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def counting() -> AsyncIterator[openai.AsyncOpenAI]:
    """A recogniser that tells speakers."""
    async with open_async(recogniser()) as pipe:
        yield client_of(create_app(pipe, Settings()))


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def indices() -> AsyncIterator[openai.AsyncOpenAI]:
    """A recogniser that translates, and tells log probabilities."""
    async with open_async(index_recogniser()) as pipe:
        yield client_of(create_app(pipe, Settings()))


async def test_speakers_are_letters_in_the_order_in_which_they_are_heard(counting: openai.AsyncOpenAI) -> None:
    raw = await counting.audio.transcriptions.with_raw_response.create(
        model="count",
        file=FILE,
        response_format="diarized_json",
        chunking_strategy="auto",
        known_speaker_names=["agent"],
        known_speaker_references=["data:audio/wav;base64,AAAA"],
    )
    answer = raw.parse()
    assert (answer.text, answer.task, answer.duration) == ("one two three four five six", "transcribe", 0.65)
    assert [(each.id, each.type, each.speaker, each.text) for each in answer.segments] == [
        ("seg_0", "transcript.text.segment", "A", "one two three"),
        ("seg_1", "transcript.text.segment", "B", "four five six"),
    ]
    assert [round(each.end, 6) for each in answer.segments] == [0.3, 0.6]
    assert answer.usage is not None
    assert set(raw.headers["x-omni-ignored"].split(", ")) == {
        "chunking_strategy",
        "known_speaker_names",
        "known_speaker_references",
    }
    names = [each["speaker"] for each in Speakers().told([Segment("", 0, 0, str(n % 800)) for n in range(801)])]
    assert [names[n] for n in (0, 25, 26, 27, 52, 701, 702, 800)] == ["A", "Z", "AA", "AB", "BA", "ZZ", "AAA", "A"]


async def test_segments_with_speakers_are_events(counting: openai.AsyncOpenAI) -> None:
    stream = await counting.audio.transcriptions.create(
        model="count", file=FILE, response_format="diarized_json", stream=True
    )
    events = [each async for each in stream]
    found = [each for each in events if isinstance(each, TranscriptionTextSegmentEvent)]
    assert [(each.id, each.speaker, each.text) for each in found] == [
        ("seg_0", "A", "one two three"),
        ("seg_1", "B", "four five six"),
    ]
    assert events.index(found[0]) < events.index(found[1]) - 1  # as soon as it is complete
    assert (events[-1].type, getattr(events[-1], "text", "")) == ("transcript.text.done", "one two three four five six")


async def test_log_probabilities_are_those_of_the_text(indices: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "index", "file": ("a.wav", counted(0.2)), "include": ["logprobs"]}
    answer = await indices.audio.transcriptions.create(**asked)
    assert [(each.token, each.logprob, each.bytes) for each in answer.logprobs or []] == [
        ("0", -0.25, [*b"0"]),
        (" 199", -0.25, [*b" 199"]),
    ]
    events = [each async for each in await indices.audio.transcriptions.create(**asked, stream=True)]
    deltas, done = [each for each in events if each.type == "transcript.text.delta"], events[-1]
    assert [[one.token for one in each.logprobs or []] for each in deltas] == [["0"], [" 199"]]
    assert done.type == "transcript.text.done"
    assert [each.token for each in done.logprobs or []] == ["0", " 199"]
    assert done.usage is not None
    assert (done.usage.input_tokens, done.usage.output_tokens) == (3, 2)
    plain = await indices.audio.transcriptions.create(**{**asked, "include": []})
    assert plain.logprobs is None


async def test_what_a_pipeline_or_a_form_has_not_is_refused(
    counting: openai.AsyncOpenAI, indices: openai.AsyncOpenAI, client: openai.AsyncOpenAI
) -> None:
    told = {"model": "tones", "file": ("a.wav", whole("wav", [tone("x")], RATE))}
    for asked, given, param in (
        (counting, {"include": ["logprobs"]}, "include[]"),
        (indices, {"include": ["logprobs"], "response_format": "srt"}, "include[]"),
        (client, {**told, "response_format": "diarized_json"}, "response_format"),
        (client, {**told, "include": ["logprobs"]}, "include[]"),
        (client, {**told, "language": "xx"}, "language"),
        (counting, {"language": "xx"}, "language"),
        (counting, {"language": "fr"}, "language"),
        (counting, {"extra_body": {"languages": ["en", "xx"]}}, "languages[]"),
    ):
        with pytest.raises(openai.BadRequestError) as caught:
            await asked.audio.transcriptions.create(
                **{"model": "count" if asked is counting else "index", "file": FILE, **given}
            )
        assert caught.value.param == param, caught.value


async def test_a_language_is_known_by_its_region_and_as_one_of_several(counting: openai.AsyncOpenAI) -> None:
    for given in ({"language": "de-AT"}, {"extra_body": {"languages": ["DE"]}}):
        answer = await counting.audio.transcriptions.create(model="count", file=FILE, **given)  # type: ignore[call-overload]
        assert answer.text.startswith("eins")
    both = await counting.audio.transcriptions.with_raw_response.create(
        model="count", file=FILE, extra_body={"languages": ["en", "de"], "keywords": ["one"]}
    )
    assert set(both.headers["x-omni-ignored"].split(", ")) == {"languages[]", "keywords"}


async def test_a_translation_is_english(indices: openai.AsyncOpenAI, counting: openai.AsyncOpenAI) -> None:
    file = ("a.wav", counted(0.2))
    assert (await indices.audio.translations.create(model="index", file=file)).text == "0 c7"
    verbose = await indices.audio.translations.create(model="index", file=file, response_format="verbose_json")
    assert (verbose.language, verbose.text, verbose.duration) == ("english", "0 c7", 0.2)
    assert [(each.text, each.end) for each in verbose.segments or []] == [("0 c7", 0.2)]
    assert verbose.model_extra is not None
    assert verbose.model_extra["task"] == "translate"
    assert "00:00:00.200\n0 c7" in await indices.audio.translations.create(
        model="index", file=file, response_format="vtt"
    )
    with pytest.raises(openai.BadRequestError, match="declares no way to translate"):
        await counting.audio.translations.create(model="count", file=FILE)
    with pytest.raises(openai.BadRequestError) as caught:
        await indices.audio.translations.create(
            model="index", file=file, extra_body={"response_format": "diarized_json"}
        )
    assert caught.value.param == "response_format"


async def test_a_model_that_answers_translates_and_is_cut_by_instruction(
    app: Application, client: openai.AsyncOpenAI, monkeypatch: pytest.MonkeyPatch
) -> None:
    server, file = app.state.server, ("a.wav", whole("wav", [tone("x")], RATE))
    with pytest.raises(openai.BadRequestError, match="declares no way to translate"):
        await client.audio.translations.create(model="tones", file=file)
    prompts = {**server.interface.prompts, "translation": "Say it in English."}
    monkeypatch.setattr(server, "interface", evolve(server.interface, prompts=prompts))
    assert (await client.audio.translations.create(model="tones", file=file)).text.startswith("Say it in English.")
    model = await client.models.retrieve("tones")
    assert model.model_extra is not None
    offers = model.model_extra["capabilities"]
    assert (offers["transcription"], offers["translation"]) == ("by instruction", "by instruction")
    with pytest.raises(ApiError, match="the transcript was cut by a limit of the pipeline") as caught:
        _check_whole(SimpleNamespace(finish_reason="length", transcript=None))  # type: ignore[arg-type]
    assert (caught.value.status, caught.value.param) == (413, "file")
    srt = await client.audio.transcriptions.create(
        model="tones", file=file, response_format="srt", chunking_strategy="auto"
    )
    assert "-->" in srt
    assert "Write down what is said." in srt
