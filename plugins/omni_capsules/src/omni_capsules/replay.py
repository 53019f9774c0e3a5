"""Runs one stage again: the runtime's own :class:`~omni_core.stage.stage.Stage`, fed from a record, whose outputs go nowhere but here.

The scheduler's loop runs in the calling thread, so that breakpoints and a debugger work as in any program; the stage's event loop runs in
another one.
"""

from __future__ import annotations

import asyncio
import threading
import time
from typing import Any

import attrs
from attrs import define, field, frozen

from omni_capsules.capsule import CapsuleError
from omni_capsules.events import INPUTS, OUTPUTS, Event, digest_of, shape_of
from omni_capsules.rebuild import Rebuilt
from omni_capsules.stage import output_of
from omni_core.errors import CodecError
from omni_core.observe.metrics import StageMetrics
from omni_core.protocol.codec import decode, encode
from omni_core.protocol.error_info import describe
from omni_core.protocol.messages import ErrorInfo, OmniRequest
from omni_core.relay.transfer import Encodings
from omni_core.scheduling.base import OutgoingMessage, Scheduler
from omni_core.stage.requests import ActiveRequest
from omni_core.stage.stage import Stage


@define(eq=False)
class Outcome:
    """The outputs of a replay, and its end.

    Attributes:
        outputs: in their order, with values. ended: ``completed``, ``failed``, or ``""`` if it did not end.
        error: of a failure, as the stage reports it; ``exception``: itself. seconds: from the first input to the end.
    """

    outputs: list[Event] = field(factory=list)
    ended: str = ""
    error: dict[str, Any] | None = None
    exception: BaseException | None = None
    seconds: float = 0.0


class _Outbound:
    """The ways out of a replayed stage: nothing is sent."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.local: dict[str, Stage] = {}
        self.recorder = None
        self.failure: ErrorInfo | None = None

    async def send(
        self, source: str, target: str, active: ActiveRequest, value: Any, metrics: StageMetrics, encodings: Encodings | None = None,
        **message: Any,
    ) -> None:  # fmt: skip
        encode(value)  # what cannot be sent fails the request, as it would there

    async def send_to_client(self, source: str, request_id: str, data: Any, chunk_id: int | None = None) -> None:
        encode(data)

    def end_stream(
        self, source: str, target: str, request_id: str, request: OmniRequest | None, handed_to: Any
    ) -> None:
        return

    def fail(self, source: str, request_id: str, error: ErrorInfo) -> None:
        self.failure = error

    def span(self, source: str, request_id: str, seconds: float, error: str) -> None:
        return


class _ReplayedStage(Stage):
    """A stage without a thread: its scheduler's loop is run by :meth:`compute`."""

    def __init__(self, rebuilt: Rebuilt, scheduler: Scheduler, outbound: Any, outcome: Outcome) -> None:
        super().__init__(rebuilt.spec, scheduler, outbound, scheduler.stop)
        self._outcome, self._begin = outcome, time.monotonic()
        self.made = asyncio.Event()
        """There is a new output, or the end."""
        scheduler.outbox.tap = self._put_out

    def start(self) -> None:
        self._outputs.start()

    def compute(self) -> None:
        """Run the scheduler until the request is over. In the thread that called."""
        self._run()

    def _put_out(self, action: str, messages: list[OutgoingMessage]) -> None:
        for message in messages if action == "put" else ():
            request_id = self.groups.request_of(message.request_id)
            value, detail = output_of(message)
            try:
                data = None if value is None else encode(value)
            except CodecError as error:
                data, detail = None, {"left_out": str(error)}
            if message.type == "error":
                self._outcome.exception = message.data
            self._outcome.outputs.append(
                Event(
                    message.type,
                    int((time.monotonic() - self._begin) * 1e9),
                    part="" if request_id == message.request_id else message.request_id,
                    target=message.target,
                    data=data,
                    digest=None if data is None else digest_of(data),
                    shape="" if value is None else shape_of(value[0]),
                    nbytes=len(data or b""),
                    detail=detail,
                )
            )
            self._loop.call_soon_threadsafe(self.made.set)

    def _complete(self, active: ActiveRequest) -> None:
        super()._complete(active)
        self._over("completed")

    def _fail(self, request_id: str, error: BaseException) -> None:
        super()._fail(request_id, error)
        if threading.get_ident() == self._thread_id and not self._outcome.ended:
            self._outcome.exception = error
            self._outcome.error = attrs.asdict(describe(error, self.name))
            self._over("failed")

    def _over(self, how: str) -> None:
        self._outcome.ended = how
        self.made.set()
        self._outcome.seconds = time.monotonic() - self._begin
        self.stop()


def replay(rebuilt: Rebuilt, scheduler: Scheduler, *, paced: bool = False) -> Outcome:
    """Feed a stage's recorded inputs to it, in their order, and return what it puts out. Blocks until the request is over.

    A request that ended in another stage before this one had all of its inputs is over when as many outputs have been made as then.

    Args:
        scheduler: of the stage, built and not started. paced: give each input when it came then, and not as fast as possible.

    Raises:
        CapsuleError: an input cannot be read here.
    """
    inputs = [(event, _value(event)) for event in rebuilt.record.events if event.kind in INPUTS]
    outcome, outbound = Outcome(), _Outbound()
    has_begun, loop = threading.Event(), asyncio.new_event_loop()
    stages: list[_ReplayedStage] = []
    problems: list[BaseException] = []

    async def serve() -> None:
        stage = _ReplayedStage(rebuilt, scheduler, outbound, outcome)
        stages.append(stage)
        stage.start()
        has_begun.set()
        begin = time.monotonic()
        for event, value in inputs:
            if paced:
                await asyncio.sleep(max(0.0, begin + event.at / 1e9 - time.monotonic()))
            if outcome.ended:
                return
            _give(stage, rebuilt.record.attempt, event, value)
        expected = sum(event.kind in OUTPUTS for event in rebuilt.record.events)
        is_whole = _is_whole(rebuilt)
        while not outcome.ended and (is_whole or len(outcome.outputs) < expected):
            stage.made.clear()
            await stage.made.wait()
        stage.stop()

    def run() -> None:
        try:
            loop.run_until_complete(serve())
        except BaseException as error:
            problems.append(error)
            scheduler.stop()
        finally:
            has_begun.set()

    thread = threading.Thread(target=run, name="replay", daemon=True)
    thread.start()
    has_begun.wait()
    if stages:
        stages[0].compute()
    if stages and not outcome.ended and _is_whole(rebuilt) and not problems:
        raise CapsuleError(f"stage {rebuilt.spec.name!r}: its scheduler has ended before the request did")
    thread.join()
    loop.close()
    if problems:
        raise problems[0]
    return outcome


def _is_whole(rebuilt: Rebuilt) -> bool:
    """Return whether the stage had all of its inputs: the payloads, and the ends of all streams."""
    events = rebuilt.record.events
    if rebuilt.record.first("completed", "failed") is not None:
        return True
    has_ended = {event.source for event in events if event.kind == "done"}
    payloads = {event.source for event in events if event.kind == "payload"}
    return bool(payloads) and has_ended >= set(rebuilt.spec.stream_from) and (payloads >= set(rebuilt.spec.wait_for))


def _give(stage: Stage, attempt: str, event: Event, value: Any) -> None:
    if event.kind == "payload":
        stage.receive_payload(value, event.source, event.detail.get("handed_to"))
    elif event.kind == "chunk":
        stage.receive_chunk(attempt, event.source or "", value)
    else:
        stage.receive_done(attempt, event.source or "", event.detail.get("handed_to"))


def _value(event: Event) -> Any:
    if event.data is None:
        return None
    try:
        return decode(event.data)
    except CodecError as error:
        raise CapsuleError(f"an input cannot be read here: {error}") from None


@frozen
class Comparison:
    """The outputs of a replay beside those recorded.

    Attributes:
        equal: outputs that are equal byte by byte. recorded, replayed: how many there are.
        difference: the first one, in words; empty if all are equal and both ended alike.
    """

    equal: int
    recorded: int
    replayed: int
    difference: str = ""


def compare(rebuilt: Rebuilt, outcome: Outcome) -> Comparison:
    """Compare what was recorded of a stage with a replay of it. Errors are equal if type and message are."""
    then = [event for event in rebuilt.record.events if event.kind in OUTPUTS]
    now = outcome.outputs
    parts = {event.part for event in then} | {event.part for event in now}
    equal, difference = 0, ""
    for part in sorted(parts):  # parts of a request are computed side by side
        mine, other = [event for event in then if event.part == part], [event for event in now if event.part == part]
        for number, (old, new) in enumerate(zip(mine, other, strict=False)):
            problem = _difference(old, new)
            if problem:
                difference = difference or f"output {number}{f' of {part}' if part else ''} ({new.kind}): {problem}"
            else:
                equal += 1
    has_ended = rebuilt.record.first("completed", "failed") is not None  # else it was stopped, sooner or later than now
    if not difference and (len(then) != len(now) if has_ended else len(then) > len(now)):
        difference = f"{len(then)} outputs were recorded, and {len(now)} made"
    if not difference:
        difference = _end_difference(rebuilt, outcome)
    return Comparison(equal, len(then), len(now), difference)


def _end_difference(rebuilt: Rebuilt, outcome: Outcome) -> str:
    failure = rebuilt.record.failure
    if failure is not None and outcome.ended == "failed" and outcome.error is not None:
        old, new = ([each["error_type"], each["message"]] for each in (failure, outcome.error))
        return "" if old == new else f"it failed with {': '.join(old)}; now with {': '.join(new)}"
    end = rebuilt.record.first("completed", "failed")
    if end is not None and end.kind != outcome.ended:
        return f"it {end.kind} then, and {outcome.ended or 'did not end'} now"
    return ""


def _difference(old: Event, new: Event) -> str:
    if old.kind != new.kind:
        return f"{_named(old)} then, {_named(new)} now"
    if old.target != new.target:
        return f"then it was for {old.target}"
    if old.kind == "error":
        return "" if _named(old) == _named(new) else f"{_named(old)} then, {_named(new)} now"
    if old.digest is None or new.digest is None or old.digest == new.digest:
        return ""
    if old.data is None or new.data is None:
        return f"its bytes differ ({old.shape} then, {new.shape} now)"
    return _where(decode(old.data)[0], decode(new.data)[0], "data") or "its metadata differ"


def _named(event: Event) -> str:
    return f"{event.detail.get('error_type')}: {event.detail.get('message')}" if event.kind == "error" else event.kind


def _where(old: Any, new: Any, path: str) -> str:
    """Return the first place where two values differ; numbers in arrays with the largest difference."""
    if type(old) is not type(new):
        return f"{path}: {type(old).__name__} then, {type(new).__name__} now"
    if attrs.has(type(old)):
        pairs = [
            (f"{path}.{each.name}", getattr(old, each.name), getattr(new, each.name))
            for each in attrs.fields(type(old))
        ]
        return next((found for name, a, b in pairs if (found := _where(a, b, name))), "")
    if isinstance(old, dict) and old.keys() == new.keys():
        return next((found for key in old if (found := _where(old[key], new[key], f"{path}[{key!r}]"))), "")
    if isinstance(old, list | tuple) and len(old) == len(new):
        pairs = [(f"{path}[{place}]", a, b) for place, (a, b) in enumerate(zip(old, new, strict=True))]
        return next((found for name, a, b in pairs if (found := _where(a, b, name))), "")
    if encode(old) == encode(new):
        return ""
    if hasattr(old, "shape"):
        if old.shape != new.shape or old.dtype != new.dtype:
            return f"{path}: {shape_of(old)} then, {shape_of(new)} now"
        apart = old != new
        most = f", by at most {float(abs(old - new).max()):.3g}" if "float" in str(old.dtype) else ""
        return f"{path}: {int(apart.sum())} of {len(apart.reshape(-1))} numbers differ{most}"
    return f"{path}: {_short(old)} then, {_short(new)} now"


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
