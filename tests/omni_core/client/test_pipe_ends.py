"""The ends of a blocking pipe: closed, dropped, interrupted, forgotten, and a start that fails."""

from __future__ import annotations

import errno
import gc
import json
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import chat_stages
import psutil
import pytest

import omni_core as omni

LONG = "wait " * 400


def test_closing_ends_the_calls_and_the_processes(run_folder: Path) -> None:
    pipe = omni.open(chat_stages.chat_pipeline(run_folder), set={"max_in_flight": 7}, request_timeout=60.0)
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


def test_a_dropped_pipe_ends_its_processes(run_folder: Path) -> None:
    pipe = omni.open(chat_stages.chat_pipeline(run_folder))
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


def test_ctrl_c_aborts_the_request_and_the_exit_ends_the_rest(run_folder: Path) -> None:
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


def test_a_failed_start_is_an_error_and_leaves_nothing(run_folder: Path) -> None:
    with pytest.raises(omni.StartupError, match=r"dumps|not JSON"):
        omni.open(chat_stages.chat_pipeline(run_folder), set={"write.factory": "json:dumps"})
    with pytest.raises(omni.ConfigError, match=r"set max_in_flight=0|max_in_flight: must be at least 1"):
        omni.open(chat_stages.chat_pipeline(run_folder), max_in_flight=0)


def test_only_the_main_thread_takes_ctrl_c(run_folder: Path) -> None:
    """A signal that another thread takes does not wake the main thread, which may wait for a reply."""
    with omni.open(chat_stages.chat_pipeline(run_folder)) as pipe:
        status = Path(f"/proc/self/task/{pipe._thread.thread.native_id}/status").read_text()
    (blocked,) = (line.split()[1] for line in status.splitlines() if line.startswith("SigBlk:"))
    assert int(blocked, 16) & 1 << (signal.SIGINT - 1)


def test_an_event_loop_that_cannot_be_made_is_an_error(run_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_loop() -> None:
        raise OSError(errno.EMFILE, "Too many open files")

    config = chat_stages.chat_pipeline(run_folder)
    monkeypatch.setattr("asyncio.events.new_event_loop", no_loop)
    with pytest.raises(OSError, match="Too many open files"):
        omni.open(config)


FORKS = """
import asyncio, json, multiprocessing, os, signal, sys
from pathlib import Path
import omni_core as omni
import chat_stages

def said(call):
    try:
        return call()
    except omni.OmniError as error:
        return str(error)

def use(pipe, stream, send):
    async def submit():
        return await pipe._pipe.submit(omni.OmniRequest({}))
    send.send([said(lambda: pipe.chat("hi").text), said(lambda: next(stream)), said(lambda: pipe.health()),
        said(lambda: pipe._pipe.health()), said(lambda: asyncio.run(submit())), said(pipe.close)])

def ended(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

pipe = omni.open(chat_stages.chat_pipeline(Path(sys.argv[1])))
stream = pipe.chat("one two three", stream=True, modalities=["text"])
first = next(stream).text
before = pipe.health()
context = multiprocessing.get_context("fork")
receive, send = context.Pipe()
process = context.Process(target=use, args=(pipe, stream, send))
process.start()
answers = receive.recv()
process.join()
by_exit = os.fork()
if not by_exit:
    sys.exit()  # with atexit, and the finalizers of everything
codes = [process.exitcode, ended(by_exit)]
lasting = os.fork()
if not lasting:
    signal.pause()
rest = first + "".join(piece.text for piece in stream)
text, same = pipe.chat("hi").text, pipe.health() == before
pipe.close()  # while a fork has copies of everything
os.kill(lasting, signal.SIGKILL)
print(json.dumps([os.getpid(), answers, codes, rest, text, same, ended(lasting)]))
"""


def test_forks_of_the_program_neither_use_the_pipeline_nor_disturb_it(run_folder: Path) -> None:
    command = [sys.executable, "-W", "ignore", "-c", FORKS, str(run_folder)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ)
    assert done.returncode == 0, done.stderr
    pid, answers, codes, rest, text, same, lasting = json.loads(done.stdout)
    *calls, close = answers
    for each in calls:
        assert re.fullmatch(
            rf"the pipeline was opened in process {pid} and cannot be used in its fork \d+; open one in this process",
            each,
        )
    assert (close, codes, rest, text, same, lasting) == (None, [0, 0], "one two three ", "hi", True, -signal.SIGKILL)
