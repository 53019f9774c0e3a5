"""Memory that loading has needed goes back to the system, and no value is lost."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from omni_torch.processes.freed_memory import return_freed_memory, unchanged

SMAPS = """\
7f0000000000-7f0000400000 rw-p 00000000 fe:00 29 {0}
Rss:                4096 kB
Anonymous:             {1} kB
7f0000500000-7f0000600000 r-xp 00000000 fe:00 31 /lib/libc.so.6
Rss:                1024 kB
Anonymous:             0 kB
"""


@pytest.mark.parametrize(
    ("file", "written", "found"),
    [
        ("/models/my model.safetensors", 0, True),
        ("/models/a.gguf", 0, True),
        ("/models/a.safetensors", 4, False),  # a page of it is this process's own
        ("/models/a.safetensors (deleted)", 0, False),
        ("/lib/libtorch.so", 0, False),
    ],
)
def test_only_unchanged_files_of_weights_are_let_go(file: str, written: int, found: bool) -> None:
    places = list(unchanged(SMAPS.format(file, written).splitlines()))
    assert places == ([(0x7F0000000000, 0x7F0000400000)] if found else [])
    assert not list(unchanged(SMAPS.replace("rw-p", "rw-s").format(file, written).splitlines()))


def resident(path: Path) -> int:
    """Return the KiB of a mapped file that are in this process's memory."""
    smaps = Path("/proc/self/smaps").read_text()
    return sum(int(each) for each in re.findall(rf"{re.escape(str(path))}\n(?:.*\n)*?Rss: +(\d+)", smaps))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_pages_of_weights_are_let_go_and_come_back(tmp_path: Path) -> None:
    values = torch.arange(1 << 20, dtype=torch.float32)
    mapped = {}
    for name in ("kept", "written"):
        save_file({"w": values}, tmp_path / f"{name}.safetensors")
        with safe_open(tmp_path / f"{name}.safetensors", "pt") as file:
            mapped[name] = file.get_tensor("w")
        assert torch.equal(mapped[name], values)
    mapped["written"][7] = -1.0
    return_freed_memory()
    assert resident(tmp_path / "kept.safetensors") == 0
    assert resident(tmp_path / "written.safetensors") >= 4096
    assert mapped["written"][7] == -1.0
    assert torch.equal(mapped["kept"], values)
