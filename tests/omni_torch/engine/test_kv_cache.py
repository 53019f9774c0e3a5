"""The memory of the KV cache."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from omni_core.api import KVLayout
from omni_torch.engine.kv_cache import KVCache


def private() -> int:
    """Return the KiB of memory that this process alone has written."""
    lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("Private_Dirty:"))


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_a_short_request_takes_little_memory_of_a_large_cache() -> None:
    """Also where numpy, or a library below it, would ask for pages of 2 MiB."""
    cache = KVCache(KVLayout(16, 4, 64, torch.float32), 512, 16, torch.device("cpu"))  # 32 tensors of 8 MiB
    assert not any(each.any() for each in (cache.keys[0], cache.values[-1]))
    before = private()
    for each in (*cache.keys, *cache.values):
        each[:16] = 1.0
    assert private() - before < 16 * 1024
    cache.keys[0][:] = 1.0  # to the last of it
