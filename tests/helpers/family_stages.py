"""Stages that start processes in every way, and answer with their pids."""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from pipelines import make_pipeline

from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.protocol.messages import StagePayload

SLEEP = ["sleep", "1000"]
_kept: list[Any] = []


def _forked(detach: int = 0) -> int:
    """Fork a process that sleeps; its parent has ended, and its session is its own, if it is detached."""
    read, write = os.pipe()
    if os.fork() == 0:
        for _ in range(detach):
            os.setsid()
            if os.fork():
                os._exit(0)
        os.write(write, str(os.getpid()).encode())
        time.sleep(1000)
        os._exit(0)
    if detach:
        os.wait()
    return int(os.read(read, 20))


def _program(**options: Any) -> int:
    _kept.append(subprocess.Popen(SLEEP, **options))
    return int(_kept[-1].pid)


def _daemon_of_a_shell() -> int:
    made = subprocess.run(
        ["setsid", "sh", "-c", "sleep 1000 >/dev/null 2>&1 & echo $!"], stdout=subprocess.PIPE, text=True
    )
    return int(made.stdout)


def _pool() -> list[int]:
    _kept.append(multiprocessing.Pool(2))
    return [each.pid for each in _kept[-1]._pool]


def _process() -> int:
    _kept.append(multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,)))
    _kept[-1].start()
    return int(_kept[-1].pid)


STARTS = {
    "program": _program,
    "program in a session": lambda: _program(start_new_session=True),
    "program without environment": lambda: _program(env={}, executable="/bin/sleep"),
    "fork": _forked,
    "detached fork": lambda: _forked(1),
    "fork detached twice": lambda: _forked(2),
    "daemon of a shell": _daemon_of_a_shell,
    "pool": _pool,
    "process": _process,
}


def start(payload: StagePayload) -> Any:
    found = [STARTS[how]() for how in payload.request.inputs["ways"]]
    return [pid for each in found for pid in (each if isinstance(each, list) else [each])]


def _upper(word: str) -> str:
    return word.upper()


def use(payload: StagePayload) -> Any:
    """End child processes by signals, as ``multiprocessing`` does."""
    with multiprocessing.get_context("fork").Pool(2) as pool:
        words = pool.map(_upper, ["hello", "world"])
    codes = []
    for number in (signal.SIGTERM, signal.SIGINT):
        process = multiprocessing.get_context("fork").Process(target=time.sleep, args=(1000,))
        process.start()
        os.kill(process.pid or 0, number)
        process.join()
        codes.append(process.exitcode)
    return [*words, *codes]


def read_input(payload: StagePayload) -> Any:
    return sys.stdin.read()


def stray(payload: StagePayload) -> Any:
    """Write nine bytes to every socket that has a peer, as if a descriptor had been closed twice, if the request says so."""
    if payload.request.inputs.get("stray"):
        for name in os.listdir("/proc/self/fd"):
            with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(name))) as found:
                if found.family == socket.AF_UNIX and str(found.getpeername()).endswith(
                    payload.request.inputs["stray"]
                ):
                    found.send(b"\5\0\0\0\xc1\xc1\xc1\xc1\xc1")
        time.sleep(1000)
    return payload.request.inputs["n"]


def echo(payload: StagePayload) -> Any:
    return payload.data


def pipeline(folder: Path, factory: str, **fields: Any) -> PipelineConfig:
    stage = StageConfig(name="parent", process="parent", factory=f"family_stages:{factory}", terminal=True, **fields)
    return make_pipeline(folder, stage)
