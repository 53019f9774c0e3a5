"""The file of a capsule: a ZIP archive without compression, with ``capsule.json`` and a record for each stage and attempt.

Nothing in it is code: JSON, and documents of the core's codec (:mod:`omni_capsules.events`). ZIP gives each member a checksum, and other
tools can list and read it. What a replay imports are the references in ``capsule.json``, and it says first which they are.
"""

from __future__ import annotations

import json
import os
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cattrs
from attrs import asdict, evolve, field, frozen

from omni_capsules.events import Event, read
from omni_core import __version__
from omni_core.errors import CodecError, OmniError

FORMAT, VERSION, SUFFIX = "omni-capsule", 1, ".capsule"
_DOCUMENT = "capsule.json"
_LARGEST_DOCUMENT = 16 << 20


class CapsuleError(OmniError):
    """A capsule cannot be read or replayed."""


@frozen(kw_only=True)
class StageRecord:
    """One attempt of the request in one stage.

    Attributes:
        attempt: the request's name there. process, pid, host: where it ran. wall: ``time.time_ns()`` at its first event.
        inputs: whether values were recorded.
        events: in their order.
    """

    stage: str
    attempt: str
    process: str
    pid: int
    host: str
    wall: int
    inputs: bool
    events: list[Event] = field(factory=list, repr=False)

    def first(self, *kinds: str) -> Event | None:
        """Return the first event of one of these kinds."""
        return next((event for event in self.events if event.kind in kinds), None)

    @property
    def failure(self) -> dict[str, Any] | None:
        """The error that the stage reported (the fields of an ``ErrorInfo``), or ``None``."""
        event = self.first("failed")
        return None if event is None else event.detail

    @property
    def seconds(self) -> float:
        """From the first event to the last one."""
        return self.events[-1].at / 1e9 if self.events else 0.0


@frozen(kw_only=True)
class Capsule:
    """One request that failed or was slow.

    Attributes:
        reason: ``failed`` or ``slow``. state: how it ended. seconds: from admission to the end. wall: ``time.time_ns()`` of the admission.
        error: ``{stage, error_type, message}`` of a failed one.
        request: what it asked for, without its inputs: ``params``, ``modalities``, ``stream``, ``timeout``, ``metadata``.
        pipeline: name of the pipeline. options: the settings of ``capsules``. omni_core: its version.
        processes: by name, ``stages`` (launch specs as plain data), ``kernels``, ``env``, and ``placement`` in words.
        environments: by process, see :func:`omni_capsules.environment.describe`.
        missing: processes that gave no records, and why.
        stages: the records, in pipeline order.
    """

    request_id: str
    reason: str
    state: str
    seconds: float
    wall: int
    error: dict[str, Any] | None = None
    request: dict[str, Any] = field(factory=dict)
    pipeline: str = ""
    options: dict[str, Any] = field(factory=dict)
    omni_core: str = __version__
    processes: dict[str, dict[str, Any]] = field(factory=dict)
    environments: dict[str, dict[str, dict[str, Any]]] = field(factory=dict)
    missing: dict[str, str] = field(factory=dict)
    stages: list[StageRecord] = field(factory=list)


def _exact(value: Any, kind: type) -> Any:
    if not isinstance(value, (int, float) if kind is float else kind):
        raise TypeError(f"{value!r:.80} is no {kind.__name__}")
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        raise ValueError(f"{value!r:.80} has more than 64 bits")
    return kind(value)


CONVERTER = cattrs.Converter(detailed_validation=False, forbid_extra_keys=True)
"""Structures what the document says, and converts no type."""
for _kind in (str, int, float, bool):
    CONVERTER.register_structure_hook(_kind, _exact)

MISFITS = (
    AttributeError,
    KeyError,
    TypeError,
    ValueError,
    OverflowError,
    RecursionError,
    cattrs.errors.ForbiddenExtraKeysError,
)
"""Errors that it raises."""


def record_of(data: bytes) -> StageRecord | None:
    """Return what a process has recorded; ``None`` if it holds nothing.

    Raises:
        CodecError: it is damaged.
    """
    events = list(read(data))
    if not events or events[0].kind != "begin":
        return None
    detail = events[0].detail
    try:
        return StageRecord(**detail, events=events[1:])
    except TypeError as error:
        raise CodecError(f"the first event of a record is no beginning: {error}") from None


def write(capsule: Capsule, path: Path, most: int) -> None:
    """Write a capsule, readable by this user alone. Values beyond ``most`` bytes are left out, of the stage that failed last.

    Raises:
        OSError: it cannot be written.
    """
    guilty = (capsule.error or {}).get("stage")
    room = most
    bodies: dict[int, bytes] = {}
    for number in sorted(range(len(capsule.stages)), key=lambda each: capsule.stages[each].stage != guilty):
        record = capsule.stages[number]
        size = sum(len(event.data or b"") for event in record.events)
        events = record.events if size <= room else [event.without_data() for event in record.events]
        room -= size if size <= room else 0
        bodies[number] = b"".join(event.frame() for event in events)
    fields = asdict(capsule, filter=lambda each, _: each.name != "stages")
    head = {"format": FORMAT, "version": VERSION, **fields}
    head["stages"] = [
        {**asdict(record, filter=lambda each, _: each.name != "events"), "file": f"records/{number}"}
        for number, record in enumerate(capsule.stages)
    ]
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        with open(descriptor, "wb") as file, zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            archive.writestr(_DOCUMENT, json.dumps(head, indent=1, default=str))
            for number, body in sorted(bodies.items()):
                archive.writestr(f"records/{number}", body)
        scratch.replace(path)
    except BaseException:
        scratch.unlink(missing_ok=True)
        raise


def load(path: Path) -> Capsule:
    """Read a capsule.

    Raises:
        CapsuleError: it is none, is damaged, or is of another version of the format.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            head = _document(archive, path)
            heads = head.pop("stages")
            if len({each["file"] for each in heads}) < len(heads):
                raise CodecError("two stages have one record")
            records = [_record(archive, each) for each in heads]
        del head["format"]
        return evolve(CONVERTER.structure(head, Capsule), stages=records)
    except OSError as error:
        raise CapsuleError(f"{path}: {error.strerror or error}") from None
    except CapsuleError:
        raise
    except (zipfile.BadZipFile, EOFError) as error:
        raise CapsuleError(f"{path}: no capsule, or a damaged one: {error}") from None
    except (CodecError, RuntimeError, *MISFITS) as error:
        raise CapsuleError(f"{path}: a damaged capsule: {type(error).__name__}: {error}") from None


def _document(archive: zipfile.ZipFile, path: Path) -> dict[str, Any]:
    if _DOCUMENT not in archive.namelist():
        raise CapsuleError(f"{path}: no capsule: it has no {_DOCUMENT}")
    if archive.getinfo(_DOCUMENT).file_size > _LARGEST_DOCUMENT:
        raise CapsuleError(f"{path}: a damaged capsule: its {_DOCUMENT} is larger than {_LARGEST_DOCUMENT >> 20} MiB")
    head = json.loads(archive.read(_DOCUMENT))
    if not isinstance(head, dict) or head.get("format") != FORMAT:
        raise CapsuleError(f"{path}: no capsule: its {_DOCUMENT} does not say that it is one")
    version = head.pop("version", None)
    if version != VERSION:
        core = repr(head.get("omni_core", "unknown"))[:40]
        raise CapsuleError(
            f"{path}: a capsule of version {version!r:.40}, written by omni-core {core}; "
            f"this one ({__version__}) reads version {VERSION}"
        )
    return head


def _record(archive: zipfile.ZipFile, head: dict[str, Any]) -> StageRecord:
    name = head.pop("file")
    if archive.getinfo(name).compress_type != zipfile.ZIP_STORED:
        raise CodecError(f"{name} is compressed, which a capsule never is")
    return evolve(CONVERTER.structure(head, StageRecord), events=list(read(archive.read(name))))


def prune(folder: Path, keep: int) -> Sequence[Path]:
    """Remove the capsules of a folder but ``keep`` of the newest requests, by their names; return those that were removed.

    Not by the times of the files: several are written at once.
    """
    found = sorted(folder.glob(f"*{SUFFIX}"))
    surplus = found[: max(0, len(found) - keep)]
    for path in surplus:
        path.unlink(missing_ok=True)
    return surplus
