"""The end of a message about an unknown name, and what a failing hook may not do."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import sys
from typing import Any

import pytest

from omni_core.errors import contained, did_you_mean, is_interrupt, shown


def test_the_nearest_name_is_offered() -> None:
    assert did_you_mean("lift", ["left", "right"]) == "; did you mean 'left'?"


def test_all_names_are_listed_where_none_is_near() -> None:
    assert did_you_mean("colour", iter(["left", "right"])) == "; there are: left, right"
    assert did_you_mean(7, [], listing="it takes") == "; it takes: none"


def test_the_work_for_a_long_name_is_bounded() -> None:
    names = [f"name-{number}" for number in range(1000)]
    message = did_you_mean("name-1" * 10**6, names)
    assert message.startswith("; there are: name-0, ")
    assert message.endswith(", name-99 and 900 more")
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
