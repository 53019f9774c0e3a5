"""A chat in a pseudo-terminal: how it ends at the prompt, in a reply and at the start, and that nothing is left of it."""

from __future__ import annotations

import fcntl
import os
import pty
import re
import signal
import struct
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from select import select

import psutil
import pytest

from omni_cli.deploy.writing import dump_json
from omni_core.config.schema import PipelineConfig, StageConfig

STAGE = """
import time
from omni_core.protocol.outputs import TextChunk, TextResult

def speak(payload):
    text = payload.request.inputs["messages"][-1]["content"][-1]["text"]
    yield TextChunk(text.upper())
    for _ in range(600 if text == "long" else 0):
        time.sleep(0.1)
        yield TextChunk(".")
    yield TextResult(text.upper())
"""
SECONDS = 60


class Terminal:
    """``omni`` in a pseudo-terminal of 80 columns."""

    def __init__(self, folder: Path, *arguments: str) -> None:
        parent, child = pty.openpty()
        fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
        environment = {**os.environ, "PYTHONPATH": str(folder), "XDG_STATE_HOME": str(folder), "TERM": "xterm"}
        self._number = parent
        self.shown = ""
        self._read_to = 0
        self.process = subprocess.Popen(
            [sys.executable, "-m", "omni_core.cli", *arguments],
            env=environment,
            stdin=child,
            stdout=child,
            stderr=child,
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(child)

    def until(self, words: str) -> str:
        """Read until ``words`` are shown, after what was read before; return that part."""
        while (at := self.shown.find(words, self._read_to)) < 0:
            if not select([self._number], [], [], SECONDS)[0]:
                pytest.fail(f"{words!r} is not in {self.shown[self._read_to :]!r}")
            data = os.read(self._number, 65536).decode(errors="replace")
            self.shown += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data)
            if "\x1b[6n" in data:  # where is the cursor?
                self.type("\x1b[1;1R")
        start, self._read_to = self._read_to, at + len(words)
        return self.shown[start : self._read_to]

    def type(self, text: str) -> None:
        os.write(self._number, text.encode())

    def end(self) -> int:
        """Wait for the command's end and return its exit code; none of its processes may be left."""
        there = psutil.Process(self.process.pid).children(recursive=True)
        with suppress(OSError):  # the terminal is closed
            self.until("never shown")
        code = self.process.wait(SECONDS)
        _, left = psutil.wait_procs(there, timeout=SECONDS)
        assert not left
        return code

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        os.close(self._number)


@pytest.fixture
def chat(tmp_path: Path) -> Iterator[Terminal]:
    (tmp_path / "upper.py").write_text(STAGE)
    stage = StageConfig(name="speak", process="speak", factory="upper:speak", terminal=True)
    (tmp_path / "upper.json").write_text(dump_json(PipelineConfig(model_path="none", name="upper", stages=[stage])))
    terminal = Terminal(tmp_path, "run", str(tmp_path / "upper.json"))
    yield terminal
    terminal.close()


def test_editing_interrupting_and_sigterm_at_the_prompt(chat: Terminal) -> None:
    chat.until("> ")
    chat.type("helo\x1b[Dl\r")  # Left, then the missing letter
    chat.until("HELLO")
    chat.until("> ")
    chat.type("long\r")
    chat.until("LONG")
    chat.type("typed ahead")
    chat.type("\x03")
    assert "typed" not in chat.until("(reply ended)")
    chat.until("> ")
    chat.type("\x1b[A\x1b[A\r")  # Up, Up: the first message
    chat.until("HELLO")
    chat.until("> ")
    chat.process.send_signal(signal.SIGTERM)
    assert chat.end() == 128 + signal.SIGTERM


def test_ctrl_c_at_the_prompt(chat: Terminal) -> None:
    chat.until("> ")
    chat.type("\x03")
    assert chat.end() == 128 + signal.SIGINT


def test_what_is_typed_in_a_reply_waits_and_sigterm_ends_the_reply(chat: Terminal) -> None:
    chat.type("early")
    chat.until("> ")
    chat.type(" bird\r")
    chat.until("EARLY BIRD")
    chat.until("> ")
    chat.type("long\r")
    chat.until("LONG")
    chat.process.send_signal(signal.SIGTERM)
    assert chat.end() == 128 + signal.SIGTERM


def test_ctrl_c_at_the_start(chat: Terminal) -> None:
    chat.until("starting")
    chat.type("\x03")
    assert chat.end() == 128 + signal.SIGINT
