"""The output of a batch: a file that grows by whole lines in the order of the input, and says after any kill what is answered."""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from omni_cli.batch.lines import line_id
from omni_core.api import OmniError

PREFIX = "batch_req_"
"""Before the id of a line, as OpenAI's answers have it."""


class BatchError(OmniError):
    """A batch cannot run, or go on; the message names the file and the line."""


class Journal:
    """The output file, locked. Line ``n`` answers line ``n`` of the input, whose hash is in its ``id``.

    Attributes:
        done: lines that are answered.
        failed: those of them that are errors.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.done = self.failed = 0
        self._file = path.open("a+b")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._file.close()
            raise BatchError(f"{path}: another `omni batch` writes this file") from None

    def resume(self, lines: Iterable[tuple[int, bytes]]) -> Iterator[tuple[int, bytes]]:
        """Check the answers that there are against ``lines``, remove half a line at the end, and return the lines that are left.

        Raises:
            BatchError: the file answers another input, or is no output of a batch.
        """
        waiting = iter(lines)
        self._file.seek(0)
        end = 0
        for number, answer in enumerate(self._file, 1):
            if not answer.endswith(b"\n"):  # written when the process was killed
                break
            self._check(number, answer, next(waiting, None))
            end += len(answer)
        if self._file.seek(0, os.SEEK_END) > end:
            self._file.truncate(end)
            os.fsync(self._file.fileno())
        return waiting

    def _check(self, number: int, answer: bytes, line: tuple[int, bytes] | None) -> None:
        where = f"{self.path}:{number}"
        try:
            values = json.loads(answer)
            name = values["id"].removeprefix(PREFIX)
        except (ValueError, KeyError, TypeError, AttributeError):
            raise BatchError(f"{where} is no answer of `omni batch`; name another output file") from None
        if line is None:
            raise BatchError(f"{where} answers a line that the input does not have; name another output file")
        if name != line_id(line[1]):
            named = f" (custom_id {values['custom_id']!r})" if values.get("custom_id") is not None else ""
            raise BatchError(
                f"{where}{named} answers another text than line {line[0]} of the input: the input has changed, or the output "
                "belongs to another one; name another output file"
            )
        self.done += 1
        self.failed += bool(values.get("error"))

    def append(self, answers: list[dict[str, Any]]) -> None:
        """Write answers to the disk."""
        text = "".join(json.dumps(each, ensure_ascii=False, default=str) + "\n" for each in answers)
        self._file.write(text.encode())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.done += len(answers)
        self.failed += sum(bool(each.get("error")) for each in answers)

    def close(self) -> None:
        """Close the file, which unlocks it."""
        self._file.close()
