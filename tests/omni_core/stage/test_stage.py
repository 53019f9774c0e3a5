"""A stage between a scheduler and a control plane in memory: messages in, outputs and failures out."""

from __future__ import annotations

import asyncio
import sys
import threading
import weakref
from typing import Any

import pytest

from omni_cli.tracing.recorder import Recorder
from omni_core.control.back_pressure import MOST_CHUNK_BYTES, MOST_CHUNKS, MOST_OUTPUTS
from omni_core.control.lanes import in_task
from omni_core.errors import RelayCapacityError, TransportError
from omni_core.protocol.codec import decode
from omni_core.protocol.messages import (
    CompleteMessage,
    DataReadyMessage,
    FlowMessage,
    InputTaken,
    OmniRequest,
    StagePayload,
    StageSpan,
    StreamMessage,
)
from omni_core.protocol.specs import ProcessSpec, StageSpec
from omni_core.relay.table import Relays
from omni_core.relay.transfer import Transfer
from omni_core.scheduling.base import IncomingMessage, MessageQueue, OutgoingMessage
from omni_core.stage.outbound import Outbound
from omni_core.stage.stage import Stage


class Control:
    """Records the messages sent, by endpoint; peers can be behind."""

    def __init__(self) -> None:
        self.sent: dict[str, list[Any]] = {}
        self.behind: set[str] = set()
        self.caught_up = asyncio.Event()

    def send(self, endpoint: str, message: Any, work: tuple[str, str] | None = None) -> None:
        self.sent.setdefault(endpoint, []).append(message)

    tell = send

    def is_behind(self, endpoint: str) -> bool:
        return endpoint in self.behind

    async def room(self, endpoint: str) -> None:
        await in_task()
        await self.caught_up.wait()


class Recorded:
    """A scheduler that computes nothing and records the ids of aborted requests."""

    def __init__(self) -> None:
        self.inbox: MessageQueue[IncomingMessage] = MessageQueue()
        self.outbox: MessageQueue[OutgoingMessage] = MessageQueue()
        self.aborted: list[str] = []
        self.error: BaseException | None = None

    def start(self) -> None:
        if self.error is not None:
            raise self.error
        while not self.inbox.closed:
            threading.Event().wait(0.001)

    def stop(self) -> None:
        self.inbox.close()

    def abort(self, request_id: str) -> None:
        self.aborted.append(request_id)


class Process:
    """Stages of one process with their sent messages; ``b`` and ``c`` are elsewhere unless they are made here."""

    def __init__(self) -> None:
        self.control = Control()
        spec = self.spec = ProcessSpec(
            name="p",
            stages=[],
            endpoint="self",
            coordinator_endpoint="coordinator",
            stage_endpoints={"b": {0: "at b"}, "c": {0: "at c 0", 1: "at c 1"}},
        )
        relays = Relays({}, {})
        transfer = Transfer(self.control, relays)  # type: ignore[arg-type]
        self.outbound = Outbound(spec, self.control, transfer, relays)  # type: ignore[arg-type]
        self.deaths: list[str] = []

    def stage(self, name: str = "a", **fields: Any) -> tuple[Stage, Recorded]:
        scheduler = Recorded()
        spec = StageSpec(name=name, factory="m:f", **fields)
        stage = Stage(spec, scheduler, self.outbound, lambda: self.deaths.append(name))
        self.outbound.local[name] = stage
        return stage, scheduler

    def take(self, endpoint: str) -> list[Any]:
        return self.control.sent.pop(endpoint, [])

    def errors(self) -> list[tuple[str, str]]:
        return [
            (message.request_id, f"{message.error.error_type}: {message.error.message}")
            for message in self.take("coordinator")
            if isinstance(message, CompleteMessage) and message.error is not None
        ]


@pytest.fixture
async def process() -> Process:
    return Process()


def payload(data: Any = None, request_id: str = "r", **request: Any) -> StagePayload:
    return StagePayload(request_id, OmniRequest(**request), data)


def put(stage: Stage, scheduler: Recorded, *messages: OutgoingMessage) -> None:
    """Handle a scheduler's output, without its thread."""
    for message in messages:
        scheduler.outbox.put(message)
    stage._outputs._drain()


def result(data: Any, request_id: str = "r") -> OutgoingMessage:
    return OutgoingMessage(request_id, "result", data)


def chunk(data: Any, target: str | None = None) -> OutgoingMessage:
    return OutgoingMessage("r", "stream", data, target)


def merge(payloads: dict[str, StagePayload]) -> dict[str, Any]:
    return {name: payload.data for name, payload in payloads.items()}


@pytest.fixture(autouse=True)
def importable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "stage_functions", sys.modules[__name__])


def the_first(request_id: str, source: str, payload: StagePayload) -> list[str]:
    return [source]


def to_b(request_id: str, output: StagePayload) -> Any:
    return "b"


def broken(request_id: str, output: StagePayload) -> Any:
    raise SystemExit(3)


async def test_a_payload_reaches_the_scheduler_with_the_request_but_without_its_inputs(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"])
    stage.receive_payload(payload(inputs="heavy", params={"seed": 1}), None)
    (message,) = scheduler.inbox.drain()
    assert (message.type, message.data.request.inputs) == ("new_request", "heavy")
    assert message.request == OmniRequest(params={"seed": 1})


async def test_a_fan_in_gives_the_merged_payload_once_all_have_come(process: Process) -> None:
    stage, scheduler = process.stage(wait_for=["x", "y"], merge_fn="stage_functions:merge", terminal=True)
    stage.receive_payload(payload(1), "x")
    assert not len(scheduler.inbox)
    assert stage.waiting("r") == ["waits for 'y'"]
    stage.receive_payload(payload(2), "y")
    (message,) = scheduler.inbox.drain()
    assert (message.data.data, message.source) == ({"x": 1, "y": 2}, "y")
    assert stage.waiting("r") == ["has it queued or computes"]
    assert stage.waiting("unknown") == []


async def test_a_fan_in_that_was_complete_drops_what_comes_later_and_keeps_nothing(process: Process) -> None:
    stage, scheduler = process.stage(
        wait_for=["x", "y"], wait_for_fn="stage_functions:the_first", merge_fn="stage_functions:merge", terminal=True
    )
    stage.receive_payload(payload(1), "x")
    late = payload(bytearray(8))
    kept = weakref.ref(late)
    stage.receive_payload(late, "y", None)
    del late
    assert kept() is None, "its relay memory is free"
    (message,) = scheduler.inbox.drain()
    assert message.data.data == {"x": 1}
    assert stage.arrivals("r").keys() == {"x", "y"}
    put(stage, scheduler, result(3))
    (sent,) = process.take("coordinator")
    assert decode(sent.body) == 3


async def test_a_scheduler_gets_one_payload_of_a_request(process: Process, caplog: pytest.LogCaptureFixture) -> None:
    stage, scheduler = process.stage(terminal=True)
    stage.receive_payload(payload(1), "x")
    stage.receive_payload(payload(2), "y")
    assert [message.data.data for message in scheduler.inbox.drain()] == [1]
    assert "a payload from 'y' is dropped: request r has one from 'x'" in caplog.text


async def test_a_payload_of_an_unexpected_stage_fails_its_request(process: Process) -> None:
    stage, _ = process.stage(wait_for=["x"], merge_fn="stage_functions:merge", terminal=True)
    stage.receive_payload(payload(1), "z")
    assert process.errors() == [("r", "ConfigError: stages[a].wait_for does not name 'z', which sent a payload")]


async def test_chunks_may_come_first_and_carry_the_request(process: Process) -> None:
    stage, scheduler = process.stage(stream_from=["x"], terminal=True)
    request = OmniRequest(params={"seed": 1})
    stage.receive_chunk("r", "x", ("one", {"n": 1}, request))
    stage.receive_chunk("r", "x", ("two", None, None))
    stage.receive_done("r", "x")
    assert [(m.type, m.data, m.metadata, m.request) for m in scheduler.inbox.drain()] == [
        ("stream_chunk", "one", {"n": 1}, request),
        ("stream_chunk", "two", None, request),
        ("stream_done", None, None, request),
    ]


async def test_messages_after_an_abort_are_dropped(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"])
    stage.receive_payload(payload(), None)
    stage.abort("r")
    stage.abort("r")
    assert scheduler.aborted == ["r"]
    scheduler.inbox.drain()
    stage.receive_payload(payload(), None)
    stage.receive_chunk("r", "x", (1, None, None))
    stage.receive_done("r", "x")
    stage.receive_failure("r", ValueError())
    put(stage, scheduler, result(1))
    assert not len(scheduler.inbox)
    assert not process.control.sent


async def test_a_result_goes_to_the_replica_that_the_request_was_given(process: Process) -> None:
    stage, scheduler = process.stage(next=["b", "c"])
    stage.receive_payload(payload(placement={"c": 1}), None)
    put(stage, scheduler, result({"words": 1}))
    for endpoint, target in (("at b", "b"), ("at c 1", "c")):
        (message,) = process.take(endpoint)
        assert isinstance(message, DataReadyMessage)
        assert (message.request_id, message.stage, message.from_stage) == ("r", target, "a")
        assert decode(message.header or b"").data == {"words": 1}
    assert stage.statistics()["completed"] == 1
    assert stage.statistics()["in_flight"] == 0


async def test_a_result_stays_in_the_process_by_reference(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"], stream_to=["b"])
    _, receiving = process.stage("b", stream_from=["a"], terminal=True)
    stage.receive_payload(payload(), None)
    data = {"words": 1}
    put(stage, scheduler, chunk("one"), result(data))
    assert [(message.type, message.data) for message in receiving.inbox.drain()][:2] == [
        ("stream_chunk", "one"),
        ("stream_done", None),
    ]
    assert not process.control.sent


async def test_chunks_are_numbered_and_the_first_carries_the_request(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"], stream_to=["b"])
    stage.receive_payload(payload(params={"seed": 1}), None)
    put(stage, scheduler, chunk("one"), chunk("two", "b"), result("end"))
    first, second, done, last = process.take("at b")
    assert [decode(each.header)[0] for each in (first, second)] == ["one", "two"]
    assert [decode(each.header)[2] for each in (first, second)] == [OmniRequest(params={"seed": 1}), None]
    assert [(each.is_stream, each.chunk_id) for each in (first, second)] == [(True, 0), (True, 1)]
    assert (done.is_done, last.is_stream) == (True, False)


async def test_a_chunk_with_nowhere_to_go_fails_its_request_alone(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"])
    for name in ("r", "other"):
        stage.receive_payload(payload(request_id=name), None)
    put(stage, scheduler, chunk("lost"), result(1, "other"))
    ((request, message),) = process.errors()
    assert request == "r"
    assert "stage 'a' streams chunks, but it is not terminal and stages[a].stream_to names no stage" in message
    assert len(process.take("at b")) == 1


async def test_a_chunk_for_a_stage_that_stream_to_lacks_fails_its_request(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"], stream_to=["b"])
    stage.receive_payload(payload(), None)
    put(stage, scheduler, chunk("lost", "c"))
    ((_, message),) = process.errors()
    assert "for 'c', which stages[a].stream_to does not name; it names ['b']" in message


@pytest.mark.parametrize("stream", [True, False])
async def test_a_terminal_stage_streams_to_clients_that_read(process: Process, stream: bool) -> None:
    stage, scheduler = process.stage(terminal=True)
    stage.receive_payload(payload(stream=stream), None)
    put(stage, scheduler, chunk("one"), chunk("two"), result("end"))
    *partial, final = process.take("coordinator")
    assert [(each.chunk_id, decode(each.body)) for each in partial] == ([(0, "one"), (1, "two")] if stream else [])
    assert all(isinstance(each, StreamMessage) for each in partial)
    assert (final.error, decode(final.body)) == (None, "end")


async def test_outputs_of_a_request_wait_for_a_peer_that_is_behind_and_others_do_not(process: Process) -> None:
    stage, scheduler = process.stage(next=["b", "c"])
    process.control.behind.add("at b")
    for name in ("r", "s"):
        stage.receive_payload(payload(request_id=name, placement={"c": 0}), None)
    put(stage, scheduler, result(1))
    assert len(process.take("at b")) == 1
    assert stage.waiting("r") == ["sending to 'b'"]
    assert (stage.statistics()["sends_pending"], stage.statistics()["completed"]) == (1, 0)
    process.control.behind.clear()
    put(stage, scheduler, result(1, "s"))
    assert stage.statistics()["completed"] == 1
    process.control.caught_up.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert stage.statistics()["completed"] == 2
    assert len(process.take("at c 0")) == 2


async def test_an_abort_cancels_a_send_that_waits(process: Process) -> None:
    stage, scheduler = process.stage(next=["b", "c"])
    process.control.behind.add("at b")
    stage.receive_payload(payload(), None)
    put(stage, scheduler, result(1))
    stage.abort("r")
    process.control.caught_up.set()
    for _ in range(5):
        await asyncio.sleep(0)
    assert not process.take("at c 0")
    assert stage.statistics()["sends_pending"] == 0


async def test_a_profile_says_how_many_bytes_were_sent_and_by_which_way(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"])
    process.outbound.recorder = recorder = Recorder("p")
    stage.receive_payload(payload(), None)
    put(stage, scheduler, result({"words": "a"}))
    (message,) = process.take("at b")
    (event,) = [each for each in recorder.events if each["ph"] == "X"]
    assert event["name"] == "send to b"
    assert event["args"]["by"] == "inline"
    assert event["args"]["bytes"] == len(message.header)


async def test_the_end_of_a_traced_request_is_reported(process: Process) -> None:
    stage, scheduler = process.stage(terminal=True)
    stage.receive_payload(payload(metadata={"traceparent": "00-1-2-01"}), None)
    put(stage, scheduler, result("end"))
    _, span = process.take("coordinator")
    assert isinstance(span, StageSpan)
    assert (span.request_id, span.stage, span.error) == ("r", "a", "")


@pytest.mark.parametrize("data", [object(), {"deep": [object()]}], ids=["at once", "deep"])
async def test_a_value_that_cannot_be_sent_fails_its_request(process: Process, data: Any) -> None:
    stage, scheduler = process.stage(next=["b"])
    stage.receive_payload(payload(), None)
    put(stage, scheduler, result(data))
    ((request, message),) = process.errors()
    assert request == "r"
    assert message.startswith("CodecError: payload.data")
    assert scheduler.aborted == ["r"]


async def test_a_value_that_never_fits_the_relay_is_a_request_that_is_too_large(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"])
    stage.receive_payload(payload(), None)
    put(stage, scheduler, OutgoingMessage("r", "error", RelayCapacityError("9 bytes never fit process 'p'")))
    [message] = process.take("coordinator")
    assert isinstance(message, CompleteMessage)
    assert message.error is not None
    assert (message.error.error_type, message.error.is_too_large) == ("RequestTooLargeError", True)
    assert "send less at once" in message.error.message
    assert "process" not in message.error.message


async def test_a_function_that_exits_fails_its_request(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"], route_fn="stage_functions:broken")
    stage.receive_payload(payload(), None)
    put(stage, scheduler, result(1))
    assert process.errors() == [("r", "SystemExit: 3")]
    assert stage.statistics()["failed"] == 1


@pytest.mark.parametrize(("leads", "left_out"), [({"end": ["c"]}, ["end"]), ({"end": ["b", "c"]}, None)])
async def test_a_route_that_leaves_out_a_terminal_stage_is_reported(
    process: Process, leads: dict[str, list[str]], left_out: list[str] | None
) -> None:
    stage, scheduler = process.stage(next=["b", "c"], route_fn="stage_functions:to_b", leads_to=leads)
    stage.receive_payload(payload(), None)
    put(stage, scheduler, result(1))
    assert [message.request_id for message in process.take("at b")] == ["r"], "it goes on, as no client may wait for it"
    reports = process.take("coordinator")
    assert [message.left_out for message in reports] == ([] if left_out is None else [left_out])
    assert all("route_fn chose no stage that leads to 'end'" in message.error.message for message in reports)


async def test_an_error_of_the_scheduler_is_reported_once_and_is_final(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"], stream_to=["b"])
    stage.receive_payload(payload(), None)
    put(stage, scheduler, OutgoingMessage("r", "error", ValueError("bad")), chunk("late"), result("late"))
    assert process.errors() == [("r", "ValueError: bad")]
    assert not process.take("at b")


async def test_a_failure_in_the_schedulers_thread_is_reported_on_the_event_loop(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"], route_fn="stage_functions:broken")
    stage.receive_payload(payload(), None)
    thread = threading.Thread(target=put, args=(stage, scheduler, result(1), result(2)))
    thread.start()
    thread.join()
    assert not process.control.sent
    await asyncio.sleep(0)
    assert process.errors() == [("r", "SystemExit: 3")]


async def test_a_scheduler_that_ends_by_itself_fails_its_requests_and_ends_the_process(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"])
    scheduler.error = SystemExit(4)
    stage.receive_payload(payload(), None)
    stage.start()
    stage.join(5)
    await asyncio.sleep(0)
    assert process.deaths == ["a"]
    assert process.errors() == [("r", "RuntimeError: its loop ended with SystemExit: 4")]


async def test_a_client_that_reads_late_holds_the_stream_back_and_loses_nothing(process: Process) -> None:
    stage, scheduler = process.stage(terminal=True)
    stage.receive_payload(payload(stream=True), "")
    process.control.behind.add("coordinator")
    put(stage, scheduler, chunk(1), chunk(2), result(3))
    await asyncio.sleep(0.01)
    assert [type(message).__name__ for message in process.take("coordinator")] == ["StreamMessage"]
    process.control.behind.clear()
    process.control.caught_up.set()
    await asyncio.sleep(0.01)
    assert [type(message).__name__ for message in process.take("coordinator")] == ["StreamMessage", "CompleteMessage"]


@pytest.mark.parametrize(
    ("placement", "known", "endpoint"),
    [
        ({}, {0: "first"}, "first"),
        ({"b": 2}, {0: "first", 2: "third"}, "third"),
        ({}, {0: "first", 2: "third"}, "first"),
        ({"c": 1}, {3: "only"}, "only"),  # of a stream without chunks nothing is known but that it has ended
        ({"b": 2}, {3: "only"}, None),
        ({}, {2: "third", 3: "fourth"}, None),
    ],
)
async def test_a_request_goes_to_the_replica_that_it_was_placed_on(
    process: Process, placement: dict[str, int], known: dict[int, str], endpoint: str | None
) -> None:
    process.spec.stage_endpoints["b"] = known
    request = OmniRequest(placement=placement)
    if endpoint is not None:
        process.outbound.end_stream("a", "b", "r", request, None)
        assert len(process.take(endpoint)) == 1
    else:
        with pytest.raises(
            TransportError, match=r"replica \d of stage 'b', which was to serve this request, has ended"
        ):
            process.outbound.end_stream("a", "b", "r", request, None)


def in_two(each: StagePayload) -> dict[str, Any]:
    return {"main": each.data, "negative": "not " + each.data}


async def test_a_stage_computes_a_request_in_parts(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"], expand_fn="stage_functions:in_two")
    stage.receive_payload(payload("a dog"), None)
    assert [(each.request_id, each.data.data) for each in scheduler.inbox.drain()] == [
        ("r#main", "a dog"),
        ("r#negative", "not a dog"),
    ]
    put(stage, scheduler, result(1, "r#main"))
    assert "at b" not in process.control.sent
    put(stage, scheduler, result(2, "r#negative"))
    (sent,) = process.take("at b")
    assert decode(sent.header).data == {"main": 1, "negative": 2}


async def test_a_part_that_fails_fails_the_request_and_ends_the_other_part(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"], expand_fn="stage_functions:in_two")
    stage.receive_payload(payload("a dog"), None)
    put(stage, scheduler, OutgoingMessage("r#negative", "error", ValueError("no")), result(1, "r#main"))
    assert process.errors() == [("r", "RuntimeError: in the part 'negative': ValueError: no")]
    assert {"r#main", "r#negative"} <= set(scheduler.aborted)
    assert len(stage._requests) == 0
    assert "at b" not in process.control.sent


async def test_an_abort_reaches_every_part(process: Process) -> None:
    stage, scheduler = process.stage(next=["b"], expand_fn="stage_functions:in_two")
    stage.receive_payload(payload("a dog"), None)
    stage.abort("r")
    assert scheduler.aborted == ["r#main", "r#negative"]


# --- running computes ------------------------------------------------------------------------------------------------
async def test_a_scheduler_that_has_read_and_looks_no_more_computes(process: Process) -> None:
    stage, scheduler = process.stage(terminal=True)
    stage.receive_payload(payload(request_id="r"), None)
    scheduler.inbox.drain()
    read_at = scheduler.inbox.read_at
    stage.receive_payload(payload(request_id="later"), None)
    assert stage.running_computes() == {"r": read_at}
    put(stage, scheduler, OutgoingMessage("r", "stream", 1))
    assert stage.running_computes()["r"] > read_at, "an output is progress"
    put(stage, scheduler, result(1))
    scheduler.inbox.drain()
    assert list(stage.running_computes()) == ["later"]


async def test_the_request_that_is_aborted_during_a_compute_is_reported_until_the_scheduler_looks(
    process: Process,
) -> None:
    stage, scheduler = process.stage(terminal=True)
    stage.receive_payload(payload(request_id="r"), None)
    scheduler.inbox.drain()
    stage.receive_payload(payload(request_id="unread"), None)
    stage.abort("r")
    stage.abort("unread")
    assert list(stage.running_computes()) == ["r"]
    scheduler.inbox.drain()
    assert stage.running_computes() == {}


async def test_an_inbox_that_is_never_read_is_reported_by_its_requests(process: Process) -> None:
    stage, scheduler = process.stage(terminal=True)
    scheduler.inbox.drain()
    stage.receive_payload(payload(request_id="r"), None)
    begin = stage._requests.get("r").since  # type: ignore[union-attr]
    assert stage.running_computes() == {"r": begin}
    scheduler.inbox.on_put = lambda: None
    scheduler.inbox.drain()
    assert stage.running_computes() == {}, "a reader that is called waits for the next put"


async def test_a_scheduler_that_waits_in_its_inbox_computes_nothing(process: Process) -> None:
    stage, scheduler = process.stage("m", wait_for=["b", "c"], merge_fn="stage_functions:merge")
    stage.receive_payload(payload(request_id="r"), "b")
    assert stage.running_computes() == {}, "it waits for c"
    stage, scheduler = process.stage(terminal=True)
    stage.receive_payload(payload(request_id="r"), None)
    scheduler.inbox.drain()
    scheduler.inbox.get(0.0)
    assert list(stage.running_computes()) == ["r"]
    waiter = threading.Thread(target=scheduler.inbox.get)
    waiter.start()
    while scheduler.inbox.read_at < float("inf"):
        await asyncio.sleep(0.001)
    assert stage.running_computes() == {}
    scheduler.inbox.close()
    waiter.join()


async def test_the_computes_that_a_scheduler_reports_are_those_of_whole_requests(process: Process) -> None:
    stage, scheduler = process.stage(expand_fn="stage_functions:in_two")
    stage.receive_payload(payload("a dog", request_id="r"), None)
    parts = [message.request_id for message in scheduler.inbox.drain()]
    scheduler.running_computes = lambda: dict.fromkeys(parts, 3.0)  # type: ignore[attr-defined]
    assert parts == ["r#main", "r#negative"]
    assert stage.running_computes() == {"r": 3.0}


# --- streams whose reader is slow ------------------------------------------------------------------------------------
def chunks_from(process: Process, stage: Stage, source: str, count: int, data: Any = 1) -> None:
    for _ in range(count):
        stage.receive_chunk("r", source, (data, None, OmniRequest()))


async def flows(process: Process, endpoint: str) -> list[Any]:
    await asyncio.sleep(0)
    return [message for message in process.take(endpoint) if isinstance(message, FlowMessage)]


@pytest.mark.parametrize(("count", "data"), [(MOST_CHUNKS, 1), (8, bytes(MOST_CHUNK_BYTES // 8))])
async def test_a_stage_asks_the_source_of_a_stream_to_wait_while_it_is_behind(
    process: Process, count: int, data: Any
) -> None:
    stage, scheduler = process.stage("m", stream_from=["b", "c"], terminal=True)
    chunks_from(process, stage, "b", count - 1, data)
    assert await flows(process, "at b") == []
    chunks_from(process, stage, "b", 2, data)
    assert await flows(process, "at b") == [FlowMessage("r", "m", True)]
    assert await flows(process, "at c 0") == []
    scheduler.inbox.drain(count // 2)
    assert await flows(process, "at b") == []
    scheduler.inbox.drain()
    assert await flows(process, "at b") == [FlowMessage("r", "m", False)]


async def test_a_stage_that_finishes_early_lets_the_source_go_on(process: Process) -> None:
    stage, scheduler = process.stage("m", stream_from=["b"], terminal=True)
    chunks_from(process, stage, "b", MOST_CHUNKS)
    assert await flows(process, "at b") == [FlowMessage("r", "m", True)]
    put(stage, scheduler, result(1))
    assert await flows(process, "at b") == [FlowMessage("r", "m", False)]


async def test_outputs_wait_for_a_slow_client_and_its_scheduler_is_paused(process: Process) -> None:
    stage, scheduler = process.stage(terminal=True)
    paused: list[tuple[str, bool]] = []
    scheduler.pause = lambda *what: paused.append(what)  # type: ignore[attr-defined]
    for name in ("r", "other"):
        stage.receive_payload(payload(request_id=name, stream=True), None)
    stage.flow("r", "", paused=True)
    put(stage, scheduler, *(chunk(number) for number in range(MOST_OUTPUTS)))
    await asyncio.sleep(0)
    assert paused == []
    put(stage, scheduler, chunk(MOST_OUTPUTS))
    await asyncio.sleep(0)
    assert paused == [("r", True)]
    assert stage.waiting("r") == ["waits until its chunks are read by the client"]
    put(stage, scheduler, OutgoingMessage("other", "stream", 1), result(2, "other"))
    assert [message.request_id for message in process.take("coordinator")] == ["other", "other"]
    assert not stage._requests.get("r").is_over  # type: ignore[union-attr]
    stage.flow("r", "", paused=False)
    for _ in range(10):
        await asyncio.sleep(0)
    assert [decode(message.body) for message in process.take("coordinator")] == list(range(MOST_OUTPUTS + 1))
    assert paused == [("r", True), ("r", False)]


async def test_slow_clients_do_not_hold_the_inbox(process: Process) -> None:
    stage, scheduler = process.stage(terminal=True)
    for number in range(2 * MOST_OUTPUTS):
        name = f"r{number}"
        stage.receive_payload(payload(request_id=name, stream=True), None)
        stage.flow(name, "", paused=True)
        put(stage, scheduler, OutgoingMessage(name, "stream", 1))
    scheduler.inbox.drain()
    await asyncio.sleep(0)
    stage._outputs._regulate()
    stage.receive_payload(payload(request_id="good"), None)
    assert [message.request_id for message in scheduler.inbox.drain()] == ["good"]


@pytest.mark.parametrize("ends", ["read", "aborted"])
async def test_a_scheduler_that_cannot_pause_waits_in_its_outbox(process: Process, ends: str) -> None:
    stage, scheduler = process.stage(terminal=True)
    stage._outputs.start()
    stage.receive_payload(payload(stream=True), None)
    stage.flow("r", "", paused=True)
    total = 6 * MOST_OUTPUTS
    thread = threading.Thread(
        target=lambda: [scheduler.outbox.put(chunk(number)) for number in range(total)], daemon=True
    )
    thread.start()
    while not scheduler.outbox.is_full:
        await asyncio.sleep(0.001)
    await asyncio.sleep(0.02)
    assert thread.is_alive()
    assert stage.running_computes() == {}, "it waits for its readers"
    if ends == "read":
        stage.flow("r", "", paused=False)
    else:
        stage.abort("r")
    while thread.is_alive() or len(scheduler.outbox):
        await asyncio.sleep(0.001)
    for _ in range(10):
        await asyncio.sleep(0)
    sent = [message.body for message in process.take("coordinator") if isinstance(message, StreamMessage)]
    assert len(sent) == (total if ends == "read" else 0)


async def test_a_slow_client_holds_the_stream_to_its_stage_and_a_local_source(process: Process) -> None:
    writer, writing = process.stage("w", next=["m"], stream_to=["m"])
    stage, scheduler = process.stage("m", stream_from=["w"], terminal=True)
    writer.receive_payload(payload(stream=True), None)
    put(writer, writing, chunk(1))
    stage.flow("r", "", paused=True)
    put(stage, scheduler, *(chunk(number) for number in range(MOST_OUTPUTS + 1)))
    await asyncio.sleep(0)
    assert writer._requests.get("r").held == {"m"}  # type: ignore[union-attr]
    put(writer, writing, chunk(2))
    assert len(scheduler.inbox) == 1, "the second chunk waits in the writer"
    stage.abort("r")
    assert writer._requests.get("r").held == set()  # type: ignore[union-attr]


# --- hooks of a scheduler that fail ----------------------------------------------------------------------------------
def ends(*_: Any) -> Any:
    raise SystemExit(3)


async def test_a_scheduler_whose_hooks_end_programs_hurts_no_other_request(process: Process) -> None:
    stage, scheduler = process.stage(terminal=True)
    for name in ("statistics", "running_computes", "waiting", "abort"):
        setattr(scheduler, name, ends)
    stage._abort_one = ends
    for name in ("r", "good"):
        stage.receive_payload(payload(request_id=name), None)
    assert stage.statistics()["in_flight"] == 2.0
    assert stage.running_computes() == {}
    assert stage.waiting("r") == ["has it queued or computes"]
    put(stage, scheduler, OutgoingMessage("r", "error", ValueError("bad")))
    assert process.errors() == [("r", "ValueError: bad")]
    stage.abort("r")
    put(stage, scheduler, result(1, "good"))
    (sent,) = process.take("coordinator")
    assert (sent.request_id, sent.error) == ("good", None)


async def test_a_failure_that_cannot_be_described_ends_its_request(
    process: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage, scheduler = process.stage(terminal=True)
    stage.receive_payload(payload(), None)
    monkeypatch.setattr("omni_core.stage.stage.describe", ends)
    put(stage, scheduler, OutgoingMessage("r", "error", ValueError("bad")))
    assert process.errors() == [("r", "ValueError: (no message: it cannot be described)")]


async def test_an_error_of_any_class_fails_its_request(
    process: Process, hostile: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    def route(request_id: str, output: StagePayload) -> Any:
        raise hostile

    monkeypatch.setattr(sys.modules[__name__], "broken", route)
    stage, scheduler = process.stage(next=["b"], route_fn="stage_functions:broken")
    for name in ("route", "error"):
        stage.receive_payload(payload(request_id=name), None)
    put(stage, scheduler, result(1, "route"), OutgoingMessage("error", "error", hostile))
    assert [(name, text.partition(":")[0]) for name, text in process.errors()] == [
        ("route", "Hostile"),
        ("error", "Hostile"),
    ]


async def test_an_input_that_streams_comes_from_the_coordinator_and_is_acknowledged_when_it_is_taken(
    process: Process,
) -> None:
    stage, scheduler = process.stage(stream_from=[""], terminal=True)
    stage.receive_payload(payload(params={"seed": 1}), None)
    stage.receive_chunk("r", "", ("one", None, None))
    stage.receive_chunk("r", "", ("two", None, None))
    await asyncio.sleep(0)
    assert process.take("coordinator") == []
    assert stage.waiting("r") == ["waits for the end of the stream from the client", "has it queued or computes"]
    new, *chunks = scheduler.inbox.drain()
    assert (new.type, new.source) == ("new_request", None)
    seen = [(each.type, each.data, each.source) for each in chunks]
    assert seen == [("stream_chunk", "one", None), ("stream_chunk", "two", None)]
    assert all(each.request is not None and each.request.params == {"seed": 1} for each in chunks)
    await asyncio.sleep(0)
    assert process.take("coordinator") == [InputTaken("r", 2)]
    stage.receive_done("r", "")
    assert [each.type for each in scheduler.inbox.drain()] == ["stream_done"]
    put(stage, scheduler, result(2))
    assert [type(each) for each in process.take("coordinator")] == [CompleteMessage]


async def test_an_input_is_acknowledged_no_more_while_outputs_wait(process: Process) -> None:
    stage, scheduler = process.stage(stream_from=[""], terminal=True)
    stage.receive_payload(payload(stream=True), None)
    stage.flow("r", "", paused=True)
    put(stage, scheduler, *(chunk(number) for number in range(MOST_OUTPUTS + 2)))
    stage.receive_chunk("r", "", ("one", None, None))
    scheduler.inbox.drain()
    for _ in range(3):
        await asyncio.sleep(0)
    assert process.take("coordinator") == []
    stage.flow("r", "", paused=False)
    while not any(isinstance(each, InputTaken) for each in process.control.sent.get("coordinator", [])):
        await asyncio.sleep(0)
    assert InputTaken("r", 1) in process.take("coordinator")


async def test_a_stage_that_answers_before_the_end_of_the_input_says_so(process: Process) -> None:
    stage, scheduler = process.stage(stream_from=[""], terminal=True)
    stage.receive_payload(payload(), None)
    put(stage, scheduler, result("enough"))
    assert process.take("coordinator")[1:] == [InputTaken("r", 0, is_over=True)]
    stage.receive_chunk("r", "", ("late", None, None))
    assert [each.type for each in scheduler.inbox.drain()] == ["new_request"]
