"""Records of a process: in order, bounded, readable after its death, and without content where that is not allowed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from capsule_parts import payload

from omni_capsules.events import Event, read
from omni_capsules.options import Options
from omni_capsules.records import Records, base_of, is_attempt, stored
from omni_core.protocol.codec import decode


def events_of(record: bytes) -> list[Event]:
    return list(read(record))


def test_events_of_a_request_are_in_order_and_end_with_it(records: Records) -> None:
    records.add("a", "r", "payload", payload({"n": 1}), shown={"n": 1})
    records.taken("a", "r")
    records.taken("a", "r")
    records.add("a", "r", "result", [{"n": 2}, None], shown={"n": 2})
    records.end("a", "r", "completed")
    records.add("a", "r", "chunk", 1)
    records.end("a", "r", "aborted")
    [record] = records.of("r")
    events = events_of(record)
    assert [event.kind for event in events] == ["begin", "payload", "taken", "result", "completed"]
    assert [event.at for event in events] == sorted(event.at for event in events)
    assert events[0].detail["stage"] == "a"
    assert decode(events[1].data or b"") == payload({"n": 1})
    assert events[1].shape == "{n: int}"
    assert records.of("other") == []


def test_values_are_as_they_were_when_they_came(records: Records) -> None:
    rows = np.zeros(3, np.float32)
    records.add("a", "r", "chunk", (rows, None, None))
    rows += 1
    [record] = records.of("r")
    assert decode(events_of(record)[1].data or b"")[0].tolist() == [0, 0, 0]


def test_without_inputs_nothing_of_the_content_is_written(tmp_path: Path) -> None:
    records = Records(tmp_path / "s", "p", "here", Options(folder="x"))
    records.add("a", "r", "payload", payload("a secret"), shown="a secret")
    [record] = records.of("r")
    assert b"secret" not in record
    assert (events_of(record)[1].data, events_of(record)[1].digest) == (None, None)
    assert events_of(record)[1].shape == "str[8]"


def test_what_has_no_room_is_left_out_and_said(tmp_path: Path) -> None:
    records = Records(tmp_path / "s", "p", "here", Options(folder="x", inputs=True, size_mb=0.01))
    records.add("a", "r", "chunk", b"1" * 6_000)
    records.add("a", "r", "chunk", b"2" * 6_000)
    records.add("a", "r", "chunk", b"3" * 2_000)
    [record] = records.of("r")
    assert [event.data is not None for event in events_of(record)[1:]] == [True, False, True]
    assert "size_mb (0.01)" in events_of(record)[2].detail["left_out"]


def test_what_cannot_be_encoded_is_left_out_and_said(records: Records) -> None:
    records.add("a", "r", "chunk", object())
    [record] = records.of("r")
    assert "cannot be sent" in events_of(record)[1].detail["left_out"]


def test_a_process_keeps_no_more_than_its_spool(tmp_path: Path) -> None:
    records = Records(tmp_path / "s", "p", "here", Options(folder="x", inputs=True, spool_mb=0.05))
    for number in range(40):
        records.add("a", f"r{number}", "chunk", bytes(4_000))
        records.end("a", f"r{number}", "completed")
        assert sum(path.stat().st_size for path in (tmp_path / "s").iterdir()) <= 55_000
    assert records.of("r0") == []
    assert len(records.of("r39")) == 1


def test_requests_that_run_are_removed_last(tmp_path: Path) -> None:
    records = Records(tmp_path / "s", "p", "here", Options(folder="x", inputs=True, spool_mb=0.02))
    records.add("a", "runs", "chunk", bytes(4_000))
    for number in range(20):
        records.add("a", f"r{number}", "chunk", bytes(4_000))
        records.end("a", f"r{number}", "completed")
    assert len(records.of("runs")) == 1


def test_the_records_of_a_process_that_died_are_read_from_its_folder(tmp_path: Path, records: Records) -> None:
    records.add("a", "r", "payload", payload(1))
    [path] = (tmp_path / "spool").iterdir()
    with path.open("ab") as file:
        file.write(b"\x50\x00\x00\x00half a frame")
    assert [event.kind for event in events_of(stored(tmp_path / "spool", "r")[0])] == ["begin", "payload"]
    successor = Records(tmp_path / "spool", "p", "here", Options(folder="x", inputs=True, spool_mb=0.001))
    assert len(successor.of("r")) == 1
    for number in range(5):  # what it took over counts, and goes first
        successor.add("a", f"r{number}", "chunk", bytes(500))
    assert successor.of("r") == []


def test_a_damaged_file_is_passed_over(tmp_path: Path, records: Records) -> None:
    records.add("a", "r", "payload", payload(1))
    [path] = (tmp_path / "spool").iterdir()
    path.write_bytes(b"\x03\x00\x00\x00\xc1\xc1\xc1")
    assert stored(tmp_path / "spool", "r") == []


@pytest.mark.parametrize("request_id", ["r", "a~b", "../r", "ü/\udcff"])
def test_further_attempts_belong_to_their_request(records: Records, request_id: str) -> None:
    records.add("a", request_id, "chunk", 1)
    records.add("a", f"{request_id}~0123", "chunk", 2)
    records.add("a", f"{request_id}x", "chunk", 3)
    assert len(records.of(request_id)) == 2
    assert is_attempt(f"{request_id}~0123", request_id)
    assert base_of(f"{request_id}~0123") == request_id
