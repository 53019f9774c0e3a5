"""Exceptions as plain data, whatever their classes do when they are formatted."""

from __future__ import annotations

import threading
import time
from typing import Any

import pytest

from omni_core.errors import (
    FORMAT_SECONDS,
    MAX_CHARACTERS,
    ConfigError,
    InvalidRequestError,
    InvalidRequestInStageError,
    OverloadedError,
    PeerDiedError,
    RequestFailedError,
    RequestTimeoutError,
    RequestTooLargeError,
    StageFailedError,
    message_of,
    name_of,
)
from omni_core.protocol.codec import encode_whole
from omni_core.protocol.error_info import describe, error_of
from omni_core.protocol.messages import ErrorInfo


def test_an_exception_keeps_its_name_message_and_traceback() -> None:
    try:
        raise ValueError("no")
    except ValueError as error:
        info = describe(error, "stage")
    assert (info.stage, info.error_type, info.message) == ("stage", "ValueError", "no")
    assert 'raise ValueError("no")' in info.traceback


def test_a_deliberate_error_has_no_traceback() -> None:
    assert describe(InvalidRequestError("no"), "stage") == ErrorInfo(
        "stage", "InvalidRequestError", "no", is_invalid_request=True
    )
    assert describe(PeerDiedError("gone"), "stage").peer_died
    assert describe(StageFailedError("other", "died"), "stage").stage == "other"


def test_an_error_without_a_message_is_described_by_its_repr() -> None:
    assert describe(KeyboardInterrupt(), None).message == "KeyboardInterrupt()"


def test_a_value_that_is_not_an_exception_is_described() -> None:
    assert describe("a string", "s") == ErrorInfo("s", "RuntimeError", "a string")


class Exits(Exception):
    def __str__(self) -> str:
        raise SystemExit(3)


class Interrupts(InvalidRequestError):
    def __str__(self) -> str:
        return ""

    def __repr__(self) -> str:
        raise KeyboardInterrupt


class Meta(type):
    @property
    def __name__(cls) -> str:
        raise SystemExit


class Nameless(Exception, metaclass=Meta):
    pass


class Text(str):
    def __len__(self) -> int:
        raise SystemExit

    def __getitem__(self, index: Any) -> str:
        raise SystemExit


class SpeaksStrangely(Exception):
    def __str__(self) -> str:
        return Text("strange")


class LiesAboutItsClass(Exception):
    @property
    def __class__(self) -> Any:
        raise SystemExit


def broken_syntax_error() -> SyntaxError:
    error = SyntaxError("broken")
    error.lineno, error.offset, error.text, error.filename = "x", [], 5, object()  # type: ignore[assignment]
    return error


@pytest.mark.parametrize(
    ("make", "name", "message"),
    [
        (Exits, "Exits", "raised SystemExit"),
        (Interrupts, "Interrupts", "raised KeyboardInterrupt"),
        (lambda: Nameless("message"), "Nameless", "message"),
        (SpeaksStrangely, "SpeaksStrangely", "strange"),
        (lambda: LiesAboutItsClass("lie"), "LiesAboutItsClass", "lie"),
        (broken_syntax_error, "SyntaxError", ""),
        (lambda: ValueError("\ud800"), "ValueError", "?"),
    ],
    ids=lambda value: value if type(value) is str else "",
)
def test_an_exception_that_cannot_be_formatted_is_described(make: Any, name: str, message: str) -> None:
    error = make()
    info = describe(error, "stage")
    assert info.error_type == name
    assert message in info.message
    encode_whole(info)
    assert message_of(error, with_type=True).startswith(f"{name}: ")


@pytest.mark.full
def test_formatting_has_a_time_limit() -> None:
    class Sleeps(Exception):
        def __str__(self) -> str:
            time.sleep(5)
            return "late"

    begin = time.monotonic()
    info = describe(Sleeps(), "stage")
    assert "took more than" in info.message
    assert time.monotonic() - begin < 2 * FORMAT_SECONDS + 0.5


def test_code_that_formats_for_ever_is_ended() -> None:
    class Spins(Exception):
        def __str__(self) -> str:
            while True:
                pass

    assert "took more than" in describe(Spins(), "stage").message
    for thread in threading.enumerate():
        if thread.name == "format-error":
            thread.join(30)
            assert not thread.is_alive()


def test_errors_of_our_own_may_be_made_by_hand() -> None:
    class Hostile:
        def __str__(self) -> str:
            raise SystemExit

    for stage in ([], None, object(), Text("x"), 5):
        error = StageFailedError.__new__(StageFailedError)
        assert (describe(error, "here").stage, describe(error, None).stage) == ("here", None)
        error.stage = stage  # type: ignore[assignment]
        error.args = (Hostile(), stage)
        info = describe(error, "here")
        assert (info.stage, info.error_type) == ("here", "StageFailedError")
        encode_whole(info)
    for kind in (
        RequestFailedError,
        InvalidRequestError,
        PeerDiedError,
        ConfigError,
        OverloadedError,
        RequestTimeoutError,
    ):
        made = kind.__new__(kind, Hostile())
        assert describe(made, "here").error_type == kind.__name__
        encode_whole(describe(made, "here"))


def test_without_a_thread_an_error_keeps_its_name_and_a_plain_message(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuses(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuses)
    info = describe(MemoryError("too much"), "stage")
    assert (info.error_type, info.message) == ("MemoryError", "too much")
    assert "no thread" in info.traceback
    assert "no thread" in describe(Exits(), "stage").message


def test_long_messages_keep_their_beginning_and_end() -> None:
    info = describe(ValueError("a" + "x" * 10**6 + "z"), None)
    assert len(info.message) < MAX_CHARACTERS + 100
    assert info.message[0] == "a"
    assert info.message[-1] == "z"
    assert "characters cut" in info.message


def test_names_are_those_of_the_classes() -> None:
    assert name_of(Nameless()) == "Nameless"


@pytest.mark.parametrize("invalid", [False, True])
def test_error_info_converts_back_to_an_exception(invalid: bool) -> None:
    error = error_of(ErrorInfo("s", "TooLong", "too long", is_invalid_request=invalid), "r")
    assert isinstance(error, RequestFailedError)
    assert isinstance(error, InvalidRequestError) is invalid
    assert (error.request_id, error.stage, error.error_type, error.message) == ("r", "s", "TooLong", "too long")


def test_a_request_that_is_too_large_stays_one() -> None:
    error = error_of(describe(RequestTooLargeError("messages: too long"), "s"), "r")
    assert isinstance(error, RequestTooLargeError)
    assert isinstance(error, InvalidRequestInStageError)
    assert (error.request_id, error.stage, error.message) == ("r", "s", "messages: too long")
