"""Files of prepared weights are written and mapped in huge pages. What is in them is tested with what fills them, in
test_prepared.py.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from omni_torch.checkpoints import weight_files
from omni_torch.checkpoints.weight_files import map_tensors, write_tensors


class Calls:
    """A file that keeps what each call writes."""

    def __init__(self) -> None:
        self.calls: list[bytes] = []

    def write(self, data: bytes) -> None:
        self.calls.append(bytes(data))


@given(sizes=st.lists(st.integers(0, 40), max_size=8))
def test_calls_begin_and_end_at_huge_pages(sizes: list[int]) -> None:
    parts, page = [bytes([number]) * size for number, size in enumerate(sizes, 1)], 8
    file = Calls()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(weight_files, "HUGE_PAGE", page)
        weight_files._write(file, map(memoryview, parts))  # type: ignore[arg-type]
    assert b"".join(file.calls) == b"".join(parts)
    assert all(len(call) % page == 0 for call in file.calls[:-1])
    assert len(file.calls) <= 2 * len(parts) + 1, "pages of one part are one call"


def test_tensors_across_the_ends_of_pages_come_back(tmp_path: Path) -> None:
    page = weight_files.HUGE_PAGE
    tensors = {
        name: torch.randint(256, (size,), dtype=torch.uint8)
        for name, size in (("a", page - 64), ("b", 3 * page), ("c", 192))
    }
    write_tensors(tmp_path / "file", tensors, {})
    mapped = map_tensors(tmp_path / "file")
    assert all(torch.equal(mapped[name], tensor) for name, tensor in tensors.items())


@pytest.mark.skipif(not Path("/sys/kernel/mm/transparent_hugepage").exists(), reason="a kernel without huge pages")
def test_a_mapping_asks_for_huge_pages(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_tensors(path, {"a": torch.zeros(weight_files.HUGE_PAGE, dtype=torch.uint8)}, {})
    mapped = map_tensors(path)
    entries = re.split(r"^(?=[0-9a-f]+-[0-9a-f]+ )", Path("/proc/self/smaps").read_text(), flags=re.MULTILINE)
    flags = [each.rsplit("VmFlags:", 1)[1].split() for each in entries if str(path) in each]
    assert mapped["a"].numel() == weight_files.HUGE_PAGE
    assert flags
    assert all("hg" in each for each in flags)
