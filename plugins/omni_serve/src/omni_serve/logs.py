"""The log of a server: a line for each request (``omni.access``) and for what an operator would want to trace (``omni.audit``).

Nobody waits for the log: :class:`Background` writes it in a thread of its own, and drops records where they are not taken.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import threading
from collections.abc import Iterator, Mapping
from typing import Any

import click
from attrs import define, field
from starlette.types import Scope

from omni_serve.fair_queue import Bucket

access_log = logging.getLogger("omni.access")
audit_log = logging.getLogger("omni.audit")

MOST_RECORDS = 4096
"""Records that wait to be written."""

_MOST_CHARACTERS = 16_000
_VALUE_CHARACTERS = 200
_REFUSALS_PER_MINUTE = 60.0
_KEY = re.compile(r"(sk|ek)[-_][\w-]+")


def shown(value: object) -> str:
    """Return a value that a client has chosen as it may stand in a log: short, in one line, without what looks like a key."""
    return _KEY.sub(r"\1-...", repr(str(value)[:_VALUE_CHARACTERS])[1:-1])


def write(logger: logging.Logger, text: str, identity: str, **fields: Any) -> None:
    """Log a line. In a log of JSON objects ``fields`` are keys of their own."""
    given = {
        name: shown(value) if isinstance(value, str) else value for name, value in fields.items() if value is not None
    }
    words = " ".join(f"{name}={value}" for name, value in given.items())
    logger.info("%s %s", text, words, extra={"request_id": shown(identity), "fields": given})


def of_request(scope: Scope) -> dict[str, Any]:
    """Return what lines say of a request: the key, the client's address, the method and the route."""
    key, client, route = scope.get("omni.key"), scope.get("client"), scope.get("route")
    return {
        "key": key.name if key is not None else None,
        "client": client[0] if client else "unix socket",
        "method": scope.get("method", "WEBSOCKET"),
        "route": getattr(route, "path", None) or scope["path"],
    }


@define(eq=False)
class Audit:
    """Writes lines of ``omni.audit``. Of refused keys only so many a minute: a line says how many there were since the last."""

    _bucket: Bucket = field(factory=lambda: Bucket(_REFUSALS_PER_MINUTE))
    _left_out: int = 0

    def refused(self, scope: Scope, identity: str, code: str, now: float) -> None:
        """Note a request whose key was refused."""
        if self._bucket.wait(1.0, now):
            self._left_out += 1
            return
        self._bucket.take(1.0, now)
        left_out, self._left_out = self._left_out or None, 0
        write(audit_log, "key refused", identity, **of_request(scope), code=code, left_out=left_out)

    def done(self, scope: Scope, identity: str, status: int) -> None:
        """Note what an operator, or a client that uploads or deletes voices, has asked for."""
        more: Mapping[str, Any] = scope.get("omni.audit") or {}
        write(
            audit_log,
            "done" if status < 400 else "not done",
            identity,
            **of_request(scope),
            path=scope["path"],
            status=status,
            **more,
        )


class Background(logging.Handler):
    """Hands records to other handlers in a thread: a terminal or a pipe that takes nothing stops nobody else."""

    def __init__(self, handlers: list[logging.Handler], most: int = MOST_RECORDS) -> None:
        super().__init__()
        self._handlers = handlers
        self._records: queue.Queue[logging.LogRecord | str | None] = queue.Queue(most)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write, name="log", daemon=True)
        self._thread.start()

    def emit(self, record: logging.LogRecord) -> None:
        """Take a record, as text: what it quotes may change, and a traceback would keep everything in its frames."""
        record.msg, record.args = record.getMessage()[:_MOST_CHARACTERS], None
        if record.exc_info and record.exc_text is None:
            record.exc_text = _FORMATTER.formatException(record.exc_info)[-_MOST_CHARACTERS:]
        record.exc_info = None
        self._put(record)

    def say(self, text: str) -> None:
        """Print a line to standard error."""
        self._put(text)

    def stop(self, seconds: float = 2.0) -> None:
        """Write what waits, for so long at most."""
        with contextlib.suppress(queue.Full):
            self._records.put(None, timeout=seconds)
        self._thread.join(seconds)

    @property
    def is_stalled(self) -> bool:
        """Return if a write is still waited for after :meth:`stop`."""
        return self._thread.is_alive()

    def _put(self, record: logging.LogRecord | str) -> None:
        try:
            self._records.put_nowait(record)
        except queue.Full:
            self._dropped += 1

    def _write(self) -> None:
        while (record := self._records.get()) is not None:
            with contextlib.suppress(Exception):  # a closed pipe must not end the thread
                if isinstance(record, str):
                    click.echo(record, err=True)
                    continue
                self._hand_on(record)
                if self._dropped:
                    dropped, self._dropped = self._dropped, 0
                    text = f"{dropped} records were dropped: the log is not read fast enough"
                    self._hand_on(
                        logging.makeLogRecord({"name": __name__, "levelno": 30, "levelname": "WARNING", "msg": text})
                    )

    def _hand_on(self, record: logging.LogRecord) -> None:
        for each in self._handlers:
            if record.levelno >= each.level:
                each.handle(record)


_FORMATTER = logging.Formatter()


@contextlib.contextmanager
def in_background() -> Iterator[Background]:
    """Write the log of this process by a thread."""
    root = logging.getLogger()
    before = root.handlers
    background = Background(before)
    root.handlers = [background]
    try:
        yield background
    finally:
        root.handlers = before
        background.stop()
