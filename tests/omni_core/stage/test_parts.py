"""Stages of a composed pipeline: the names, requests and inputs that a part sees."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from attrs import evolve

from omni_core.control.back_pressure import MOST_CHUNKS
from omni_core.protocol.messages import FlowMessage, OmniRequest, StagePayload
from omni_core.protocol.outputs import ReasoningChunk, TextChunk
from omni_core.protocol.specs import PartSpec
from omni_core.scheduling.base import IncomingMessage
from omni_core.stage.parts import Names, part_request, part_terminals
from tests.omni_core.stage.test_stage import Process, Recorded, payload


@pytest.fixture
async def process() -> Process:
    made = Process()
    made.spec.stage_endpoints["llm-write"] = {0: "at llm"}
    return made


READS = PartSpec(outputs=["audio"], reads_streams=True, metadata={"language": "tts_language"})


def kinds(scheduler: Recorded) -> list[tuple[str, Any, str | None]]:
    def shown(message: IncomingMessage) -> Any:
        return message.data.request.inputs if message.type == "new_request" else message.data

    return [(each.type, shown(each), each.source) for each in scheduler.inbox.drain()]


def entry(process: Process, *, stream: bool) -> Any:
    sources = ["llm-write"] if stream else []
    return process.stage("tts-say", part="tts", enters=READS, stream_from=sources, terminal=True)


async def test_the_result_of_another_part_is_the_input_of_a_request(process: Process) -> None:
    stage, scheduler = entry(process, stream=False)
    metadata = {"language": "de", "tts_language": "fr"}
    stage.receive_payload(payload({"text": "hi"}, metadata=metadata, modalities=["text", "audio"]), "llm-write")
    new, done = scheduler.inbox.drain()
    assert (new.source, new.data.data, new.data.request.inputs) == (None, None, {"text": "hi"})
    assert (new.request.metadata, new.request.modalities, new.request.inputs) == ({"language": "fr"}, ["audio"], None)
    assert (done.type, done.source) == ("stream_done", None)


async def test_chunks_of_another_part_are_the_input_and_its_result_is_not(process: Process) -> None:
    stage, scheduler = entry(process, stream=True)
    stage.receive_chunk("r", "llm-write", ("one", None, OmniRequest(metadata={"tts_language": "fr"})))
    stage.receive_chunk("r", "llm-write", ("two", None, None))
    stage.receive_done("r", "llm-write")
    stage.receive_payload(payload("onetwo"), "llm-write")
    assert kinds(scheduler) == [
        ("new_request", None, None),
        ("stream_chunk", "one", None),
        ("stream_chunk", "two", None),
        ("stream_done", None, None),
    ]


async def test_a_part_that_streams_nothing_gives_an_empty_input(process: Process) -> None:
    stage, scheduler = entry(process, stream=True)
    stage.receive_done("r", "llm-write")
    assert kinds(scheduler) == []  # nobody has told what the request is
    stage.receive_payload(payload("nothing"), "llm-write")
    assert kinds(scheduler) == [("new_request", None, None), ("stream_done", None, None)]


async def test_of_several_parts_the_first_is_the_input(process: Process) -> None:
    stage, scheduler = entry(process, stream=True)
    stage.receive_payload(payload({"text": "hi"}), "front-read")
    stage.receive_chunk("r", "llm-write", ("one", None, None))
    stage.receive_done("r", "llm-write")
    assert kinds(scheduler) == [("new_request", {"text": "hi"}, None), ("stream_done", None, None)]


OPENING = {"messages": [], "references": [{"path": "a voice"}]}


async def test_a_part_may_open_a_request_whose_input_another_one_streams(process: Process) -> None:
    expected = [
        ("new_request", OPENING, None),
        ("stream_chunk", "one", None),
        ("stream_chunk", "two", None),
        ("stream_done", None, None),
    ]
    stage, scheduler = entry(process, stream=True)
    stage.receive_payload(payload(OPENING), "door-open")
    stage.receive_chunk("r", "llm-write", ("one", None, None))
    stage.receive_chunk("r", "llm-write", ("two", None, None))
    stage.receive_done("r", "llm-write")
    stage.receive_payload(payload("onetwo"), "llm-write")
    assert kinds(scheduler) == expected
    stage.receive_payload(payload(OPENING, request_id="silent"), "door-open")
    stage.receive_done("silent", "llm-write")
    assert kinds(scheduler) == [expected[0], expected[-1]]


async def test_what_comes_before_the_opening_waits_for_it(process: Process) -> None:
    stage, scheduler = process.stage(
        "tts-say",
        part="tts",
        enters=READS,
        stream_from=["llm-write"],
        terminal=True,
        wait_for=["door-open", "llm-write"],
        wait_for_fn=f"{__name__}:the_door",
        merge_fn=f"{__name__}:the_only_one",
    )
    for _ in range(MOST_CHUNKS):
        stage.receive_chunk("r", "llm-write", ("x", None, OmniRequest()))
    stage.receive_done("r", "llm-write")
    stage.receive_payload(payload("x" * MOST_CHUNKS), "llm-write")
    await asyncio.sleep(0)
    assert process.take("at llm") == [FlowMessage("r", "tts-say", True)]
    assert kinds(scheduler) == []
    stage.receive_payload(payload(OPENING), "door-open")
    chunks = [("stream_chunk", "x", None)] * MOST_CHUNKS
    assert kinds(scheduler) == [("new_request", OPENING, None), *chunks, ("stream_done", None, None)]
    await asyncio.sleep(0)
    assert process.take("at llm") == [FlowMessage("r", "tts-say", False)]
    whole = {"messages": [{"role": "user", "content": "hi"}]}
    stage.receive_chunk("whole", "llm-write", ("x", None, OmniRequest()))
    stage.receive_payload(payload(whole, request_id="whole"), "door-open")
    stage.receive_done("whole", "llm-write")
    assert kinds(scheduler) == [("new_request", whole, None), ("stream_done", None, None)]


def the_door(request_id: str, source: str, payload: StagePayload) -> list[str]:
    return ["door-open"]


def the_only_one(payloads: dict[str, StagePayload]) -> StagePayload:
    [one] = payloads.values()
    return one


class Bracketed:
    """The service ``tool-calls``: calls are in brackets."""

    def __init__(self, name: str) -> None:
        assert name == "brackets"
        self._held = ""

    def feed(self, text: str) -> tuple[str, list[str]]:
        if "fail" in text:
            raise ValueError("not readable")
        text, mark, self._held = (self._held + text).partition("[")
        call, end, rest = self._held.partition("]")
        if not end:
            self._held = mark + self._held
            return text, []
        self._held = ""
        return text + rest, [call]

    def finish(self) -> tuple[str, list[str]]:
        return self._held, []


async def test_calls_of_tools_in_the_text_of_another_part_are_left_out(
    process: Process, caplog: pytest.LogCaptureFixture
) -> None:
    enters = evolve(READS, tool_formats={"llm-write": "brackets"})

    def given(name: str, *chunks: Any) -> list[Any]:
        stage, scheduler = process.stage(
            name, part="tts", enters=enters, stream_from=["llm-write", "guard-write"], terminal=True
        )
        for chunk in chunks:
            stage.receive_chunk("r", "llm-write", (chunk, None, OmniRequest()))
        stage.receive_done("r", "llm-write")
        return [each.data for each in scheduler.inbox.drain() if each.type == "stream_chunk"]

    said = [TextChunk("one [ca"), ReasoningChunk("[hm]"), TextChunk("ll]"), 5, TextChunk("two"), TextChunk("[no end")]
    assert given("tts-none", *said) == said
    assert "passed on as text" in caplog.text
    process.spec.services["tool-calls"] = f"{__name__}:Bracketed"
    assert given("tts-say", *said) == [
        TextChunk("one "),
        ReasoningChunk("[hm]"),
        5,
        TextChunk("two"),
        TextChunk("[no end"),
    ]
    assert given("tts-fail", TextChunk("one"), TextChunk("fail"), TextChunk("two")) == [TextChunk("one")]
    assert process.errors() == [("r", "ValueError: not readable")]


async def test_a_part_that_is_slow_lets_the_other_wait(process: Process) -> None:
    stage, scheduler = entry(process, stream=True)
    for _ in range(MOST_CHUNKS):
        stage.receive_chunk("r", "llm-write", ("x", None, OmniRequest()))
    await asyncio.sleep(0)
    assert process.take("at llm") == [FlowMessage("r", "tts-say", True)]
    scheduler.inbox.drain()
    await asyncio.sleep(0)
    assert process.take("at llm") == [FlowMessage("r", "tts-say", False)]
    assert process.take("coordinator") == []


def test_a_request_is_seen_again_as_the_client_gave_it() -> None:
    given = OmniRequest("heavy", {"write": 1, "asr_write": 2, "seed": 3}, ["audio"], {"language": "de"})
    asr = part_request(given, PartSpec(outputs=[], params={"write": "asr_write"}))
    assert (asr.params, asr.modalities, asr.inputs) == ({"write": 2, "seed": 3}, None, "heavy")
    llm = part_request(asr, PartSpec(outputs=["text"], metadata={"language": "llm_language"}))
    assert (llm.params, llm.metadata, llm.modalities) == ({"write": 1, "asr_write": 2, "seed": 3}, {}, None)
    assert part_request(llm, PartSpec(outputs=["audio"])).modalities == ["audio"]


def test_names_are_those_of_the_part_where_it_has_them() -> None:
    names = Names("llm")
    assert [names.own(name) for name in ("llm-write", "tts-say")] == ["write", "tts-say"]
    assert names.whole("write", ["llm-write"]) == "llm-write"
    assert names.whole("tts-say", ["llm-write", "tts-say"]) == "tts-say"
    chosen = names.chooses(lambda one, two: [one, two], ["llm-a", "llm-b"])
    assert chosen is not None
    assert chosen("a", "b") == ["llm-a", "llm-b"]
    assert names.chooses(lambda: None, []) is not None
    alone = Names("")
    assert (alone.own("a-b"), alone.whole("b", ["a-b"])) == ("a-b", "b")


def test_terminal_stages_are_those_that_parts_choose_and_the_client_wants() -> None:
    def of_llm(request: OmniRequest) -> Any:
        return "write" if request.params.get("short") else None

    parts = {"llm": (PartSpec(outputs=["text"]), of_llm), "tts": (PartSpec(outputs=["audio"]), None)}
    choose = part_terminals(parts, ["llm-write", "llm-think", "tts-say"])
    assert choose(OmniRequest()) == ["llm-write", "llm-think", "tts-say"]
    assert choose(OmniRequest(params={"short": True})) == ["llm-write", "tts-say"]
    assert choose(OmniRequest(modalities=["audio"])) == ["tts-say"]
    assert choose(OmniRequest(modalities=["image"])) is None
