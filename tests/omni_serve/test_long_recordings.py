"""Long recordings, written down in parts by a recogniser that answers which samples it hears."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, ClassVar

import httpx2
import numpy as np
import openai
import pytest
import pytest_asyncio
from index_recogniser import LONGEST, RATE, Schedule, counted, index_recogniser
from omni_serve_clients import http_client

from omni_core import open_async
from omni_core.api import TranscriptChunk
from omni_serve import Settings, create_app, long_recordings
from omni_serve.app import Application
from omni_serve.auth import ANYONE
from omni_serve.calls import Heard
from omni_serve.cuts import Part
from omni_serve.long_recordings import AHEAD, LongCall, gap
from omni_serve.realtime.vad import DETECTORS
from omni_serve.settings import Limits, RealtimeLimits

pytestmark = pytest.mark.asyncio(loop_scope="module")


async def test_texts_are_joined_as_they_are_written() -> None:
    assert [gap("a", "b"), gap("", "b"), gap("a ", "b"), gap("a", " b"), gap("你好。", "再见"), gap("안녕", "하세요")] == [
        " ", "", "", "", "", " ",
    ]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def app() -> AsyncIterator[Application]:
    DETECTORS["schedule"] = Schedule  # type: ignore[assignment]
    async with open_async(index_recogniser()) as pipe:
        yield create_app(pipe, Settings(realtime=RealtimeLimits(detector="schedule")))
    del DETECTORS["schedule"]


@pytest.fixture
def client(app: Application) -> openai.AsyncOpenAI:
    return openai.AsyncOpenAI(api_key="none", base_url="http://test/v1", http_client=http_client(app), max_retries=0)


def numbers_of(text: str) -> list[tuple[int, int]]:
    """Return the first and the last sample of each part."""
    found = [*map(int, text.split())]
    return [*zip(found[::2], found[1::2], strict=True)]


def check_whole(text: str, seconds: float) -> list[tuple[int, int]]:
    """Check that every sample is in one part, in order."""
    parts = numbers_of(text)
    assert parts[0][0] == 0
    assert parts[-1][1] == round(seconds * RATE) - 1
    assert all(one[1] + 1 == other[0] for one, other in pairwise(parts))
    return parts


@pytest.mark.parametrize("strategy", [None, "auto", {"type": "server_vad", "silence_duration_ms": 200}])
@pytest.mark.parametrize("stream", [False, True])
async def test_a_recording_longer_than_it_hears_is_written_down_whole(
    client: openai.AsyncOpenAI, strategy: Any, stream: bool
) -> None:
    Schedule.after([(1.0, 3.0), (0.5, 1.0), (0.3, 9.0), (1.0, 4.0), (0.25, 0.5)])
    seconds = 31.0
    asked = {"model": "index", "file": ("a.wav", counted(seconds)), "stream": stream}
    if strategy is not None:
        asked["chunking_strategy"] = strategy
    answer: Any = await client.audio.transcriptions.create(**asked)
    if stream:
        events = [each async for each in answer]
        assert "".join(each.delta for each in events[:-1]) == events[-1].text
        answer = events[-1]
    parts = check_whole(answer.text, seconds)
    assert all(last - first < LONGEST * RATE for first, last in parts)
    assert (answer.usage.input_tokens, answer.usage.output_tokens) == (3 * len(parts), 2 * len(parts))
    assert len(parts) >= (8 if isinstance(strategy, dict) else 7)


async def test_times_are_those_of_the_whole(client: openai.AsyncOpenAI) -> None:
    Schedule.after([(1.0, 3.0), (0.7, 2.0), (0.6, 9.0)])
    answer = await client.audio.transcriptions.create(
        model="index",
        file=("a.wav", counted(20.0)),
        response_format="verbose_json",
        timestamp_granularities=["word", "segment"],
        include=["logprobs"],
    )
    parts = check_whole(answer.text, 20.0)
    assert answer.duration == pytest.approx(20.0)
    assert [(each.start, each.end) for each in answer.segments or []] == [
        (pytest.approx(first / RATE), pytest.approx((last + 1) / RATE)) for first, last in parts
    ]
    assert [round(each.start * RATE) for each in answer.words or []] == [each for part in parts for each in part]
    assert [each.id for each in answer.segments or []] == [*range(len(parts))]
    assert answer.model_extra is not None
    tokens = [each["token"] for each in answer.model_extra["logprobs"]]
    assert tokens == [text for first, last in parts for text in (str(first), f" {last}")]


async def test_what_is_short_enough_stays_whole_unless_chunking_is_asked_for(client: openai.AsyncOpenAI) -> None:
    Schedule.turns = [(0.5, 1.5), (2.5, 3.5)]
    file, vad = ("a.wav", counted(4.5)), {"type": "server_vad", "prefix_padding_ms": 100, "threshold": 0.9}
    for strategy, parts in ((None, 1), ("auto", 1), (vad, 2)):
        given: dict[str, Any] = {} if strategy is None else {"chunking_strategy": strategy}
        answer = await client.audio.transcriptions.create(model="index", file=file, **given)
        assert len(check_whole(answer.text, 4.5)) == parts


async def test_speakers_are_told_of_a_whole_recording_only(client: openai.AsyncOpenAI) -> None:
    asked: dict[str, Any] = {"model": "index", "response_format": "diarized_json", "chunking_strategy": "auto"}
    raw = await client.audio.transcriptions.with_raw_response.create(**asked, file=("a.wav", counted(4.0)))
    assert raw.headers["x-omni-ignored"] == "chunking_strategy"
    with pytest.raises(openai.APIStatusError, match=r"over the limit of 5 s for telling speakers apart") as caught:
        await client.audio.transcriptions.create(**asked, file=("a.wav", counted(6.0)))
    assert (caught.value.status_code, caught.value.param) == (413, "file")


@pytest.mark.parametrize(
    ("strategy", "param"),
    [
        ("sometimes", "chunking_strategy"),
        ('{"type": "semantic_vad"}', "chunking_strategy"),
        ('{"type": "server_vad", "threshold": 2}', "chunking_strategy.threshold"),
        ('{"type": "server_vad", "treshold": 0.2}', "chunking_strategy.treshold"),
    ],
)
async def test_a_strategy_that_is_none_is_refused(app: Application, strategy: str, param: str) -> None:
    async with http_client(app) as http:
        answer = await http.post(
            "/v1/audio/transcriptions",
            data={"model": "index", "chunking_strategy": strategy},
            files={"file": ("a.wav", counted(0.1))},
        )
    assert (answer.status_code, answer.json()["error"]["param"]) == (400, param), answer.text


async def test_the_error_of_a_part_is_that_of_the_recording(app: Application) -> None:
    async with open_async(index_recogniser("only_the_first")) as pipe:
        served = create_app(pipe, Settings(limits=Limits(recording_seconds=20.0, audio_seconds=10.0)))
        async with http_client(served) as http:
            assert (await written(http, counted(4.0))).status_code == 200
            failed = await written(http, counted(18.0))
            assert (failed.status_code, failed.json()["error"]["param"]) == (400, "file")
            assert "file: no further samples" in failed.json()["error"]["message"]
            too_long = await written(http, counted(20.5))
            assert (too_long.status_code, too_long.json()["error"]["code"]) == (413, "media_too_large")
            assert served.state.server.admission.running == 0
            assert served.state.server.body_budget.held == 0


class Scripted:
    """A call that answers with its request after some turns of the event loop, and counts those that run."""

    running: ClassVar[set[str]] = set()
    most: ClassVar[int] = 0
    usage: ClassVar[dict[str, int]] = {"completion_tokens": 1}
    finish_reason, transcript = "stop", None

    def __init__(self, server: Any, key: Any, request: str, **given: Any) -> None:
        self.request = request

    async def pieces(self) -> AsyncIterator[Heard]:
        self.running.add(self.request)
        Scripted.most = max(Scripted.most, len(self.running))
        for _ in range(hash(self.request) % 7 * 3):
            await asyncio.sleep(0)
        self.running.discard(self.request)
        yield Heard.of(TranscriptChunk(self.request))


async def test_parts_are_written_at_one_time_and_read_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    read, ahead = 0, 0

    def parts() -> Iterator[Part]:
        nonlocal read
        for number in range(60):
            read += 1
            yield Part(number * 100, np.full(100, number / 1000, np.float32), 100, (number, number + 1))

    def request(data: bytes) -> Any:
        return str(round(np.frombuffer(data[44:], "<i2")[0] / 32.767))

    monkeypatch.setattr(long_recordings, "Call", Scripted)
    server: Any = SimpleNamespace(body_budget=None)
    call = LongCall(server, ANYONE, parts(), request, most=3, times=True, decoded=lambda: None)
    texts = []
    async for piece in call.pieces():
        texts += [piece] if piece else []
        ahead = max(ahead, read - len(texts))
        await asyncio.sleep(0)
    assert "".join(texts) == call.transcript.text == " ".join(map(str, range(60)))
    assert (Scripted.most, call.usage) == (3, {"completion_tokens": 60})
    assert ahead <= 3 * AHEAD + 1
    assert [(each.text, each.start, each.end) for each in call.transcript.segments][-1] == ("59", 59, 60)


@pytest.mark.full
async def test_all_replicas_write() -> None:
    async with open_async(index_recogniser("worker", replicas=2)) as pipe, http_client(create_app(pipe)) as http:
        answer = await written(http, counted(30.0))
    workers = answer.json()["text"].split()
    assert len(workers) >= 6
    assert len(set(workers)) == 2
    assert min(workers.count(each) for each in set(workers)) >= 2


async def written(http: httpx2.AsyncClient, data: bytes) -> httpx2.Response:
    return await http.post("/v1/audio/transcriptions", data={"model": "index"}, files={"file": ("a.wav", data)})
