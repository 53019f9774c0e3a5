"""Functions, batches and generators in a loop."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest
from running import running

from omni_core.errors import ConfigError
from omni_core.protocol.messages import OmniRequest, StagePayload
from omni_core.protocol.specs import StageSpec
from omni_core.scheduling import IncomingMessage, OutgoingMessage, SimpleScheduler
from omni_core.stage.assembly import build_scheduler


def message(name: str, data: Any = None) -> IncomingMessage:
    return IncomingMessage(name, "new_request", StagePayload(name, OmniRequest(), data))


def served(scheduler: SimpleScheduler, *messages: IncomingMessage) -> list[OutgoingMessage]:
    """Return the outgoing messages, given messages that wait together."""
    for each in messages:
        scheduler.inbox.put(each)
    while len(scheduler.inbox):
        assert scheduler.turn()
    return scheduler.outbox.drain()


def words(payload: StagePayload) -> Iterator[str]:
    yield from payload.data
    if "bad" in payload.data:
        raise SystemExit("bad")
    return " ".join(payload.data)  # type: ignore[return-value]


def test_a_generator_streams_its_values_and_returns_the_result() -> None:
    out = served(SimpleScheduler(words), message("r", ["a", "b"]))
    assert [(each.type, each.data, each.target) for each in out] == [
        ("stream", "a", None),
        ("stream", "b", None),
        ("result", "a b", None),
    ]


def test_a_generator_that_raises_fails_its_request_alone() -> None:
    out = served(SimpleScheduler(words), message("r", ["bad"]), message("s", ["good"]))
    assert [(each.request_id, each.type) for each in out] == [
        ("r", "stream"),
        ("r", "error"),
        ("s", "stream"),
        ("s", "result"),
    ]


def test_an_aborted_generator_is_closed_at_its_next_value() -> None:
    made = []
    closed = []

    def endless(payload: StagePayload) -> Iterator[int]:
        try:
            for number in range(1000):
                made.append(number)
                if number == 3:
                    scheduler.abort("r")
                yield number
        finally:
            closed.append(True)

    scheduler = SimpleScheduler(endless)
    assert [each.data for each in served(scheduler, message("r"))] == [0, 1, 2]
    assert (made, closed) == ([0, 1, 2, 3], [True])


def test_an_abort_between_reading_and_admission_computes_and_says_nothing() -> None:
    computed = []
    scheduler = SimpleScheduler(lambda payload: computed.append(payload.request_id))
    scheduler.inbox.tap = lambda kind, items: (
        scheduler.abort("r") if kind == "take" and any(each.request_id for each in items) else None
    )
    assert served(scheduler, message("r")) == []
    assert computed == []
    scheduler.inbox.tap = None
    assert [each.request_id for each in served(scheduler, message("s"))] == ["s"]
    assert not scheduler._aborted


def test_requests_that_are_aborted_together_are_forgotten_in_one_order() -> None:
    """Ranks in processes of their own forget them alike: the order of a set of names differs from process to process."""
    forgotten = []
    scheduler = SimpleScheduler(lambda payload: None)
    scheduler.forget = forgotten.append  # type: ignore[method-assign]
    names = [f"r{number}" for number in range(40)]
    for name in reversed(names):
        scheduler.abort(name)
    scheduler.drop_aborted()
    assert forgotten == sorted(names)


def double(payloads: list[StagePayload]) -> list[Any]:
    sizes.append(len(payloads))
    if any(payload.data == "bad" for payload in payloads):
        raise KeyboardInterrupt
    return [2 * payload.data for payload in payloads]


sizes: list[int] = []


@pytest.fixture(autouse=True)
def no_sizes() -> None:
    sizes.clear()


def spec(factory: str, injected: dict[str, Any] | None = None, **arguments: Any) -> StageSpec:
    return StageSpec(name="s", factory=f"{__name__}:{factory}", factory_args=arguments, injected=injected or {})


def make_double(factor: int = 2) -> Any:
    def multiply(payloads: list[StagePayload]) -> list[Any]:
        return [factor * payload.data for payload in payloads]

    return multiply


def single(payload: StagePayload) -> Any:
    return payload.data


def test_a_batch_function_gets_pending_payloads_up_to_the_batch_size() -> None:
    scheduler = build_scheduler(spec("double", batch_size=4))
    assert isinstance(scheduler, SimpleScheduler)
    out = served(scheduler, *(message(f"r{n}", n) for n in range(6)))
    assert [each.data for each in out] == [2 * n for n in range(6)]
    assert sizes == [4, 2]


def test_a_batch_that_raises_anything_is_computed_one_by_one() -> None:
    out = served(SimpleScheduler.of_batches(double, 4), message("a", 1), message("b", "bad"), message("c", 3))
    assert [(each.request_id, each.type) for each in out] == [("a", "result"), ("b", "error"), ("c", "result")]
    assert sizes == [3, 1, 1, 1]


def test_a_batch_whose_results_cannot_be_read_is_computed_one_by_one() -> None:
    class Unreadable(list[Any]):
        def __iter__(self) -> Any:
            raise SystemExit(3)

    def compute(payloads: list[StagePayload]) -> list[Any]:
        results = [2 * each.data for each in payloads]
        return Unreadable(results) if len(results) > 1 else results

    out = served(SimpleScheduler.of_batches(compute, 4), message("a", 1), message("b", 2))
    assert sorted((each.request_id, each.data) for each in out) == [("a", 2), ("b", 4)]


def test_a_factory_may_return_a_batch_function() -> None:
    scheduler = build_scheduler(spec("make_double", factor=3, batch_size=2))
    assert isinstance(scheduler, SimpleScheduler)
    assert [each.data for each in served(scheduler, message("a", 1), message("b", 2))] == [3, 6]


def test_a_batch_is_waited_for_until_it_is_full() -> None:
    scheduler = SimpleScheduler.of_batches(double, 3, 30.0)
    with running(scheduler):
        for number in range(3):
            time.sleep(0.01)
            scheduler.inbox.put(message(f"r{number}", number))
        assert scheduler.outbox.get(timeout=10) is not None
    assert sizes == [3]


def test_a_batch_that_does_not_fill_is_not_waited_for_longer_than_its_window() -> None:
    scheduler = SimpleScheduler.of_batches(double, 3, 0.05)
    with running(scheduler):
        scheduler.inbox.put(message("r", 1))
        assert scheduler.outbox.get(timeout=10) is not None
    assert sizes == [1]


@pytest.mark.parametrize(
    ("factory", "arguments", "problem"),
    [
        ("double", {"batch_size": 0}, r"stages\[s\].factory_args.batch_size: must be a whole number"),
        ("double", {"batch_size": "4"}, "batch_size: must be a whole number"),
        ("double", {"batch_size": 2, "batch_wait": -1}, "batch_wait: must be a number of seconds"),
        ("double", {"batch_wait": 0.1}, "batch_wait: has no effect without a batch_size"),
        ("single", {"batch_size": 2}, r"batch_size: .*:single' takes one payload at a time"),
        ("SimpleScheduler", {"compute": single, "batch_size": 2}, "returns no batch function"),
        ("make_double", {"factr": 3}, "did you mean 'factor'"),
    ],
)
def test_impossible_batching_is_an_error(factory: str, arguments: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigError, match=problem):
        build_scheduler(spec(factory, **arguments))


def test_ranks_of_one_stage_do_not_batch_by_time() -> None:
    with pytest.raises(ConfigError, match="batch_wait: not possible with a tp_size above 1"):
        build_scheduler(spec("double", {"tp_size": 2}, batch_size=2, batch_wait=0.1))


def endless(payload: StagePayload) -> Iterator[int]:
    number = 0
    while True:
        yield number
        number += 1


@pytest.mark.parametrize("ends", ["resumed", "aborted"])
def test_a_generator_that_is_paused_waits_and_computes_nothing(ends: str) -> None:
    scheduler = SimpleScheduler(endless)
    with running(scheduler):
        scheduler.inbox.put(message("r"))
        scheduler.outbox.get()
        scheduler.pause("r", True)
        count = -1
        while count != len(scheduler.outbox):  # the value that it was asked for may come still
            count = len(scheduler.outbox)
            time.sleep(0.02)
        assert scheduler.running_computes() == {}
        scheduler.outbox.drain()
        if ends == "resumed":
            scheduler.pause("r", False)
            assert scheduler.outbox.get(5) is not None
        scheduler.abort("r")
