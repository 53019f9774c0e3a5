"""torch is imported when a tensor comes, beside the event loop, and not before."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest

from omni_core.protocol import lazy_torch, tensors


def test_the_codec_imports_no_toolkit_for_plain_values() -> None:
    code = (
        "import sys\n"
        "from omni_core.protocol.codec import decode, encode\n"
        "import omni_core.protocol.tensors, omni_core.relay.transfer, omni_core.control.plane\n"
        "assert decode(encode({'a': (1, [2.0])})) == {'a': (1, [2.0])}\n"
        "print(sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"


async def test_the_event_loop_runs_while_torch_is_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_torch, "_coming", None)
    turns: list[int] = []
    done = asyncio.get_running_loop().create_future()
    loop = asyncio.get_running_loop()

    def slow() -> None:
        loop.call_soon_threadsafe(turns.append, 1)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(5)  # fails if the loop stands still
        loop.call_soon_threadsafe(done.set_result, None)

    monkeypatch.setattr(lazy_torch, "import_torch", slow)
    assert not lazy_torch.is_here()
    assert lazy_torch.begin() is lazy_torch.begin(), "once, however many ask"
    await asyncio.wait_for(lazy_torch.bring(), 5)
    assert lazy_torch.is_here()
    await done
    assert turns == [1]


async def test_an_import_that_failed_is_an_error_and_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy_torch, "_coming", None)
    attempts: list[int] = []

    def broken() -> None:
        attempts.append(1)
        if len(attempts) == 1:
            raise OSError("libtorch_cpu.so: no such file")

    monkeypatch.setattr(lazy_torch, "import_torch", broken)
    with pytest.raises(ImportError, match="torch: libtorch_cpu"):
        await lazy_torch.bring()
    assert not lazy_torch.is_here()
    await lazy_torch.bring()
    assert lazy_torch.is_here()


def test_importing_torch_twice_gives_one_module() -> None:
    assert tensors.import_torch() is tensors.import_torch()
