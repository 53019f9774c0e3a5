"""The demo's speech matches its text, according to a speech recogniser that was not trained on it."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from demo_training.speech import report
from demo_training.speech.judge import Judge, backwards, noise_like
from omni_core.client import AsyncPipe, open_async
from omni_core.protocol.outputs import AudioChunk
from omni_demo.speech.phrases import REPLIES
from omni_demo.speech.pipeline import CHECKPOINT, demo

pytestmark = pytest.mark.asyncio(loop_scope="session")

WANTED = 22
"""The least number of recognised replies of 24: nine in ten."""
CHANCE = 3
"""The most recognised controls of 24; chance is one."""


async def test_the_speech_recogniser_recognises_the_reply(client: AsyncPipe) -> None:
    asked = report.one_of_each()
    assert [each.reply for each in asked] == list(REPLIES)
    answers = await asyncio.gather(*(report.answer(client, each) for each in asked))
    judge = Judge(REPLIES)
    right = {"speech": 0, "backwards": 0, "noise": 0}
    for said, wave in answers:
        samples = {"speech": wave, "backwards": backwards(wave), "noise": noise_like(wave)}
        for name, sample in samples.items():
            right[name] += judge.hear(sample) == said
    assert right["speech"] >= WANTED, right
    assert right["backwards"] <= CHANCE, right
    assert right["noise"] <= CHANCE, right


async def test_speech_is_as_long_as_the_reply_and_not_silent(client: AsyncPipe) -> None:
    texts = {each.reply: each for each in report.one_of_each()}
    (_, short), (_, long) = [
        await report.answer(client, texts[reply]) for reply in ("You are welcome.", "Once upon a time, a fox slept.")
    ]
    assert 1 < len(short) / 24_000 < len(long) / 24_000 < 3.5
    assert min(np.abs(short).max(), np.abs(long).max()) > 0.2


@pytest.mark.parametrize(("initial_chunk", "chunk"), [(1, 1), (4, 24)])
async def test_streamed_speech_equals_one_shot(initial_chunk: int, chunk: int) -> None:
    request = report.request_of([{"role": "user", "content": "Tell me a story."}])
    options = {"processes": "one"}
    async with open_async(demo(str(CHECKPOINT), **options, initial_chunk=300, chunk=300)) as client:
        whole = np.asarray((await client.submit(request))["code2wav"].samples)
    pieces = []
    async with open_async(demo(str(CHECKPOINT), **options, initial_chunk=initial_chunk, chunk=chunk)) as client:
        async for event in client.stream(request):
            if not event.final and isinstance(event.data, AudioChunk):
                pieces.append(np.asarray(event.data.samples))
    assert len(pieces) > 1
    np.testing.assert_allclose(np.concatenate(pieces), whole, atol=1e-4)
