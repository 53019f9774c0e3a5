"""``omni batch`` as a command: killed, and gone on with; wrong arguments."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from omni_cli.deploy.writing import dump_json
from omni_core.config.schema import PipelineConfig, StageConfig
from omni_core.interface import Interface, Parameter

STAGE = """
import os, time
from omni_core.protocol.outputs import TextResult

def speak(payload):
    request = payload.request
    text = request.inputs["messages"][-1]["content"]
    with open(os.environ["ASKED"], "a") as file:
        file.write(text + "\\n")
    while text == "line 25" and not os.path.exists("go on"):
        time.sleep(0.01)
    if text == "fail":
        raise ValueError("on purpose")
    return TextResult(text.upper() * request.params.get("times", 1))
"""
COUNT = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "upper.py").write_text(STAGE)
    stage = StageConfig(name="speak", process="speak", factory="upper:speak", terminal=True)
    interface = Interface(inputs=["text"], outputs=["text"], params=[Parameter("times", "integer", "how often")])
    config = PipelineConfig(model_path="none", name="upper", stages=[stage], interface=interface)
    (tmp_path / "upper.json").write_text(dump_json(config))
    lines = [{"text": f"line {number}"} for number in range(COUNT)]
    lines[3] = {"text": "fail"}
    lines[5] = {"text": "two", "times": 2}  # type: ignore[dict-item]
    lines[7] = {"text": "typo", "tmes": 2}  # type: ignore[dict-item]
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path


def batch(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "omni_core.cli", "batch", "in.jsonl", "out.jsonl", "upper.json", *arguments]
    environment = {**os.environ, "PYTHONPATH": str(folder), "ASKED": str(folder / "asked")}
    return subprocess.Popen(command, cwd=folder, env=environment, text=True, stderr=subprocess.PIPE)


def test_a_killed_batch_goes_on_where_it_was(folder: Path) -> None:
    out = folder / "out.jsonl"
    first = batch(folder, "--at-once", "2")
    while not (out.exists() and out.read_bytes().count(b"\n") >= 10):
        assert first.poll() is None, first.communicate()[1]
        time.sleep(0.01)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    (folder / "go on").touch()
    answered = out.read_bytes().count(b"\n")
    assert answered < COUNT
    out.write_bytes(out.read_bytes() + b'{"id": "half a li')
    asked = (folder / "asked").read_text().splitlines()
    second = batch(folder, "--times", "1")
    errors = second.communicate(timeout=200)[1]
    assert second.returncode == 1, errors
    assert f"out.jsonl holds {answered} of {COUNT} answers; going on" in errors
    assert f"{COUNT} lines answered, 2 of them by an error" in errors
    answers = [json.loads(line) for line in out.read_text().splitlines()]
    assert [answer["line"] for answer in answers] == [*range(1, COUNT + 1)]
    assert answers[0]["text"] == "LINE 0"
    assert answers[5]["text"] == "TWOTWO"
    assert (answers[3]["error"]["type"], answers[3]["error"]["stage"]) == ("ValueError", "speak")
    assert "did you mean 'times'?" in answers[7]["error"]["message"]
    again = (folder / "asked").read_text().splitlines()[len(asked) :]
    assert len(again) == COUNT - answered - (answered < 8), "those in flight at the kill, and those never asked"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--tmes", "2"], 2, "No such option"),
        (["--audio-dir", "x", "--no-speech"], 2, "remove --no-speech"),
        (["--times", "x"], 2, "must be an integer"),
        (["--at-once", "100000"], 2, "for more, add --set max_in_flight=100000"),
    ],
)
def test_wrong_arguments(folder: Path, arguments: list[str], code: int, words: str) -> None:
    done = batch(folder, *arguments)
    assert words in done.communicate(timeout=200)[1]
    assert done.returncode == code
    assert not (folder / "out.jsonl").exists()
