"""Log records of stage processes: written as lines to standard error, and handed to the parent's logging with level, time and stage.

A record is one line: a mark, made of the process's endpoint so that no request can forge it, and a JSON object. In the parent, the
logger ``omni.stage.STAGE`` gets records, and at INFO the other lines that a process or its libraries write; ``omni.output.STAGE``
gets what a stage prints.
"""

from __future__ import annotations

import io
import json
import logging
import os
import sys
import threading
from collections.abc import Callable, Mapping
from typing import Any

from omni_core.errors import ConfigError, did_you_mean

LEVEL = "OMNI_LOG_LEVEL"
LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR", "CRITICAL")
OUTPUT = "print"
"""The name of the logger of what a stage prints."""

LONGEST_RECORD = 12_000
"""Bytes of a record's line. The middle of a longer message is left out."""

_FIELDS = {"level": int, "time": float, "logger": str, "message": str, "stage": str, "request_id": str, "pid": int}
_thread = threading.local()


def level_of(text: str, name: str = LEVEL) -> int:
    """Return the number of a level's name.

    Raises:
        ConfigError: there is no such level; the message begins with ``name``.
    """
    if text.upper() not in LEVELS:
        raise ConfigError(f"{name}={text}: there is no such level{did_you_mean(text.upper(), LEVELS)}")
    return int(logging.getLevelNamesMapping()[text.upper()])


def stage_environment() -> dict[str, str]:
    """Return the environment by which stage processes send what the parent's loggers would take."""
    level = logging.getLogger("omni.stage").getEffectiveLevel()
    return {LEVEL: next((each for each in LEVELS if logging.getLevelNamesMapping()[each] >= level), LEVELS[-1])}


def enter_stage(stage: str, running: Callable[[], Mapping[str, object]] | None = None) -> None:
    """Note that this thread computes for ``stage``; ``running`` returns the requests of its running compute."""
    _thread.stage, _thread.running = stage, running


def mark_of(endpoint: str) -> str:
    """Return the beginning of the record lines of the process at ``endpoint``, whose folder has a random name."""
    return f"\x1e{endpoint} "


class RecordWriter(logging.Handler):
    """Writes records as lines. The stage is that of the record's thread, else ``process``.

    Args:
        mark: begins each line, see :func:`mark_of`.
        write: takes the bytes of a line.
    """

    def __init__(self, process: str, mark: str, write: Callable[[bytes], object]) -> None:
        super().__init__()
        self._process = process
        self._mark = mark
        self._write = write

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._write(self._line(record))
        except Exception:
            self.handleError(record)

    def _line(self, record: logging.LogRecord) -> bytes:
        running = getattr(_thread, "running", None)
        requests = list(running()) if running is not None else []
        request = getattr(record, "request_id", requests[0] if len(requests) == 1 else "")
        document = {
            "level": record.levelno,
            "time": record.created,
            "logger": record.name,
            "stage": str(getattr(record, "stage", getattr(_thread, "stage", self._process))),
            "request_id": str(request),
            "pid": os.getpid(),
        }
        message = self.format(record)
        kept = len(message)
        while True:
            cut = (
                message if kept >= len(message) else f"{message[: kept // 2]} ... {message[len(message) - kept // 2 :]}"
            )
            # A line break before it ends what a print without one has begun.
            line = f"\n{self._mark}{json.dumps({**document, 'message': cut}, ensure_ascii=False)}\n".encode(
                errors="replace"
            )
            if len(line) <= LONGEST_RECORD or kept == 0:
                return line
            kept //= 2


class PrintWriter(io.TextIOBase):
    """Standard output of a stage process: a printed line is a record, so that it arrives with its stage and request."""

    encoding = "utf-8"

    def __init__(self, records: RecordWriter) -> None:
        self._records = records
        self._begun: dict[int, tuple[str, str | None]] = {}
        """By thread: a line that has begun, and its stage."""

    def fileno(self) -> int:
        return 1

    def write(self, text: str) -> int:
        thread = threading.get_ident()
        begun = self._begun.pop(thread, ("", None))[0] + text
        *lines, rest = begun.split("\n") if len(begun) < LONGEST_RECORD else (begun, "")
        if rest:
            self._begun[thread] = rest, getattr(_thread, "stage", None)
        for line in filter(None, lines):
            self._records.handle(logging.LogRecord(OUTPUT, logging.INFO, "", 0, line, None, None))
        return len(text)

    def finish(self) -> None:
        """Send the lines that have begun, at the end of the process."""
        for thread in list(self._begun):  # other threads may print on
            text, stage = self._begun.pop(thread, ("", None))
            record = logging.LogRecord(OUTPUT, logging.INFO, "", 0, text, None, None)
            if stage is not None:
                record.stage = stage
            self._records.handle(record)


def send_records(process: str, mark: str) -> None:
    """Send this process's records, warnings and prints to its parent, by standard error. Called once at its start."""
    os.dup2(2, 1)  # what is not written by Python
    errors = sys.stderr.buffer

    def write(line: bytes) -> None:
        errors.write(line)
        errors.flush()

    root, records = logging.getLogger(), RecordWriter(process, mark, write)
    root.addHandler(records)
    sys.stdout = PrintWriter(records)
    logging.captureWarnings(True)
    try:
        root.setLevel(level_of(os.environ.get(LEVEL, "WARNING")))
    except ConfigError as error:
        logging.getLogger(__name__).warning("%s; records from WARNING on are sent", error)


def finish_prints() -> None:
    """Send what this process has printed without a line break."""
    if isinstance(sys.stdout, PrintWriter):
        sys.stdout.finish()
    sys.stdout.flush()


def hand_on(process: str, mark: str, line: str) -> list[str]:
    """Hand a line of a process to the loggers of this one; return it as a person reads it."""
    fields = _parse(line.removeprefix(mark)) if line.startswith(mark) else None
    if fields is None:
        _log(
            f"omni.stage.{process}", logging.INFO, {"msg": line, "stage": process, "process": None, "origin": "stderr"}
        )
        return [line]
    level, message, origin = fields["level"], fields["message"], fields["logger"]
    attributes = {
        "msg": message,
        "created": fields["time"],
        "msecs": fields["time"] % 1 * 1000,
        "process": fields["pid"],
        "processName": process,
        "stage": fields["stage"],
        "request_id": fields["request_id"],
        "origin": origin,
    }
    if origin == OUTPUT:
        _log(f"omni.output.{fields['stage']}", level, attributes)
        return [message]
    _log(f"omni.stage.{fields['stage']}", level, attributes)
    return f"{logging.getLevelName(level)} {origin}: {message}".splitlines()


def _log(name: str, level: int, attributes: dict[str, Any]) -> None:
    logger = logging.getLogger(name)
    if logger.isEnabledFor(level):
        document = {"name": name, "levelno": level, "levelname": logging.getLevelName(level), **attributes}
        logger.handle(logging.makeLogRecord(document))


def _parse(line: str) -> dict[str, Any] | None:
    """Return the fields of a record, or ``None`` if the line was cut or garbled."""
    try:
        fields = json.loads(line)
    except ValueError:
        return None
    good = isinstance(fields, dict) and all(isinstance(fields.get(name), kind) for name, kind in _FIELDS.items())
    return fields if good else None
