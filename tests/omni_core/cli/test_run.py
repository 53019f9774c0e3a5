"""``omni run`` as omni-core alone has it: one message, one reply, in a process without omni-commands."""

from __future__ import annotations

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from omni_cli.deploy.writing import dump_json
from omni_core.cli.request import assign, given_text, set_at
from omni_core.config.schema import PipelineConfig, StageConfig

STAGES = """
from omni_core.protocol.outputs import AudioResult, ImageResult, TextResult

def reply(payload):
    request = payload.request
    (part,) = request.inputs["messages"][-1]["content"]
    if part["text"] == "fail":
        raise KeyError("gone")
    if part["text"] == "sing":
        return AudioResult([0.0] * 8000, 8000, notices=["a notice"])
    if part["text"] == "draw":
        return ImageResult([[[[0, 0, 0]]]])
    return TextResult(f"{part['text'][::-1]} {request.params} {request.metadata} {request.timeout}")
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    (tmp_path / "replying.py").write_text(STAGES)
    stage = StageConfig(name="reply", process="all", factory="replying:reply", terminal=True)
    path = tmp_path / "replying.json"
    path.write_text(dump_json(PipelineConfig(model_path="none", stages=[stage])))
    return path


def run(
    pipeline: Path, *arguments: str, stdin: int | None = None, said: str | None = None
) -> subprocess.CompletedProcess[str]:
    path = os.pathsep.join([str(pipeline.parent), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "OMNI_DISABLE_PLUGINS": "cli", "PYTHONPATH": path}
    command = [sys.executable, "-m", "omni_core.cli", "run", str(pipeline), *arguments]
    return subprocess.run(
        command, env=environment, stdin=stdin, input=said, capture_output=True, text=True, timeout=60, check=False
    )


def test_a_message_is_answered_with_its_parameters(pipeline: Path) -> None:
    given = ("--param", "heat=1", "--param", "deep.est=x", "--metadata", "who=me", "--timeout", "9")
    answer = run(pipeline, "hello", *given)
    assert (answer.returncode, answer.stdout) == (0, "olleh {'heat': 1, 'deep': {'est': 'x'}} {'who': 'me'} 9.0\n"), (
        answer
    )
    assert "reply: ready" in answer.stderr


def test_json_is_one_document_and_the_message_may_come_from_standard_input(pipeline: Path) -> None:
    answer = run(pipeline, "--json", said=" hello \n\n")
    document = json.loads(answer.stdout)
    assert (document["text"], document["finish_reason"], document["audio_file"]) == (
        "\n olleh  {} {} None",
        "stop",
        None,
    )


@pytest.mark.parametrize(
    ("words", "text", "expected"),
    [
        ((), None, None),
        ((), " a ", " a "),
        ((" a  b ",), None, " a  b "),
        (("a", "b?"), None, "a b?"),
        (("-",), None, "-"),
    ],
)
def test_the_message_is_an_argument_or_an_option(
    words: tuple[str, ...], text: str | None, expected: str | None
) -> None:
    assert given_text({"message": words, "text": text}) == expected


def test_a_message_given_twice_is_refused() -> None:
    with pytest.raises(click.UsageError, match="given twice: as MESSAGE and by --text"):
        given_text({"message": ("a",), "text": "a"})


def test_a_stage_that_fails_says_how_to_see_its_traceback(pipeline: Path) -> None:
    answer = run(pipeline, "fail")
    assert answer.returncode == 1
    assert re.search(
        r"Error: request \w+ failed in stage 'reply': KeyError: 'gone'; --log-level info shows", answer.stderr
    )
    assert 'raise KeyError("gone")' in run(pipeline, "fail", "--log-level", "info").stderr


def test_speech_is_told_of_and_how_to_keep_it(pipeline: Path) -> None:
    answer = run(pipeline, "--text", "sing")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert (
        "a notice\n1.00 s of speech; --out FILE, to keep it, comes with plugin 'cli' of omni-commands" in answer.stderr
    )


def test_an_image_is_told_of_and_how_to_keep_it(pipeline: Path) -> None:
    answer = run(pipeline, "--text", "draw")
    assert (answer.returncode, answer.stdout) == (0, "")
    assert "\nan image; --out FILE, to keep it, comes with plugin 'cli' of omni-commands" in answer.stderr


def test_flags_of_a_plugin_are_told_to_be_its(pipeline: Path) -> None:
    answer = run(pipeline, "--text", "x", "--image", "a.png")
    assert answer.returncode == 2
    assert "--image" in answer.stderr
    assert "come with plugin 'cli' of omni-commands" in answer.stderr


def test_a_chat_without_its_plugin_says_what_to_install(pipeline: Path) -> None:
    parent, child = pty.openpty()
    try:
        answer = run(pipeline, stdin=child)
    finally:
        os.close(parent)
        os.close(child)
    assert answer.returncode == 2
    assert "come with plugin 'cli' of omni-commands" in answer.stderr


def test_what_is_given_twice_is_refused() -> None:
    given: dict[str, object] = {"params": {"text": {"seed": 1}}, "metadata": {}}
    assign(given, {"param": ["text.heat=0.5", "seed=3"], "metadata": ["who=me"]})
    assert given == {"params": {"text": {"seed": 1, "heat": 0.5}, "seed": 3}, "metadata": {"who": "me"}}
    with pytest.raises(click.UsageError, match=r"--param: text\.seed is given twice"):
        assign(given, {"param": ["text.seed=2"], "metadata": []})
    with pytest.raises(click.UsageError, match=r"--param: seed\.more is given twice"):
        set_at(given, ("params", "seed", "more"), 1, "--param")
