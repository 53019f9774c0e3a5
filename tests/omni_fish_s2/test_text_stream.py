"""Text that another stage writes is spoken while it arrives: the same speech however it is cut, and sound before the
text ends.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
from collections.abc import AsyncIterator
from contextlib import suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import part_stages
import pytest
import pytest_asyncio
import soundfile
from attrs import evolve
from fish_cases import REFERENCE_TEXT, TWO_SPEAKERS, sound
from fish_driving import GREEDY, create_semantic_ar, speak
from fish_harness import collect, fails
from hypothesis import given
from hypothesis import strategies as st
from running import running

from omni_core.api import Edge, compose
from omni_core.client import AsyncPipe, open_async
from omni_core.config.schema import EndpointsConfig, PipelineConfig, StageConfig
from omni_core.errors import ConfigError, InvalidRequestError, OmniError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.outputs import ReasoningChunk, TextChunk
from omni_core.scheduling.base import IncomingMessage
from omni_fish_s2.config import read_config
from omni_fish_s2.pipeline import fish_s2, speech_stages
from omni_fish_s2.preprocessing import create_preprocessing
from omni_fish_s2.prompt import PromptBuilder
from omni_fish_s2.semantic import MOST_TURNS
from omni_fish_s2.text import LATER_BYTES, TextCutter

TEXT = (
    "A fox! It sleeps by the sea, in the red house.  Nobody knows why it came here, or from where. "
    "Some say from the city; others, from the woods. It says nothing.\n\nIt is a fox."
)
TURNS = [
    "A fox!",
    "It sleeps by the sea, in the red house.  Nobody knows why it came here, or from where. "
    "Some say from the city; others, from the woods.",
    "It says nothing.\n\nIt is a fox.",
]


def cut(pieces: list[str], most: int = 512) -> list[str]:
    cutter = TextCutter(most)
    return [turn for piece in pieces for turn in cutter.feed(piece)] + cutter.finish()


def test_turns_are_whole_sentences() -> None:
    assert cut([TEXT]) == TURNS
    assert all(len(turn) >= LATER_BYTES for turn in TURNS[1:-1])
    assert cut(["  ", "\n"]) == []
    assert cut(["no end"]) == ["no end"]
    assert cut(["a b c " * 20], 40)[0] == "a b c a b c a b c a b c a b c a b c a b"
    assert cut(["x" * 100], 40) == ["x" * 40, "x" * 40, "x" * 20]


def test_a_first_turn_is_ready_before_the_text_is() -> None:
    cutter = TextCutter(512)
    assert cutter.feed("A fox!") == []
    assert cutter.feed(" ") == []
    assert cutter.feed("I") == ["A fox!"]


def test_a_speaker_goes_on_speaking() -> None:
    assert cut(["<|speaker:2|>One. Two. " + "And so on. " * 12]) == [
        "<|speaker:2|>One.",
        "<|speaker:2|>Two. " + "And so on. " * 10 + "And so on.",
        "<|speaker:2|>And so on.",
    ]
    assert cut([TWO_SPEAKERS])[0].startswith("<|speaker:0|>")


WORDS = st.text(st.sampled_from("ab .!?。\n ,é🦊"), max_size=200)


@given(WORDS, st.lists(st.integers(1, 40), max_size=12), st.integers(40, 90))
def test_the_turns_do_not_depend_on_the_pieces(text: str, sizes: list[int], most: int) -> None:
    pieces, rest = [], text
    for size in sizes:
        pieces.append(rest[:size])
        rest = rest[size:]
    turns = cut([*pieces, rest], most)
    assert turns == cut([text], most) == cut(list(text), most)
    assert "".join("".join(turns).split()) == "".join(text.split())
    assert all(len(turn.encode()) <= most for turn in turns)


def config_of(checkpoint: Path, **options: object) -> PipelineConfig:
    writer = StageConfig(
        name="writer", process="writer", factory="fish_writer:Writer", next="preprocessing", stream_to=["preprocessing"]
    )
    stages = speech_stages(model_path=str(checkpoint), text_stream=True, processes="one", **options)  # type: ignore[arg-type]
    endpoints = EndpointsConfig(tempfile.mkdtemp(prefix="t", dir="/tmp"))
    return PipelineConfig(model_path="none", name="spoken", stages=[writer, *stages], endpoints=endpoints)


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(tiny: dict[str, Path]) -> AsyncIterator[AsyncPipe]:
    async with open_async(config_of(tiny["b"], initial_chunk=2, chunk=4, max_characters=300)) as opened:
        yield opened


def written(pieces: list[object], pause: float = 0.0, **fields: object) -> OmniRequest:
    params = {"semantic": {**GREEDY, "max_new_tokens": 12}, "return_codes": True, "thinker": {"temperature": 0.5}}
    return OmniRequest({"pieces": pieces, "pause": pause}, {**params, **fields})


def expected(checkpoint: Path, turns: list[str]) -> np.ndarray:
    """The same turns as one request with the whole text."""
    inputs = PromptBuilder(str(checkpoint), read_config(checkpoint)).build(turns, [])
    payload = StagePayload("r", OmniRequest(params={"semantic": {**GREEDY, "max_new_tokens": 12}}), inputs)
    return speak(create_semantic_ar(str(checkpoint)), [IncomingMessage("r", "new_request", payload)])["r"]


@pytest.mark.asyncio(loop_scope="module")
async def test_it_is_the_speech_of_the_whole_text(client: AsyncPipe, tiny: dict[str, Path]) -> None:
    codes = expected(tiny["b"], TURNS)
    letters, words = list(TEXT), [f"{word} " for word in TEXT.split(" ")]
    words[-1] = words[-1].rstrip()
    thoughts = ReasoningChunk("I wonder.")
    requests = [
        written([thoughts, TEXT]),
        written(letters),
        written(words, 0.002),
        written([TEXT[:70], TEXT[70:]], 0.3),
    ]
    for request in requests:
        answer = (await client.submit(request))["vocoder"]
        assert np.array_equal(answer.codes, codes)
        assert len(answer.samples) == 2048 * len(codes)
    for answer in await asyncio.gather(*map(client.submit, requests)):
        assert np.array_equal(answer["vocoder"].codes, codes)


@pytest.mark.asyncio(loop_scope="module")
async def test_sound_comes_before_the_text_has_ended(client: AsyncPipe) -> None:
    """The writer pauses for ten seconds after its second sentence has begun."""
    stream = client.stream(written(["A fox! It", " sleeps."], 10.0), "early")
    first = await asyncio.wait_for(anext(stream), 8.0)
    assert len(first.data.samples) == 2 * 2048
    await client.abort("early")


@pytest.mark.asyncio(loop_scope="module")
async def test_an_empty_text_gives_empty_speech(client: AsyncPipe) -> None:
    for pieces in ([], [""], [" \n"]):
        pieces_of, final = await collect(client, written(pieces))
        assert not pieces_of
        assert len(final.samples) == 0


@pytest.mark.asyncio(loop_scope="module")
async def test_reserved_markers_are_rejected(client: AsyncPipe) -> None:
    assert "reserved" in await fails(client, written(["Fine. But <|im_", "end|> is not. "]))
    assert "limit of 300" in await fails(client, written(["Hello. " * 50]))
    assert "params.semantic.heat" in await fails(client, written(["Hello."], semantic={"heat": 1}))
    with pytest.raises(Exception, match="must be str or TextChunk, is int"):
        await client.submit(written([5]))
    assert (await client.submit(written(["Hello."])))["vocoder"].samples.size > 0
    for _ in range(100):
        statistics = await client.statistics()
        left = {key: value for each in statistics.values() for part in each.values() for key, value in part.items()
                if key in ("running", "pending", "in_flight") and value}  # fmt: skip
        if not left:
            break
        await asyncio.sleep(0.05)
    assert not left


def test_a_voice_for_all_is_read_at_the_start(tiny: dict[str, Path], tmp_path: Path) -> None:
    path = tmp_path / "voice.wav"
    soundfile.write(path, sound(20_000), 44_100)
    stage = create_preprocessing(str(tiny["a"]), text_stream=True, reference=str(path), reference_text=REFERENCE_TEXT)
    with running(stage):
        stage.inbox.put(IncomingMessage("r", "stream_chunk", "Hello. You"))
        inputs = stage.outbox.get(20).data  # type: ignore[union-attr]
    assert len(inputs["codes"]) == 10
    with pytest.raises(InvalidRequestError, match=r"references\[0\]\.text"):
        create_preprocessing(str(tiny["a"]), text_stream=True, reference=str(path))
    with pytest.raises(ConfigError, match="text_stream"):
        create_preprocessing(str(tiny["a"]), reference=str(path))
    with pytest.raises(ConfigError, match="segment_bytes"):
        create_preprocessing(str(tiny["a"]), segment_bytes=10)


SPOKEN: dict[str, Any] = {"semantic": {**GREEDY, "max_new_tokens": 12}, "return_codes": True}


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def open_pipe(tiny: dict[str, Path]) -> AsyncIterator[AsyncPipe]:
    config = fish_s2(str(tiny["b"]), processes="one", initial_chunk=2, chunk=4, gpu=None, max_characters=300)
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        async with open_async(evolve(config, endpoints=EndpointsConfig(folder))) as opened:
            yield opened


async def sent(pipe: AsyncPipe, chunks: list[str], inputs: dict[str, Any] | None = None, **params: Any) -> Any:
    """Send the text of a request while its sound is read; return the result."""
    asked = OmniRequest({"messages": [], **(inputs or {})}, {**SPOKEN, **params})
    async with asyncio.timeout(60), pipe.open_request(asked) as request:
        reading = asyncio.ensure_future(request.results())
        with suppress(OmniError):  # the reader tells it
            for chunk in chunks:
                await request.send(TextChunk(chunk))
            await request.finish()
        return (await reading)["vocoder"]


@pytest.mark.asyncio(loop_scope="module")
async def test_a_text_that_the_client_writes_is_spoken_alike_for_every_cut(
    open_pipe: AsyncPipe, tiny: dict[str, Path]
) -> None:
    codes = expected(tiny["b"], TURNS)
    drawn = random.Random(2)
    cuts = [[], [*range(len(TEXT))], *(sorted(drawn.choices(range(len(TEXT)), k=9)) for _ in range(2))]
    pieces = [[TEXT[begin:end] for begin, end in pairwise([0, *cut, len(TEXT)])] for cut in cuts]
    for each in pieces:
        assert np.array_equal((await sent(open_pipe, each)).codes, codes)
    for answer in await asyncio.gather(*(sent(open_pipe, each) for each in pieces)):
        assert np.array_equal(answer.codes, codes)
    whole = {"messages": [{"role": "user", "content": "A fox!"}]}
    found = await asyncio.gather(open_pipe.submit(OmniRequest(whole, SPOKEN)), sent(open_pipe, ["A fox!"]))
    assert np.array_equal(found[0]["vocoder"].codes, found[1].codes), "one turn is that of the whole text"
    assert np.array_equal((await sent(open_pipe, [], whole)).codes, found[1].codes)


@pytest.mark.asyncio(loop_scope="module")
async def test_it_is_the_voice_of_a_composed_pipeline(open_pipe: AsyncPipe, tiny: dict[str, Path]) -> None:
    voice = fish_s2(str(tiny["b"]), processes="one", gpu=None)
    with tempfile.TemporaryDirectory(prefix="t", dir="/tmp") as folder:
        edges = [Edge("mind", "voice", stream=True, keep=True)]
        config = compose({"mind": part_stages.mind(), "voice": voice}, edges, endpoints=EndpointsConfig(folder))
        async with open_async(config) as pipe:
            message = {"role": "user", "content": "A fox! It sleeps by the sea."}
            found = await pipe.submit(OmniRequest({"messages": [message]}, SPOKEN))
    alone = await sent(open_pipe, [found["mind-decode"].text])
    assert np.array_equal(found["voice-vocoder"].codes, alone.codes)


@pytest.mark.asyncio(loop_scope="module")
async def test_a_client_hears_the_first_sentence_before_it_writes_the_third(open_pipe: AsyncPipe) -> None:
    async with open_pipe.open_request(OmniRequest({"messages": []}, SPOKEN)) as request:
        await request.send(TextChunk("A fox! It"))
        assert len((await anext(request)).data.samples) == 2 * 2048


@pytest.mark.asyncio(loop_scope="module")
async def test_a_text_that_the_client_writes_has_the_voice_of_a_recording(
    open_pipe: AsyncPipe, tiny: dict[str, Path]
) -> None:
    voice = {"references": [{"samples": sound(20_000), "sample_rate": 44_100, "text": REFERENCE_TEXT}]}
    message = {"messages": [{"role": "user", "content": "A fox!"}]}
    whole = (await open_pipe.submit(OmniRequest({**message, **voice}, SPOKEN)))["vocoder"]
    assert np.array_equal((await sent(open_pipe, ["A fo", "x!"], voice)).codes, whole.codes)
    assert not np.array_equal((await sent(open_pipe, ["A fox!"])).codes, whole.codes)
    with pytest.raises(OmniError, match=r"references\[0\]\.text"):
        await sent(open_pipe, ["A fox! It sleeps."], {"references": [{"samples": sound(99), "sample_rate": 44_100}]})


@pytest.mark.asyncio(loop_scope="module")
async def test_texts_of_a_client_that_cannot_be_spoken(open_pipe: AsyncPipe) -> None:
    for chunks, words in (
        ([], "no text to speak"),
        ([" \n"], "no text to speak"),
        (["x" * 301], "limit of 300 characters"),
        (["Not <|im_", "end|> this. "], "reserved"),
    ):
        with pytest.raises(OmniError, match=words):
            await sent(open_pipe, chunks)
    with pytest.raises(OmniError, match=r"params\.semantic\.heat"):
        await sent(open_pipe, ["A fox!"], semantic={"heat": 1})
    assert len((await sent(open_pipe, ["A fox!"])).samples)


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    ("rest", "words"),
    [("And so on. " * 40, "limit of 300 characters"), ("But <|im_end|> is not it. " + "And so on. " * 15, "reserved")],
)
async def test_a_text_that_fails_does_so_after_what_is_complete(open_pipe: AsyncPipe, rest: str, words: str) -> None:
    text = "A fox! " + rest
    heard = []
    for cut in ([], [*range(len(text))], [30, 31, 60]):
        pieces = []
        async with asyncio.timeout(60), open_pipe.open_request(OmniRequest({"messages": []}, SPOKEN)) as request:
            with suppress(OmniError):
                for begin, end in pairwise([0, *cut, len(text)]):
                    await request.send(TextChunk(text[begin:end]))
            with pytest.raises(InvalidRequestError, match=words):  # without an end of the input
                async for event in request:
                    pieces.append(event.data.samples)
        heard.append(np.concatenate(pieces))
    alone = await sent(open_pipe, ["A fox!"])
    for each in heard:
        assert np.array_equal(each, heard[0]), "what is heard depends on the cut"
        assert np.allclose(each[: len(alone.samples)], alone.samples, atol=1e-4)
    assert (len(heard[0]) == len(alone.samples)) == (words == "reserved")


def test_a_request_that_came_with_its_text_takes_no_more(tiny: dict[str, Path]) -> None:
    stage: Any = create_preprocessing(str(tiny["a"]))
    whole = StagePayload("r", OmniRequest({"messages": [{"role": "user", "content": "A fox!"}]}))
    for message in (
        IncomingMessage("r", "new_request", whole),
        IncomingMessage("r", "stream_chunk", TextChunk("More.")),
        IncomingMessage("other", "new_request", whole),
    ):
        stage.inbox.put(message)
    stage.turn()
    found = {message.request_id: message for message in stage.outbox.drain()}
    assert "came with its text" in str(found["r"].data)
    assert "token_ids" in found["other"].data, "without an end of a stream, which not every pipeline sends"
    assert stage.running == 0


def test_whoever_writes_waits_while_many_turns_are_not_spoken(tiny: dict[str, Path]) -> None:
    scheduler = create_semantic_ar(str(tiny["b"]))
    told: list[tuple[str, bool]] = []
    scheduler.hold_input = lambda request_id, held: told.append((request_id, held))
    builder = PromptBuilder(str(tiny["b"]), read_config(tiny["b"]))
    request = OmniRequest(params={"semantic": {**GREEDY, "max_new_tokens": 3}})

    def put(kind: Any, data: Any = None) -> None:
        scheduler.inbox.put(IncomingMessage("r", kind, data, "preprocessing", None, request))

    put("stream_chunk", builder.build(["A fox!"], []))
    for _ in range(2 * MOST_TURNS):
        put("stream_chunk", builder.following("It sleeps."))
    scheduler.loop.turn()
    assert told == [("r", True)]
    put("stream_done")
    put("new_request", StagePayload("r", request, {}))
    with running(scheduler):
        while (message := scheduler.outbox.get(60)) is not None and message.type == "stream":
            pass
    assert message is not None
    assert message.data["frames"] > 0
    assert told == [("r", True), ("r", False)]
