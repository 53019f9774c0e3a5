"""A stage process ends when it is told to, and when its parent is gone, whatever its threads do."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from omni_core.protocol.codec import encode
from omni_core.protocol.specs import ProcessSpec

PROGRAM = """
import asyncio, sys, time
from omni_core.processes import main, worker

class Worker:
    exit_code = 3
    def __init__(self, *_): self.stopped = asyncio.Event()
    def build(self, begin): asyncio.get_running_loop().run_in_executor(None, time.sleep, 60)
    def start(self): print("ready", flush=True)
    def close(self): pass

worker.Worker = Worker
main.die_with_parent = lambda: None
main.run_stage_process(int(sys.argv[1]), int(sys.argv[2]))
"""


@pytest.mark.parametrize("by", ["lifeline", "signal"])
def test_a_thread_of_its_executor_does_not_hold_it(by: str) -> None:
    spec = ProcessSpec(name="p", stages=[], endpoint="omni://r/p", coordinator_endpoint="omni://r", stage_endpoints={})
    document, written = os.pipe()
    os.write(written, bytes(encode(spec)))
    os.close(written)
    lifeline, parent = os.pipe()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(document), str(lifeline)],
        pass_fds=(document, lifeline),
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(document)
    os.close(lifeline)
    assert process.stderr is not None
    assert any('"message": "ready"' in line for line in iter(process.stderr.readline, ""))  # a record of its log
    if by == "signal":
        process.terminate()
    else:
        os.close(parent)
    assert process.wait(20) == 3
    process.stderr.close()
    if by == "signal":
        os.close(parent)
