"""The records of one stage process: of each request in each of its stages, while it runs and for a while after.

They are files in the run's folder, so that what a process had recorded is there when it has died, and the folder is removed with the
run. Files of requests that have ended are removed, the oldest first, when all together are larger than allowed.
"""

from __future__ import annotations

import hashlib
import logging
import os
import threading
import time
from collections import OrderedDict
from pathlib import Path
from typing import Any

from attrs import define

from omni_capsules.events import Event, digest_of, nbytes_of, read, shape_of
from omni_capsules.options import Options
from omni_core.errors import CodecError
from omni_core.protocol.codec import encode

logger = logging.getLogger(__name__)

_SUFFIX = ".events"


def name_of(text: str) -> str:
    """Return a name for files of ``text``, whatever is in it."""
    return hashlib.blake2b(text.encode(errors="surrogatepass"), digest_size=10).hexdigest()


def base_of(attempt: str) -> str:
    """Return what the attempts of one request have in common: a further one is called ``REQUEST~RANDOM``."""
    return attempt.rpartition("~")[0] or attempt


def is_attempt(attempt: str, request_id: str) -> bool:
    """Return whether ``attempt`` is one of a request."""
    return attempt == request_id or attempt.startswith(f"{request_id}~")


def stored(folder: Path, request_id: str) -> list[bytes]:
    """Return the records of a request in a process's folder; the process may have ended."""
    found = []
    for base in dict.fromkeys([base_of(request_id), request_id]):
        for path in sorted(folder.glob(f"{name_of(base)}-*{_SUFFIX}")):
            try:
                record = path.read_bytes()
                first = next(read(record), None)
            except (OSError, CodecError):
                continue  # removed meanwhile, or its writer died at once
            if first is not None and is_attempt(str(first.detail.get("attempt")), request_id):
                found.append(record)
    return found


@define(eq=False)
class Record:
    """One request in one stage. ``room``: bytes that values may still take. ``has_ended``: nothing is added any more."""

    path: Path
    begin: int
    room: int
    nbytes: int = 0
    has_ended: bool = False
    was_taken: bool = False


class Records:
    """The records of one process. From any thread.

    Args:
        folder: is made. Files of an earlier process of the same name are taken over: their requests may be asked for still.
        process: its name. host: of its machine.
    """

    def __init__(self, folder: Path, process: str, host: str, options: Options) -> None:
        self._folder, self._process, self._host, self._options = folder, process, host, options
        self._lock = threading.Lock()
        self._records: OrderedDict[tuple[str, str], Record] = OrderedDict()
        self._total = 0
        folder.mkdir(mode=0o700, exist_ok=True)
        for path in sorted(folder.glob(f"*{_SUFFIX}"), key=lambda each: each.stat().st_mtime):
            size = path.stat().st_size
            self._records[path.name, ""] = Record(path, 0, 0, size, has_ended=True)
            self._total += size

    def add(
        self,
        stage: str,
        attempt: str,
        kind: str,
        value: Any = None,
        *,
        part: str = "",
        source: str | None = None,
        target: str | None = None,
        detail: dict[str, Any] | None = None,
        shown: Any = None,
    ) -> None:
        """Add an event with a value, which is encoded now: its owner may change it later. Nothing happens if the record has ended.

        ``shown``: what of the value its shape is of.

        What cannot be recorded is left out, and never fails the request.
        """
        record = self._record(stage, attempt)
        if record is None:
            return
        detail, data, digest, shape, nbytes = detail or {}, None, None, "", 0
        if value is not None:
            try:
                shape = shape_of(shown)
                data, nbytes, left_out = self._encoded(record, value)
            except Exception as error:
                data, left_out = None, f"{type(error).__name__}: {error}"
            if data is not None:
                digest = digest_of(data)
            elif left_out:
                detail = {**detail, "left_out": left_out}
        at = time.monotonic_ns() - record.begin
        self._append(record, Event(kind, at, part, source, target, data, digest, shape, nbytes, detail))

    def taken(self, stage: str, attempt: str) -> None:
        """The stage's scheduler has taken a message of the request: its first one is recorded."""
        record = self._records.get((attempt, stage))
        if record is not None and not record.was_taken and not record.has_ended:
            record.was_taken = True
            self._append(record, Event("taken", time.monotonic_ns() - record.begin))

    def end(self, stage: str, attempt: str, kind: str, detail: dict[str, Any] | None = None) -> None:
        """End a record, if there is one."""
        record = self._records.get((attempt, stage))
        if record is not None and not record.has_ended:
            self._append(record, Event(kind, time.monotonic_ns() - record.begin, detail=detail or {}))
            record.has_ended = True

    def of(self, request_id: str) -> list[bytes]:
        """Return the records of all attempts of a request."""
        return stored(self._folder, request_id)

    def _record(self, stage: str, attempt: str) -> Record | None:
        """Return the record of a request in a stage, a new one if there is none; ``None`` if it has ended."""
        with self._lock:
            record = self._records.get((attempt, stage))
            if record is not None:
                return None if record.has_ended else record
            name = f"{name_of(base_of(attempt))}-{name_of(f'{attempt}/{stage}/{os.getpid()}')}{_SUFFIX}"
            record = Record(self._folder / name, time.monotonic_ns(), self._options.size)
            self._records[attempt, stage] = record
        detail = {"attempt": attempt, "stage": stage, "process": self._process, "pid": os.getpid(), "host": self._host}
        self._append(record, Event("begin", detail={**detail, "wall": time.time_ns(), "inputs": self._options.inputs}))
        return record

    def _encoded(self, record: Record, value: Any) -> tuple[bytes | None, int, str]:
        """Return a value as bytes, their number, and why it is left out if it is."""
        if not self._options.inputs:
            return None, nbytes_of(value), ""
        expected = nbytes_of(value)
        if expected > record.room:
            return None, expected, f"more than size_mb ({self._options.size_mb:g}) for the request"
        data = encode(value)
        record.room -= len(data)
        return data, len(data), ""

    def _append(self, record: Record, event: Event) -> None:
        frame = event.frame()
        with self._lock:
            try:
                descriptor = os.open(record.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
                try:
                    os.write(descriptor, frame)
                finally:
                    os.close(descriptor)
            except OSError as error:
                if not record.has_ended:
                    logger.warning("a request is recorded no further: %s: %s", record.path, error.strerror)
                record.has_ended = True
                return
            record.nbytes += len(frame)
            self._total += len(frame)
            while self._total > self._options.spool and len(self._records) > 1:
                self._drop()

    def _drop(self) -> None:
        """Remove the oldest record that has ended, or the oldest one."""
        key = next((key for key, each in self._records.items() if each.has_ended), next(iter(self._records)))
        record = self._records.pop(key)
        record.has_ended = True
        record.path.unlink(missing_ok=True)
        self._total -= record.nbytes
