"""The file of a capsule: read as it was written, refused where it is damaged or of another version."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import attrs
import pytest
from capsule_parts import MakeCapsule, payload

from omni_capsules import report
from omni_capsules.capsule import Capsule, CapsuleError, load, prune, write
from omni_capsules.records import Records
from omni_core.protocol.specs import StageSpec

SPEC = StageSpec(name="a", factory="computes:scaled", terminal=True)


def three(records: Records) -> None:
    records.add("a", "r", "payload", payload(bytes(1000)))
    records.add("a", "r", "result", [bytes(1000), None])
    records.end("a", "r", "completed")
    records.add("b", "r", "payload", payload(bytes(2000)))
    records.end("b", "r", "failed", {"error_type": "ValueError", "message": "m"})


@pytest.fixture
def capsule(make_capsule: MakeCapsule) -> Capsule:
    return make_capsule(SPEC, three, error={"stage": "b", "error_type": "ValueError", "message": "m"})


@pytest.fixture
def file(capsule: Capsule, tmp_path: Path) -> Path:
    write(capsule, tmp_path / "one.capsule", 10_000)
    return tmp_path / "one.capsule"


def test_a_capsule_is_read_as_it_was_written(capsule: Capsule, file: Path) -> None:
    assert load(file) == capsule
    assert file.stat().st_mode & 0o777 == 0o600
    assert [each.name for each in file.parent.glob("*one*")] == ["one.capsule"]


def test_beyond_its_size_values_are_left_out_of_the_stages_that_did_not_fail(capsule: Capsule, file: Path) -> None:
    write(capsule, file, 3_000)
    by_stage = {record.stage: record for record in load(file).stages}
    assert all(event.data is None for event in by_stage["a"].events)
    assert all(event.digest for event in by_stage["a"].events if event.kind == "payload")
    assert by_stage["b"].events[0].data is not None


def test_damage_anywhere_is_an_error_and_never_another_capsule(capsule: Capsule, file: Path, tmp_path: Path) -> None:
    whole, damaged = file.read_bytes(), tmp_path / "damaged.capsule"
    seen = 0
    for place in range(0, len(whole), 97):
        damaged.write_bytes(whole[:place] + bytes([whole[place] ^ 0x55]) + whole[place + 1 :])
        try:
            read = load(damaged)
        except CapsuleError:
            seen += 1
        else:
            assert read == capsule, place  # a byte of the archive's own, such as a time
    assert seen > len(whole) / 97 * 0.8
    for length in (0, 10, len(whole) // 2, len(whole) - 3):
        damaged.write_bytes(whole[:length])
        with pytest.raises(CapsuleError, match="damaged"):
            load(damaged)


def changed(file: Path, **values: object) -> Path:
    with zipfile.ZipFile(file) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    head = {**json.loads(members["capsule.json"]), **values}
    with zipfile.ZipFile(file, "w") as archive:
        for name, body in {**members, "capsule.json": json.dumps(head).encode()}.items():
            archive.writestr(name, body)
    return file


def test_another_version_is_refused_and_named(file: Path) -> None:
    with pytest.raises(
        CapsuleError, match=r"a capsule of version 2, written by omni-core '9\.9'; this one .* reads version 1"
    ):
        load(changed(file, version=2, omni_core="9.9"))


def test_what_is_no_capsule_is_refused(file: Path, tmp_path: Path) -> None:
    with pytest.raises(CapsuleError, match="No such file"):
        load(tmp_path / "gone")
    with pytest.raises(CapsuleError, match="Extra fields in constructor for Capsule: surplus"):
        load(changed(file, surplus=1))
    with pytest.raises(CapsuleError, match="does not say that it is one"):
        load(changed(file, format="other"))
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("x", b"")
    with pytest.raises(CapsuleError, match=r"it has no capsule\.json"):
        load(file)


def test_the_oldest_capsules_of_a_folder_are_removed(file: Path) -> None:
    names = [f"{number}.capsule" for number in range(5)]
    for age, name in enumerate(names):
        (file.parent / name).write_bytes(b"")
        os.utime(file.parent / name, (1000 + age, 1000 + age))
    (file.parent / "other.txt").touch()
    assert [path.name for path in prune(file.parent, 3)] == names[:3]
    assert {path.name for path in file.parent.glob("*.*")} >= {"other.txt", "one.capsule", "3.capsule", "4.capsule"}


def test_values_that_are_no_json_are_written_in_words(capsule: Capsule, file: Path) -> None:
    write(attrs.evolve(capsule, request={"params": {"path": Path("/x")}}), file, 10_000)
    assert load(file).request == {"params": {"path": "/x"}}


@pytest.mark.parametrize(
    "values",
    [
        {"seconds": []},
        {"wall": 10**30},
        {"wall": None},
        {"error": ["stage"]},
        {"request": None},
        {"missing": []},
        {"environments": {"p": {"versions": ["torch"]}}},
    ],
)
def test_what_a_document_says_has_the_types_of_a_capsule(values: dict[str, object], file: Path) -> None:
    with pytest.raises(CapsuleError, match="a damaged capsule"):
        load(changed(file, **values))


def test_a_record_is_read_for_one_stage(file: Path) -> None:
    with zipfile.ZipFile(file) as archive:
        stages = json.loads(archive.read("capsule.json"))["stages"]
    with pytest.raises(CapsuleError, match="two stages have one record"):
        load(changed(file, stages=stages * 1000))


def test_what_is_shown_moves_no_cursor(file: Path) -> None:
    shown = list(report.lines(load(changed(file, request_id="\x1b]0;title\x07\ud800", error={"message": "a\nb"}))))
    assert shown[0].startswith(r"request \x1b]0;title\x07\ud800 of ")
    assert shown[1] == r"  None: a\nb"
