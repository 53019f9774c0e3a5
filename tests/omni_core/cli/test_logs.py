"""The log of the command line: its formats, and the flags and variables that choose them."""

from __future__ import annotations

import io
import json
import logging
import sys
from collections.abc import Iterator

import click
import pytest
from click.testing import CliRunner

from omni_core.cli.logs import CommandHandler, JsonFormatter, TextFormatter, configure, group_log_options, log_options
from omni_core.processes.process import with_defaults
from omni_core.stage_logs import hand_on, mark_of, stage_environment

MARK = mark_of("ipc:///tmp/omni-a1b2c3d4/p.sock")
RECORD = MARK + json.dumps(
    {"level": 30, "time": 1795313280.25, "logger": "engine", "stage": "decoder", "request_id": "r-1", "pid": 7, "message": "full"}
)  # fmt: skip


@pytest.fixture(autouse=True)
def as_before(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("OMNI_LOG_LEVEL", "")
    monkeypatch.delenv("OMNI_LOG_LEVEL")
    root, output = logging.getLogger(), logging.getLogger("omni.output")
    levels = root.level, output.level
    yield
    root.handlers = [each for each in root.handlers if not isinstance(each, CommandHandler)]
    root.setLevel(levels[0])
    output.setLevel(levels[1])


def record(**attributes: object) -> logging.LogRecord:
    return logging.makeLogRecord(
        {"name": "engine", "levelname": "WARNING", "created": 0.0, "msg": "full", **attributes}
    )


def test_text_shows_time_level_stage_and_request() -> None:
    line = TextFormatter().format(record(stage="decoder", request_id="r-1"))
    assert line[4] == line[7] == "-"
    assert line[23:] == " WARNING decoder [r-1] engine: full"
    assert TextFormatter().format(record())[23:] == " WARNING engine: full"
    assert TextFormatter().format(record(stage="decoder", origin="print"))[23:] == " WARNING decoder: full"


def test_text_indents_further_lines_and_shows_control_characters() -> None:
    line = TextFormatter().format(record(msg="one\ntwo \x1b[31mred\x9b"))
    assert line.endswith("engine: one\n    two \\x1b[31mred\\x9b")


def test_json_is_one_object_per_record() -> None:
    text = JsonFormatter().format(record(msg="one\ntwo", stage="decoder", request_id="r-1", process=7))
    assert "\n" not in text
    assert json.loads(text) == {
        "time": "1970-01-01T00:00:00.000+00:00", "level": "WARNING", "logger": "engine", "stage": "decoder",
        "request_id": "r-1", "pid": 7, "message": "one\ntwo",
    }  # fmt: skip


@pytest.mark.parametrize(("level", "shown"), [("DEBUG", 3), ("WARNING", 2), ("ERROR", 0)])
def test_what_stages_print_is_shown_unless_only_errors_are_wanted(
    level: str, shown: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    configure(level, "text")
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    for line in (RECORD, RECORD.replace('"engine"', '"print"').replace("30", "20"), "of a library"):
        hand_on("decoder", MARK, line)
    assert len(sys.stderr.getvalue().splitlines()) == shown  # type: ignore[attr-defined]


@click.group()
@group_log_options
def program() -> None: ...


@program.command()
@log_options
def command() -> None:
    logging.getLogger("engine").info("hello")


@pytest.mark.parametrize(
    ("arguments", "environment", "expected"),
    [
        (["command"], {}, ""),
        (["--log-level", "info", "command"], {}, "INFO engine: hello"),
        (["command", "--log-level", "DEBUG"], {}, "INFO engine: hello"),
        (["command"], {"OMNI_LOG_LEVEL": "debug"}, "INFO engine: hello"),
        (["--log-level", "error", "command"], {"OMNI_LOG_LEVEL": "debug"}, ""),
        (["command", "--log-level", "info"], {"OMNI_LOG_FORMAT": "json"}, '"message": "hello"'),
        (["--log-format", "json", "command", "--log-level", "info"], {}, '"level": "INFO"'),
        (["command"], {"OMNI_LOG_LEVEL": "debg"}, "Invalid value for '--log-level' (env var: 'OMNI_LOG_LEVEL')"),
    ],
)
def test_flags_and_variables(arguments: list[str], environment: dict[str, str], expected: str) -> None:
    answer = CliRunner().invoke(program, arguments, env=environment)
    assert expected in answer.stderr if expected else answer.stderr == ""


def test_stage_processes_get_the_level() -> None:
    CliRunner().invoke(program, ["--log-level", "info", "command"])
    assert with_defaults(stage_environment())["OMNI_LOG_LEVEL"] == "INFO"


def test_a_flag_comes_before_the_variable_in_stages_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMNI_LOG_LEVEL", "error")
    CliRunner().invoke(program, ["--log-level", "info", "command"])
    assert with_defaults(stage_environment())["OMNI_LOG_LEVEL"] == "INFO"


def test_stages_of_other_hosts_have_the_level_of_their_pipeline() -> None:
    CliRunner().invoke(program, ["command"])  # such as `omni hosts serve`
    assert with_defaults({"OMNI_LOG_LEVEL": "DEBUG"})["OMNI_LOG_LEVEL"] == "DEBUG"
