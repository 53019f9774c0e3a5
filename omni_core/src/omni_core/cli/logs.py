"""The log of the ``omni`` command, on standard error: a line per record with time, level, stage and request, or a JSON object."""

from __future__ import annotations

import json
import logging
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, TextIO, TypeVar

import click

from omni_core.stage_logs import LEVEL, LEVELS, OUTPUT, level_of

FORMAT = "OMNI_LOG_FORMAT"

Command = TypeVar("Command", bound=Callable[..., Any])

_CONTROL = {code: f"\\x{code:02x}" for code in (*range(9), *range(11, 32), *range(127, 160))}
"""Control characters, which could change the terminal: a record may quote what a request says."""


class TextFormatter(logging.Formatter):
    """``2026-11-22 12:03:04.123 WARNING decoder [request] my_engine.scheduler: message``; further lines are indented."""

    def format(self, record: logging.LogRecord) -> str:
        when = datetime.fromtimestamp(record.created).strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
        request, origin = getattr(record, "request_id", ""), getattr(record, "origin", record.name)
        parts = [when, record.levelname, getattr(record, "stage", ""), f"[{request}]" if request else ""]
        where = " ".join(part for part in parts if part)
        source = "" if origin in (OUTPUT, "stderr") else f" {origin}"
        lines = super().format(record).translate(_CONTROL).splitlines() or [""]
        return f"{where}{source}: " + "\n    ".join(lines)


class JsonFormatter(logging.Formatter):
    """One JSON object per record; ``stage`` and ``request_id`` where they are known, and the record's ``fields``, a mapping."""

    def format(self, record: logging.LogRecord) -> str:
        document = {
            "time": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": getattr(record, "origin", record.name),
            "stage": getattr(record, "stage", ""),
            "request_id": getattr(record, "request_id", ""),
            "pid": record.process,
            "message": super().format(record).rstrip(),
            **getattr(record, "fields", {}),
        }
        return json.dumps({name: value for name, value in document.items() if value not in ("", None)}, default=str)


class CommandHandler(logging.StreamHandler[TextIO]):
    """Writes to standard error as it is at that time: a live display takes its place for a while."""

    def __init__(self, formatter: logging.Formatter) -> None:
        logging.Handler.__init__(self)
        self.setFormatter(formatter)

    @property
    def stream(self) -> TextIO:  # type: ignore[override]
        return sys.stderr


FORMATS: dict[str, type[logging.Formatter]] = {"text": TextFormatter, "json": JsonFormatter}
_HELP = {
    "--log-level": "The least level that is logged, to standard error, here and in the stages.",
    "--log-format": "A line of text per record, or a JSON object.",
}


def configure(level: str, form: str) -> None:
    """Set up logging for this command. Stage processes get its level by :func:`omni_core.stage_logs.stage_environment`."""
    number = level_of(level)
    if (
        LEVEL in os.environ
    ):  # they inherit it; not set here, as a stage of another host's pipeline has that pipeline's level
        os.environ[LEVEL] = level
    root = logging.getLogger()
    root.handlers = [each for each in root.handlers if not isinstance(each, CommandHandler)]
    root.addHandler(CommandHandler(FORMATS[form]()))
    root.setLevel(number)
    # Prints of stages are for the person who runs them: they are shown unless only errors are wanted.
    logging.getLogger("omni.output").setLevel(min(number, logging.INFO) if number <= logging.WARNING else number)


def log_options(command: Command) -> Command:
    """Add ``--log-level`` and ``--log-format`` to a command that runs for a while; ``omni`` itself has them too."""
    return _option("--log-level", LEVELS, None)(_option("--log-format", FORMATS, None)(command))


def group_log_options(group: Command) -> Command:
    """Add the options to ``omni``, with their defaults."""
    return _option("--log-level", LEVELS, "WARNING", LEVEL)(_option("--log-format", FORMATS, "text", FORMAT)(group))


def _option(
    flag: str, choices: Iterable[str], default: str | None, variable: str | None = None
) -> Callable[[Command], Command]:
    return click.option(
        flag,
        type=click.Choice(list(choices), case_sensitive=False),
        default=default,
        show_default=default is not None,
        show_envvar=default is not None,
        envvar=variable,
        is_eager=True,
        expose_value=False,
        callback=_chosen,
        help=_HELP[flag],
    )


def _chosen(context: click.Context, option: click.Parameter, value: str | None) -> None:
    if value is not None and option.name is not None:
        set_log_options(context, {option.name: value})


def set_log_options(context: click.Context, given: Mapping[str, str]) -> None:
    """Set up logging by ``given`` (``log_level``, ``log_format``) and by what was given before."""
    chosen = context.meta.setdefault(__name__, {"log_level": "WARNING", "log_format": "text"})
    chosen.update(given)
    configure(chosen["log_level"], chosen["log_format"])
