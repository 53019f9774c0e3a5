"""The end of a message about an unknown name, and what a failing hook may not do."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Any

import pytest

from omni_core.errors import (
    ConfigError,
    InvalidRequestError,
    OmniError,
    OverloadedError,
    RequestTooLargeError,
    StageFailedError,
    contained,
    did_you_mean,
    is_interrupt,
    message_of,
    own_copy,
    shown,
    traceback_of,
)


def test_the_nearest_name_is_offered() -> None:
    assert did_you_mean("lift", ["left", "right"]) == "; did you mean 'left'?"


def test_all_names_are_listed_where_none_is_near() -> None:
    assert did_you_mean("colour", iter(["left", "right"])) == "; there are: left, right"
    assert did_you_mean(7, [], listing="it takes") == "; it takes: none"


def test_the_work_for_a_long_name_is_bounded() -> None:
    names = [f"name-{number}" for number in range(1000)]
    message = did_you_mean("name-1" * 10**6, names)
    assert message.startswith("; there are: name-0, ")
    assert message.endswith(", name-29 and 970 more")
    for value in ("x" * 10**6, ["x" * 10**6] * 10**3, {"x" * 10**6: 1}, {1: {2: {3: "x" * 10**6}}}, 10**4000):
        assert len(shown(value)) < 1500
    assert shown("lift") == "'lift'"


def _raises() -> None:
    raise KeyboardInterrupt


def test_an_interrupt_that_code_raises_itself_is_no_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt) as caught:
        _raises()
    assert not is_interrupt(caught.value)
    assert not is_interrupt(SystemExit())
    assert contained(lambda: sys.exit(3), "default", "this") == "default"
    assert contained(_raises, None, "this") is None


@pytest.mark.parametrize("kind", ["default", "function", "asyncio"])
def test_a_ctrl_c_passes_wherever_it_comes(kind: str) -> None:
    def handler(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    def hook() -> None:
        signal.raise_signal(signal.SIGINT)
        while True:
            sum(range(10))

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, handler if kind == "function" else signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            if kind == "asyncio":

                async def run() -> None:
                    with contextlib.suppress(SystemExit):
                        asyncio.get_running_loop().call_soon(lambda: contained(hook, None, "this"))
                        signal.raise_signal(signal.SIGINT)  # the first cancels this task
                        await asyncio.sleep(0)

                asyncio.run(run())
            else:
                contained(hook, None, "this")
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_exception_of_any_class_is_looked_at_without_its_code(hostile: BaseException) -> None:
    def hook() -> None:
        raise hostile

    assert not is_interrupt(hostile)
    assert message_of(hostile, with_type=True).startswith("Hostile: ")
    assert own_copy(hostile) is None
    assert contained(hook, "default", "this") == "default"
    assert "Hostile" in (text := traceback_of(hostile)) or "no message" in text


@pytest.mark.parametrize(
    "error",
    [
        InvalidRequestError("text"),
        RequestTooLargeError("text"),
        OverloadedError("text", 2.5),
        type("Own", (ConfigError,), {})("text"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_the_copy_of_a_deliberate_error_has_its_message_and_nothing_else(error: OmniError) -> None:
    error.__cause__ = error.__context__ = ValueError()
    copy = own_copy(error)
    assert (str(copy), getattr(copy, "retry_after", 2.5)) == ("text", 2.5)
    assert type(copy) is (ConfigError if type(error).__name__ == "Own" else type(error))
    assert copy is not error
    assert (copy.__cause__, copy.__context__) == (None, None)


@pytest.mark.parametrize(
    "error", [ValueError("text"), StageFailedError("stage", "text"), OverloadedError.__new__(OverloadedError)], ids=repr
)
def test_an_error_that_says_more_than_a_message_has_no_copy(error: Exception) -> None:
    assert own_copy(error) is None
