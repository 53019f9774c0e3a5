"""Conversations of ten turns with the demo, in each of the three ways: a turn computes its new positions, and the recording of the first
one is encoded once. What is lost is computed again, with the same answers.
"""

from __future__ import annotations

import base64
import io
import os
import signal
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import soundfile
from attrs import frozen
from omni_serve_clients import http_client, socket_to

from omni_core import AsyncPipe, open_async
from omni_serve import Settings, create_app
from omni_serve.encoders import pcm16

pytestmark = pytest.mark.asyncio(loop_scope="session")

BLOCK, ASSISTANT_ROWS = 16, 9
QUESTIONS = ["What is your name?", "Hello", "Where is Paris?", "Thank you!", "Say hello."] * 2
SOUND = (0.1 * np.random.default_rng(0).standard_normal(24_000)).astype(np.float32)


def wav() -> str:
    stream = io.BytesIO()
    soundfile.write(stream, SOUND, 24_000, format="WAV", subtype="PCM_16")
    return base64.b64encode(stream.getvalue()).decode()


@frozen
class Answer:
    """The answer to a turn, and the positions of its prompt and its reply, as the client is told."""

    text: str
    prompt: int
    reply: int


Ask = Callable[[str], Awaitable[Answer]]
"""Asks a question as the next turn of a conversation, the first one with a recording."""


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def demo_pipe() -> AsyncIterator[AsyncPipe]:
    async with open_async("demo", options={"processes": "one"}, retries=1) as pipe:
        yield pipe


@asynccontextmanager
async def chat(pipe: AsyncPipe) -> AsyncIterator[Ask]:
    messages: list[dict[str, Any]] = []

    async def ask(text: str) -> Answer:
        sound = [] if messages else [{"type": "input_audio", "input_audio": {"data": wav(), "format": "wav"}}]
        messages.append({"role": "user", "content": [*sound, {"type": "text", "text": text}]})
        reply = await pipe.chat(messages, temperature=0)
        messages.append({"role": "assistant", "content": reply.text})
        return Answer(reply.text, reply.usage.prompt_tokens, reply.usage.completion_tokens)

    yield ask


@asynccontextmanager
async def responses(pipe: AsyncPipe) -> AsyncIterator[Ask]:
    before: list[str] = []
    async with http_client(create_app(pipe, Settings(model="demo"))) as http:

        async def ask(text: str) -> Answer:
            sound = [] if before else [{"type": "input_audio", "input_audio": {"data": wav(), "format": "wav"}}]
            items = [{"role": "user", "content": [*sound, {"type": "input_text", "text": text}]}]
            body = {"model": "demo", "input": items, "temperature": 0}
            answer = (
                await http.post("/v1/responses", json=body | ({"previous_response_id": before[-1]} if before else {}))
            ).json()
            before.append(answer["id"])
            usage = answer["usage"]
            return Answer(answer["output"][0]["content"][0]["text"], usage["input_tokens"], usage["output_tokens"])

        yield ask


@asynccontextmanager
async def realtime(pipe: AsyncPipe) -> AsyncIterator[Ask]:
    async with socket_to(create_app(pipe, Settings(model="demo")), "/v1/realtime?model=demo") as socket:
        audio = {"input": {"turn_detection": None}}
        await socket.send_json({"type": "session.update", "session": {"type": "realtime", "audio": audio}})
        data = base64.b64encode(pcm16(SOUND)).decode()
        await socket.send_json({"type": "input_audio_buffer.append", "audio": data})
        await socket.send_json({"type": "input_audio_buffer.commit"})

        async def ask(text: str) -> Answer:
            item = {"type": "message", "role": "user", "content": [{"type": "input_text", "text": text}]}
            await socket.send_json({"type": "conversation.item.create", "item": item})
            await socket.send_json({"type": "response.create"})
            event: dict[str, Any] = {"type": ""}
            while event["type"] != "response.done":
                event = await socket.receive_json()
                assert event["type"] != "error", event
            done = event["response"]
            written = done["usage"]["output_token_details"]["text_tokens"]
            return Answer(done["output"][0]["content"][0]["transcript"], done["usage"]["input_tokens"], written)

        yield ask


async def counters(pipe: AsyncPipe) -> dict[str, dict[str, float]]:
    return (await pipe.statistics())["pipeline"]


@frozen
class Computed:
    """The positions of a prompt, and those that a stage has found."""

    prompt: int
    found: int

    @classmethod
    def between(cls, stage: str, before: Any, after: Any) -> Computed:
        names = ("prompt_positions", "reused_positions")
        return cls(*(int(after[stage][name] - before[stage][name]) for name in names))


WAYS = (chat, responses, realtime)


@pytest.mark.parametrize("way", WAYS)
async def test_a_turn_computes_its_new_positions(demo_pipe: AsyncPipe, way: Any) -> None:
    await demo_pipe.flush_caches()
    begin = await counters(demo_pipe)
    last, said = Answer("", 0, 1), 0
    async with way(demo_pipe) as ask:
        for question in QUESTIONS:
            before = await counters(demo_pipe)
            answer = await ask(question)
            after = await counters(demo_pipe)
            # The last id of a reply ends it: it is not computed, until it stands in the next prompt.
            known = (last.prompt + last.reply - 1) // BLOCK * BLOCK
            assert Computed.between("thinker", before, after) == Computed(answer.prompt, known)
            assert answer.prompt - known < 45, "a question, the marks of a turn, and less than a block"
            talker = Computed.between("talker_ar", before, after)
            assert talker.found == said // BLOCK * BLOCK
            last, said = answer, max(0, talker.prompt - ASSISTANT_ROWS)
    assert last.prompt > 150
    assert (said > 0) == (way is not responses), "responses are texts"
    end = await counters(demo_pipe)
    names = [f"encoder_cache.{each}" for each in ("misses", "hits")]
    encoded = [end["audio_encoder"][name] - begin["audio_encoder"][name] for name in names]
    assert encoded == [1, 9]


@pytest.mark.parametrize(
    ("way", "lost"),
    [
        *((way, "flushed") for way in WAYS),
        (chat, "killed"),
        *(pytest.param(way, "killed", marks=pytest.mark.full) for way in (responses, realtime)),
    ],
)
async def test_what_is_lost_is_computed_again(demo_pipe: AsyncPipe, way: Any, lost: str) -> None:
    texts: list[list[str]] = []
    for loses in (False, True):
        texts.append([])
        async with way(demo_pipe) as ask:
            for number, question in enumerate(QUESTIONS[:4]):
                if loses and number == 3:
                    before = await counters(demo_pipe)
                    if lost == "flushed":
                        await demo_pipe.flush_caches()
                    else:  # the next process counts anew
                        os.kill(demo_pipe.process_ids["pipeline"], signal.SIGKILL)
                        before = {"thinker": {"prompt_positions": 0, "reused_positions": 0}}
                texts[-1].append((await ask(question)).text)
    after = await counters(demo_pipe)
    assert Computed.between("thinker", before, after).found == 0
    assert texts[0] == texts[1]
    assert len(set(texts[0])) == 4


async def test_two_conversations_at_the_same_time(demo_pipe: AsyncPipe) -> None:
    await demo_pipe.flush_caches()
    async with chat(demo_pipe) as one, responses(demo_pipe) as other:
        alone = [await one(question) for question in QUESTIONS[:4]]
        await demo_pipe.flush_caches()
        last: dict[Any, Answer] = {}
        async with chat(demo_pipe) as one:
            for number, question in enumerate(QUESTIONS[:4]):
                for ask, text in ((one, question), (other, QUESTIONS[3 - number])):
                    before = await counters(demo_pipe)
                    answer = await ask(text)
                    found = Computed.between("thinker", before, await counters(demo_pipe)).found
                    if ask in last:
                        assert found == (last[ask].prompt + last[ask].reply - 1) // BLOCK * BLOCK
                    last[ask] = answer
                    if ask is one:
                        assert answer == alone[number]
