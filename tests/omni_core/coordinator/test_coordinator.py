"""The asyncio shell: encoding, waking, timers, spans and recordings."""

from __future__ import annotations

import asyncio
import threading
from functools import partial
from typing import Any

import pytest

from omni_cli.tracing.recorder import Recorder
from omni_core.coordinator import Coordinator, entry
from omni_core.coordinator import coordinator as module
from omni_core.coordinator.digest import digest_of
from omni_core.coordinator.request_machine import RequestMachine
from omni_core.errors import (
    CodecError,
    ConfigError,
    InvalidRequestError,
    RequestAbortedError,
    RequestFailedError,
    RequestTimeoutError,
    StageFailedError,
)
from omni_core.protocol.codec import decode, encode_whole
from omni_core.protocol.messages import (
    AbortMessage,
    CompleteMessage,
    ErrorInfo,
    OmniRequest,
    StreamMessage,
    SubmitMessage,
    WaitingReport,
    WaitingRequest,
)


class Spans:
    """Counts the open spans of requests, as telemetry would hold them."""

    def __init__(self) -> None:
        self.open: list[str] = []
        self.ended: list[tuple[str, str]] = []

    def begin(self, request_id: str, request: OmniRequest) -> OmniRequest:
        self.open.append(request_id)
        return request

    def end(self, request_id: str, state: str, error: Any) -> None:
        self.open.remove(request_id)
        self.ended.append((request_id, state))


class Stages:
    """Takes what the coordinator sends, and fails to if asked to."""

    def __init__(self, error: Exception | None = None, processes: int = 1) -> None:
        self.submitted: list[SubmitMessage] = []
        self.broadcasts: list[Any] = []
        self._error = error
        self._processes = processes

    def submit(self, message: SubmitMessage, request: OmniRequest) -> None:
        if self._error is not None:
            raise self._error
        self.submitted.append(message)

    def broadcast(self, message: Any) -> int:
        self.broadcasts.append(message)
        return self._processes


def coordinator(stages: Stages, **options: Any) -> Coordinator:
    of_machine = {name: options.pop(name) for name in ("place", "retries") if name in options}
    machine = partial(RequestMachine, terminal_stages=["out"], **of_machine)
    return Coordinator(
        entry_stage="in", machine=machine, submit_to_stage=stages.submit, broadcast=stages.broadcast, **options
    )


def complete(name: str, data: Any) -> CompleteMessage:
    return CompleteMessage(name, "out", encode_whole(data)[0])


async def test_a_request_is_encoded_and_its_result_decoded() -> None:
    stages = Stages()
    requests = coordinator(stages)
    task = asyncio.ensure_future(requests.submit(OmniRequest({"n": 1}), "r"))
    await asyncio.sleep(0)
    payload = decode(stages.submitted[0].body)
    assert (payload.request_id, payload.request.inputs, stages.submitted[0].stage) == ("r", {"n": 1}, "in")
    requests.handle(complete("r", {"twice": 2}))
    assert await task == {"out": {"twice": 2}}
    assert stages.broadcasts == []


@pytest.mark.parametrize("partial", [True, False])
async def test_a_result_that_its_client_must_not_get_fails_the_request(partial: bool) -> None:
    def check(stage: str, data: Any) -> ConfigError | None:
        return ConfigError(f"stage {stage!r}: no") if data == "b" else None

    stages = Stages()
    requests = coordinator(stages, check_result=check)
    task = asyncio.ensure_future(anext(aiter(requests.stream(OmniRequest(stream=True), "r"))))
    await asyncio.sleep(0)
    requests.handle(StreamMessage("r", "out", 0, encode_whole("b")[0]) if partial else complete("r", "b"))
    with pytest.raises(RequestFailedError, match="stage 'out': no") as caught:
        await task
    assert caught.value.stage == "out"
    assert requests.in_flight == 0


async def test_partial_results_are_streamed_before_the_final_one() -> None:
    stages = Stages()
    requests = coordinator(stages)

    async def read() -> list[tuple[Any, bool]]:
        return [(event.data, event.final) async for event in requests.stream(OmniRequest(stream=True), "r")]

    task = asyncio.ensure_future(read())
    await asyncio.sleep(0)
    requests.handle(StreamMessage("r", "out", 0, encode_whole("a")[0]))
    await asyncio.sleep(0)
    requests.handle(StreamMessage("r", "out", 1, encode_whole("b")[0]))
    requests.handle(complete("r", "ab"))
    assert await task == [("a", False), ("b", False), ("ab", True)]


@pytest.mark.parametrize(("left_out", "fails"), [(["out"], True), (["sound"], False), (["sound", "out"], True)])
async def test_a_route_to_no_result_that_is_awaited_fails_the_request(left_out: list[str], fails: bool) -> None:
    requests = coordinator(Stages())
    task = asyncio.ensure_future(requests.submit(OmniRequest(), "r"))
    await asyncio.sleep(0)
    error = ErrorInfo("in", "ConfigError", "the route leads nowhere")
    requests.handle(CompleteMessage("r", "in", None, error, left_out=left_out))
    if fails:
        with pytest.raises(RequestFailedError, match="the route leads nowhere"):
            await asyncio.wait_for(task, 5)
    else:
        requests.handle(complete("r", 1))
        assert await task == {"out": 1}


async def test_cancelling_a_call_aborts_its_request() -> None:
    stages = Stages()
    requests = coordinator(stages)
    task = asyncio.ensure_future(requests.submit(OmniRequest(), "r"))
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.wait([task])
    assert stages.broadcasts == [AbortMessage("r")]
    assert requests.in_flight == 0


@pytest.mark.parametrize(
    ("inputs", "error", "expected"),
    [(object(), None, CodecError), ({}, StageFailedError("in", "died"), RequestFailedError)],
)
async def test_a_request_that_cannot_be_sent_leaves_no_span_and_no_recording(
    inputs: Any, error: Exception | None, expected: type[Exception]
) -> None:
    spans = Spans()
    requests = coordinator(Stages(error), telemetry=spans)
    requests.recorder = Recorder("client")
    with pytest.raises(expected):
        await requests.submit(OmniRequest(inputs), "r")
    assert (spans.open, spans.ended) == ([], [("r", "failed")])
    phases = [event["ph"] for event in requests.recorder.finish() if event.get("name") == "request"]
    assert phases == ["b", "e"]
    statistics = requests.statistics()
    assert (statistics["admitted"], statistics["failed"], statistics["running"]) == (1.0, 1.0, 0.0)


async def test_a_refused_request_has_no_span_and_is_counted() -> None:
    spans, stages = Spans(), Stages()
    requests = coordinator(stages, telemetry=spans)
    with pytest.raises(InvalidRequestError, match="timeout"):
        await requests.submit(OmniRequest(timeout="5"))  # type: ignore[arg-type]
    assert (spans.open, spans.ended, stages.submitted) == ([], [], [])
    assert requests.statistics()["refused"] == 1.0


async def test_a_deadline_asks_the_processes_and_reports_their_answer() -> None:
    stages = Stages()
    requests = coordinator(stages)
    task = asyncio.ensure_future(requests.submit(OmniRequest(timeout=0.01), "r"))
    while not stages.broadcasts:
        await asyncio.sleep(0.001)
    assert stages.broadcasts == [WaitingRequest("r")]
    requests.answered(WaitingReport("r", {"merge": "waits for 'tone'"}))
    with pytest.raises(RequestTimeoutError, match=r"timeout of 0\.01 s; stage 'merge' waits for 'tone'"):
        await task


async def test_a_deadline_does_not_wait_for_an_answer_that_does_not_come() -> None:
    with pytest.raises(RequestTimeoutError):
        await asyncio.wait_for(coordinator(Stages()).submit(OmniRequest(timeout=0.01)), 2)


async def test_a_result_that_cannot_be_read_fails_its_request() -> None:
    requests = coordinator(Stages())
    task = asyncio.ensure_future(requests.submit(OmniRequest(), "r"))
    await asyncio.sleep(0)
    requests.handle(CompleteMessage("r", "out", b"\xc1"))
    with pytest.raises(RequestFailedError, match="stage 'out'"):
        await task


async def test_a_unit_is_drained_when_the_last_of_its_requests_has_ended_in_any_way() -> None:
    stages = Stages()
    places = {"r": {"in": 0}, "s": {"in": 0}, "t": {"in": 1}}
    left: list[str] = []
    requests = coordinator(stages, place=lambda attempt_id, request: places[attempt_id], left=left.append)
    tasks = [asyncio.ensure_future(requests.submit(OmniRequest(), name)) for name in places]
    await asyncio.sleep(0)
    draining = asyncio.ensure_future(requests.drained(lambda request: request.placement["in"] == 0))
    gone = asyncio.ensure_future(requests.drained(lambda request: True))
    await asyncio.sleep(0)
    gone.cancel()
    requests.handle(complete("t", "done"))
    requests.handle(complete("r", "done"))
    await asyncio.sleep(0.01)
    assert not draining.done()
    requests.abort("s")
    await asyncio.wait_for(draining, 1)
    await requests.drained(lambda request: True)
    await asyncio.gather(*tasks, return_exceptions=True)
    assert left == ["t", "r", "s"]


async def test_an_error_of_a_stage_is_raised_to_the_caller() -> None:
    requests = coordinator(Stages())
    task = asyncio.ensure_future(requests.submit(OmniRequest(), "r"))
    await asyncio.sleep(0)
    requests.handle(CompleteMessage("r", "middle", None, ErrorInfo("middle", "ValueError", "no")))
    with pytest.raises(RequestFailedError, match="request r failed in stage 'middle': ValueError: no"):
        await task


async def test_a_lost_request_runs_again_under_another_name_with_its_inputs() -> None:
    stages = Stages()
    requests = coordinator(stages, retries=1)
    task = asyncio.ensure_future(requests.submit(OmniRequest({"n": 1}), "r"))
    await asyncio.sleep(0)
    requests.process_lost({"r": "in"}, "killed")
    assert stages.broadcasts == [AbortMessage("r")]
    again = stages.submitted[1]
    assert again.request_id.startswith("r~")
    assert decode(again.body).request.inputs == {"n": 1}
    requests.handle(complete("r", "late"))
    requests.handle(complete(again.request_id, "right"))
    assert await task == {"out": "right"}


async def test_a_request_that_is_refused_at_admission_is_counted() -> None:
    def refuse(request: OmniRequest) -> OmniRequest:
        raise InvalidRequestError("params.temperatur: there is no such parameter")

    stages = Stages()
    requests = coordinator(stages, admit=refuse)
    with pytest.raises(InvalidRequestError, match="temperatur"):
        await requests.submit(OmniRequest())
    assert requests.statistics()["refused"] == 1.0
    assert (requests.in_flight, stages.submitted) == (0, [])


async def test_large_requests_and_results_are_read_and_made_beside_the_event_loop(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    threads: list[bool] = []

    def watched(function: Any) -> Any:
        def call(*arguments: Any, **options: Any) -> Any:
            threads.append(threading.current_thread() is threading.main_thread())
            return function(*arguments, **options)

        return call

    monkeypatch.setattr(entry, "encode_whole", watched(encode_whole))
    monkeypatch.setattr(module, "decode", watched(decode))
    stages = Stages()
    requests = coordinator(stages)
    text = "x" * 2_000_000
    for value, in_loop in (("short", True), (text, False)):
        threads.clear()
        task = asyncio.ensure_future(requests.submit(OmniRequest({"x": value})))
        while not stages.submitted:
            await asyncio.sleep(0)
        submitted = stages.submitted.pop()
        assert decode(submitted.body).request.inputs["x"] == value
        requests.handle(complete(submitted.request_id, value))
        assert (await task)["out"] == value
        assert threads == [in_loop, in_loop]


@pytest.mark.parametrize("retries", [0, 1])
async def test_the_inputs_of_a_large_request_are_kept_only_if_it_may_run_again(retries: int) -> None:
    stages = Stages()
    requests = coordinator(stages, retries=retries)
    request = OmniRequest({"data": bytes(2**21)})
    inputs = request.inputs
    task = asyncio.ensure_future(requests.submit(request, "r"))
    del request
    while not stages.submitted:
        await asyncio.sleep(0)
    await asyncio.sleep(0)
    tracked = requests._machine.attempt("r")
    assert tracked is not None
    kept = [each for each in (tracked.request.inputs, getattr(tracked.original, "inputs", None)) if each is inputs]
    assert bool(kept) == bool(retries)
    requests.process_lost({"r": "in"}, "killed")  # its content is known again all the same
    if not retries:
        with pytest.raises(RequestFailedError):
            await task
        assert requests._machine._suspects.knows(digest_of(OmniRequest({"data": bytes(2**21)})))
    else:
        requests.abort("r")
        with pytest.raises(RequestAbortedError):
            await task


async def test_a_large_request_that_was_aborted_while_it_was_encoded_is_not_sent() -> None:
    stages = Stages()
    requests = coordinator(stages)
    aborted = asyncio.ensure_future(requests.submit(OmniRequest({"x": "x" * 2_000_000}), "r"))
    await asyncio.sleep(0)
    aborted.cancel()
    bad = OmniRequest({"x": ["x" * 2_000_000, object()]})
    with pytest.raises(CodecError, match=r"inputs\['x'\]\[1\]: a builtins.object cannot be sent"):
        await requests.submit(bad, "s")
    while requests.entry.encoding:
        await asyncio.sleep(0)
    assert not stages.submitted


async def test_a_check_of_requests_may_raise_an_error_of_any_class(hostile: BaseException) -> None:
    def refuse(request: OmniRequest) -> OmniRequest:
        raise hostile

    requests = coordinator(Stages(), admit=refuse)
    with pytest.raises(InvalidRequestError, match=r"^the request cannot be checked: Hostile: ") as refused:
        await requests.submit(OmniRequest())
    assert (refused.value.__cause__, refused.value.__context__) == (None, None)
    assert requests.statistics()["refused"] == 1.0
