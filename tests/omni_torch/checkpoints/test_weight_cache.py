"""The bound of the folder of prepared weights: what is removed to make room, and what is not removed in vain."""

from __future__ import annotations

import os
import threading
import time
from collections import namedtuple
from pathlib import Path

import pytest
import torch

from omni_torch.checkpoints import weight_cache
from omni_torch.checkpoints.weight_files import write_tensors

Usage = namedtuple("Usage", "total used free")


@pytest.fixture(autouse=True)
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three files of 100 bytes, the oldest first."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv(weight_cache.VARIABLE, "350")
    monkeypatch.setattr(weight_cache, "LEFT", 10)
    weight_cache.folder().mkdir(parents=True)
    paths = [weight_cache.path_of(name) for name in ("a", "b", "c")]
    for number, path in enumerate(paths):
        path.write_bytes(bytes(100))
        os.utime(path, (number, number))
    return paths


def free(monkeypatch: pytest.MonkeyPatch, nbytes: int) -> None:
    monkeypatch.setattr(weight_cache.shutil, "disk_usage", lambda path: Usage(10**6, 0, nbytes))


def test_the_oldest_go_until_the_bound_is_kept(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 10**6)
    weight_cache.make_room(120)
    assert [path.exists() for path in files] == [False, True, True]


def test_a_full_disk_is_relieved_by_the_oldest(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 0)
    weight_cache.make_room(40)
    assert [path.exists() for path in files] == [False, True, True]


def test_nothing_is_removed_in_vain(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(weight_cache.VARIABLE, "1000")
    free(monkeypatch, 0)
    with pytest.raises(OSError, match="GiB free"):
        weight_cache.make_room(400)
    assert all(path.exists() for path in files)


def test_what_a_killed_process_was_writing_goes(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    free(monkeypatch, 10**6)
    left, written = (weight_cache.folder() / f"writing-{name}" for name in ("old", "new"))
    for path in (left, written):
        path.write_bytes(b"")
    os.utime(left, (0, 0))
    weight_cache.make_room(1)
    assert (left.exists(), written.exists()) == (False, True)


def test_weights_of_checkpoints_that_are_gone_are_removed_after_a_day(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free(monkeypatch, 10**6)
    monkeypatch.setenv(weight_cache.VARIABLE, "1MiB")
    there, gone, closed = tmp_path / "there", tmp_path / "gone", tmp_path / "file" / "below"
    there.mkdir()
    closed.parent.touch()  # to look below it is an error, but not that nothing is there
    old = time.time() - weight_cache.GONE - 60
    for name, checkpoint, used in (
        ("of-there", there, old),
        ("of-gone", gone, old),
        ("of-gone-today", gone, time.time()),
        ("of-closed", closed, old),
    ):
        said = {"network": "thinker", "checkpoint": str(checkpoint), "options": "{}"}
        write_tensors(weight_cache.path_of(name), {"weight": torch.zeros(10)}, said)
        os.utime(weight_cache.path_of(name), (used, used))
    weight_cache.make_room(1)
    assert {each.name for each in weight_cache.entries()} == {"a", "b", "c", "of-there", "of-gone-today", "of-closed"}


def test_what_others_write_counts(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Two files of 150 bytes, begun at once: the second one does not fit beside the first and the three that are there."""
    free(monkeypatch, 10**6)
    first, second = (weight_cache.folder() / f"writing-{name}" for name in ("first", "second"))
    second_is_in, order = threading.Event(), list[str]()

    def write(path: Path) -> None:
        with weight_cache.claim(150):
            order.append("in")
            path.write_bytes(bytes(150))
            if path == first:
                assert not second_is_in.wait(0.2), "only one of them may look at what is there"
            order.append("out")
        second_is_in.set()

    threads = [threading.Thread(target=write, args=(path,)) for path in (first, second)]
    for thread in threads:
        thread.start()
        while not order:
            time.sleep(0.001)
    for thread in threads:
        thread.join(30)
    assert order == ["in", "out", "in", "out"]
    assert [path.exists() for path in files] == [False, False, False]
    with pytest.raises(OSError, match=r"other processes write .* the cache may have"), weight_cache.claim(100):
        pass
