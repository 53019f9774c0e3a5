"""The ends of a blocking pipe: closed, dropped, interrupted, forgotten, and a start that fails."""

from __future__ import annotations

import errno
import gc
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType

import psutil
import pytest

import omni_core as omni

LONG = "wait " * 400


def test_closing_ends_the_calls_and_the_processes(stages: ModuleType, run_folder: Path) -> None:
    pipe = omni.open(stages.chat_pipeline(run_folder), set={"max_in_flight": 7}, request_timeout=60.0)
    assert (pipe.config.max_in_flight, pipe.config.request_timeout) == (7, 60.0)
    raised: list[BaseException] = []

    def ask() -> None:
        try:
            for _ in pipe.chat(LONG, stream=True):
                reading.set()
        except BaseException as error:
            raised.append(error)

    reading = threading.Event()
    thread = threading.Thread(target=ask)
    thread.start()
    reading.wait(30)
    pipe.close()
    pipe.close()
    thread.join(30)
    assert [type(each) for each in raised] == [omni.RequestAbortedError]
    with pytest.raises(omni.OmniError, match="closed"):
        pipe.chat("hi")


def test_a_dropped_pipe_ends_its_processes(stages: ModuleType, run_folder: Path) -> None:
    pipe = omni.open(stages.chat_pipeline(run_folder))
    processes = [psutil.Process(pid) for pid in pipe._pipe.process_ids.values()]
    thread = pipe._thread.thread
    del pipe
    gc.collect()
    thread.join(30)
    assert processes
    assert not any(each.is_running() for each in processes)


SCRIPT = """
import sys
from pathlib import Path
import omni_core as omni
import chat_stages

pipe = omni.open(chat_stages.chat_pipeline(Path(sys.argv[1])))
print(*pipe._pipe.process_ids.values(), flush=True)
try:
    for piece in pipe.chat(sys.argv[2], stream=True, modalities=["text"]):
        print("piece", flush=True)
except KeyboardInterrupt:
    print(pipe.statistics()["coordinator"]["requests"]["aborted"], flush=True)
"""


def test_ctrl_c_aborts_the_request_and_the_exit_ends_the_rest(stages: ModuleType, run_folder: Path) -> None:
    command = [sys.executable, "-c", SCRIPT, str(run_folder), LONG]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as script:
        assert script.stdout is not None
        pids = [int(each) for each in script.stdout.readline().split()]
        assert script.stdout.readline() == "piece\n"
        script.send_signal(signal.SIGINT)
        out, errors = script.communicate(timeout=60)
    assert (script.returncode, errors) == (0, "")
    assert out.splitlines()[-1] == "1.0"
    assert pids
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_a_failed_start_is_an_error_and_leaves_nothing(stages: ModuleType, run_folder: Path) -> None:
    with pytest.raises(omni.StartupError, match="no_such_function"):
        omni.open(stages.chat_pipeline(run_folder), set={"write.factory": "chat_stages:no_such_function"})
    with pytest.raises(omni.ConfigError, match=r"set max_in_flight=0|max_in_flight: must be at least 1"):
        omni.open(stages.chat_pipeline(run_folder), max_in_flight=0)


def test_only_the_main_thread_takes_ctrl_c(stages: ModuleType, run_folder: Path) -> None:
    """A signal that another thread takes does not wake the main thread, which may wait for a reply."""
    with omni.open(stages.chat_pipeline(run_folder)) as pipe:
        status = Path(f"/proc/self/task/{pipe._thread.thread.native_id}/status").read_text()
    (blocked,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
    assert int(blocked, 16) & 1 << (signal.SIGINT - 1)


def test_an_event_loop_that_cannot_be_made_is_an_error(
    stages: ModuleType, run_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_loop() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    config = stages.chat_pipeline(run_folder)
    monkeypatch.setattr("asyncio.events.new_event_loop", no_loop)
    with pytest.raises(OSError, match="Too many open files"):
        omni.open(config)
