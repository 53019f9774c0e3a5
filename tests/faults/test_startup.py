"""Ctrl-C and SIGTERM at any moment of ``omni run``: it ends soon, and leaves no children, sockets or memory."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.full

MARK = "OMNI_FAULT_TEST"
MOMENTS = [0.05, 0.2, 0.35, 0.5, 0.65, 0.8, 1.0, 1.3, 1.7, 2.5]
"""Seconds after the start: before there is an event loop, while children import, while they build, while it runs."""

CONFIG = """
model_path: none
endpoints: {{base_path: {folder}}}
stages:
  - {{name: first, factory: "fault_stages:step", factory_args: {{name: first}}, process: first, next: slow}}
  - {{name: slow, factory: "fault_stages:slow_to_build", process: slow, next: last}}
  - {{name: last, factory: "fault_stages:step", factory_args: {{name: last, seconds: 30}}, process: last, terminal: true}}
"""


def marked(mark: str) -> list[int]:
    """Processes that inherited ``mark``."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get(MARK) == mark and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
async def test_signals_at_every_phase(folder: Path, how: signal.Signals) -> None:
    config = folder / "slow.yaml"
    config.write_text(CONFIG.format(folder=folder))

    async def one(moment: float) -> None:
        mark = uuid.uuid4().hex
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "omni_core.cli", "run", str(config), "--text", "hello"),
            env={**os.environ, MARK: mark},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        await asyncio.sleep(moment)
        assert process.returncode is None, (await process.communicate())[0].decode()
        process.send_signal(how)
        begin = time.monotonic()
        output = (await asyncio.wait_for(process.communicate(), 25))[0].decode()  # its last step would take 30 s
        assert process.returncode in {128 + how, -how, 1}, (moment, process.returncode, output)
        # An interrupt while Python imports the command itself is not ours to handle.
        assert "Traceback" not in output or "importlib" in output or moment < 0.3, (moment, output)
        while left := marked(mark):
            assert time.monotonic() - begin < 25, (moment, left)
            await asyncio.sleep(0.05)

    for moments in zip(MOMENTS[::2], MOMENTS[1::2], strict=True):
        await asyncio.gather(*map(one, moments))
    config.unlink()
    assert not list(folder.iterdir())


PHASES = ["resolve", "import", "build", "run"]


@pytest.fixture
def phases_plugin(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install ``phases`` as a plugin; return the folder of its runs."""
    info = folder / "site" / "phases-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: phases\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[omni]\nphases = phases\n")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(info.parent), os.environ["PYTHONPATH"]]))
    left = folder / "run"
    left.mkdir()
    return left


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM])
async def test_a_signal_in_the_middle_of_a_phase(folder: Path, phases_plugin: Path, how: signal.Signals) -> None:
    """A long phase (a download, an import, weights, a step) is interrupted."""

    async def one(phase: str, *options: str) -> None:
        mark, come = uuid.uuid4().hex, folder / f"come{uuid.uuid4().hex}"
        phase_settings = {
            "OMNI_FAULT_PHASE": phase,
            "OMNI_FAULT_MARK": str(come),
            "OMNI_FAULT_FOLDER": str(phases_plugin),
        }
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "omni_core.cli", "run", "phases", "--model", "none", "--text", "hello", *options),
            env={**os.environ, **phase_settings, MARK: mark},
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
        )
        try:
            end = time.monotonic() + 60
            while not come.exists():
                assert process.returncode is None, (await process.communicate())[0].decode()
                assert time.monotonic() < end, phase
                await asyncio.sleep(0.02)
            begin = time.monotonic()
            process.send_signal(how)
            output = (await asyncio.wait_for(process.communicate(), 50))[0].decode()  # each phase would take 60 s
            assert process.returncode in {128 + how, -how}, (phase, process.returncode, output)
            assert "Traceback" not in output, (phase, output)
            while left := [*marked(mark), *phases_plugin.iterdir()]:
                assert time.monotonic() - begin < 50, (phase, left)
                await asyncio.sleep(0.05)
        finally:
            for pid in marked(mark):
                os.kill(pid, signal.SIGKILL)

    for phase in PHASES:
        await one(phase)
    await one("run", "--trace", str(folder / "trace.json"))
