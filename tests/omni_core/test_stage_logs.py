"""Log records on their way from a stage process to its parent's loggers."""

from __future__ import annotations

import logging
import sys
import threading
import warnings
from collections.abc import Iterator

import pytest

from omni_core.errors import ConfigError
from omni_core.processes.log_lines import LogLines
from omni_core.stage_logs import (
    LONGEST_RECORD,
    PrintWriter,
    RecordWriter,
    enter_stage,
    finish_prints,
    hand_on,
    level_of,
    mark_of,
    stage_environment,
)

MARK = mark_of("ipc:///tmp/omni-a1b2c3d4/p.sock")


CHILD = logging.Logger("child")
"""The logger of a stage process; it is not one of this process's tree."""


@pytest.fixture
def written() -> Iterator[bytearray]:
    """Return what a stage process writes to standard error."""
    taken = bytearray()
    CHILD.handlers = [RecordWriter("pipeline", MARK, taken.extend)]
    yield taken
    CHILD.handlers = []


def lines(written: bytearray) -> list[str]:
    return LogLines().feed(bytes(written))


def received(written: bytearray) -> list[str]:
    return [text for line in lines(written) for text in hand_on("pipeline", MARK, line)]


def test_a_record_keeps_its_level_time_logger_and_process(written: bytearray, caplog: pytest.LogCaptureFixture) -> None:
    CHILD.warning("%d left\nof %s", 3, "Ünï\u2028code\r")
    assert len(lines(written)) == 1
    assert received(written) == ["WARNING child: 3 left", "of Ünï", "code"]
    (record,) = caplog.records
    assert (record.name, record.levelname, record.getMessage()) == (
        "omni.stage.pipeline", "WARNING", "3 left\nof Ünï\u2028code\r",
    )  # fmt: skip
    assert (record.origin, record.stage, record.request_id) == ("child", "pipeline", "")  # type: ignore[attr-defined]
    assert record.process


def test_the_stage_is_that_of_the_thread_and_the_request_the_one_that_it_computes(
    written: bytearray, caplog: pytest.LogCaptureFixture
) -> None:
    running: dict[str, float] = {"r-1": 0.0}

    def compute() -> None:
        enter_stage("decoder", lambda: running)
        CHILD.warning("alone")
        running["r-2"] = 0.0
        CHILD.warning("in a batch")
        CHILD.warning("told", extra={"request_id": "r-9"})

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    received(written)
    found = [(each.name, each.request_id) for each in caplog.records]  # type: ignore[attr-defined]
    assert found == [("omni.stage.decoder", "r-1"), ("omni.stage.decoder", ""), ("omni.stage.decoder", "r-9")]


def test_a_traceback_arrives_with_its_record(written: bytearray) -> None:
    try:
        raise ValueError("broken")
    except ValueError:
        CHILD.exception("a step failed")
    text = received(written)
    assert text[:2] == ["ERROR child: a step failed", "Traceback (most recent call last):"]
    assert text[-1] == "ValueError: broken"


def test_a_long_message_loses_its_middle(written: bytearray) -> None:
    CHILD.error("begin" + "\x00é" * 100_000 + "end")
    (line,) = lines(written)
    assert len(line.encode()) <= LONGEST_RECORD
    (text,) = received(written)
    assert text.startswith("ERROR child: begin")
    assert " ... " in text
    assert text.endswith("end")


def test_an_unfinished_print_does_not_swallow_a_record(written: bytearray) -> None:
    written.extend(b"a print without an end")
    CHILD.error("a record")
    assert received(written) == ["a print without an end", "ERROR child: a record"]


def test_a_printed_line_arrives_with_its_stage_and_request(
    written: bytearray, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    (records,) = CHILD.handlers
    assert isinstance(records, RecordWriter)
    out = PrintWriter(records)

    def compute() -> None:
        enter_stage("decoder", lambda: {"r-1": 0.0})
        print("shape", (2, 3), file=out)
        print("a\n\nb", end="", file=out)

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert received(written) == ["shape (2, 3)", "a"]
    first, _ = caplog.records
    assert (first.name, first.levelname, first.request_id) == ("omni.output.decoder", "INFO", "r-1")  # type: ignore[attr-defined]


def test_a_print_without_a_line_break_is_bounded(written: bytearray) -> None:
    (records,) = CHILD.handlers
    assert isinstance(records, RecordWriter)
    out = PrintWriter(records)
    for _ in range(4):
        print("x" * LONGEST_RECORD, end="", file=out)
    assert len(received(written)) == 4


def test_a_line_that_has_begun_is_sent_at_the_end(
    written: bytearray, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.INFO)
    (records,) = CHILD.handlers
    assert isinstance(records, RecordWriter)
    monkeypatch.setattr(sys, "stdout", PrintWriter(records))

    def compute() -> None:
        enter_stage("decoder")
        print("half a ", end="")
        print("line", end="", flush=True)

    thread = threading.Thread(target=compute)
    thread.start()
    thread.join()
    assert not written
    finish_prints()
    finish_prints()
    assert received(written) == ["half a line"]
    assert [record.name for record in caplog.records] == ["omni.output.decoder"]


def test_other_lines_are_at_info(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert hand_on("pipeline", MARK, "from a library in C") == ["from a library in C"]
    (record,) = caplog.records
    assert (record.name, record.levelname, record.message) == ("omni.stage.pipeline", "INFO", "from a library in C")


@pytest.mark.parametrize("line", ["{}", "[]", "{", '{"level": "high"}', ""])
def test_a_garbled_record_is_a_line_like_any(line: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    assert hand_on("pipeline", MARK, MARK + line) == [MARK + line]
    assert caplog.records[0].levelname == "INFO"


def test_a_request_that_is_printed_forges_no_record(written: bytearray, caplog: pytest.LogCaptureFixture) -> None:
    CHILD.critical("trust me")
    genuine = lines(written)[0]
    caplog.set_level(logging.INFO)
    hand_on("pipeline", mark_of("ipc:///tmp/omni-z9y8x7w6/p.sock"), genuine)
    assert [record.levelname for record in caplog.records] == ["INFO"]


def test_the_loggers_of_the_parent_decide_what_is_sent_and_shown(
    written: bytearray, caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("omni.stage")
    logger.setLevel(logging.ERROR)
    assert stage_environment() == {"OMNI_LOG_LEVEL": "ERROR"}
    CHILD.warning("hidden")
    assert received(written) == ["WARNING child: hidden"], "the log of the process keeps it"
    assert not caplog.records
    logger.setLevel(logging.NOTSET)
    assert stage_environment() == {"OMNI_LOG_LEVEL": "WARNING"}


def test_levels_have_names() -> None:
    assert level_of("debug") == logging.DEBUG
    with pytest.raises(ConfigError, match=r"OMNI_LOG_LEVEL=debg: there is no such level; did you mean 'DEBUG'\?"):
        level_of("debg")


def test_warnings_of_python_become_records(written: bytearray) -> None:
    logger = logging.getLogger("py.warnings")
    handler = RecordWriter("pipeline", MARK, written.extend)
    logger.addHandler(handler)
    logging.captureWarnings(True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("always")
            logging.captureWarnings(True)
            warnings.warn("old option", DeprecationWarning, stacklevel=1)
    finally:
        logging.captureWarnings(False)
        logger.removeHandler(handler)
    assert any("DeprecationWarning: old option" in line for line in received(written))
