"""The command line: wrong arguments, a whole run of a small pipeline, JSON, interruption."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path

import pytest
from attrs import evolve
from click.testing import CliRunner
from tiers import few

from omni_cli.deploy.writing import dump_json
from omni_core.cli.main import omni
from omni_core.config.schema import PipelineConfig, StageConfig

HERE = Path(__file__).parent
SLOW = {"asyncio", "cattrs", "importlib.metadata", "omni_core.config.loading", "ruamel.yaml", "torch"}
SPEAKING = """
import logging, math, time
from omni_core.protocol.messages import StagePayload
from omni_core.protocol.outputs import AudioChunk, AudioResult, TextResult, TextChunk
from omni_core.scheduling.base import MessageQueue, OutgoingMessage

def words(payload: StagePayload):
    content = payload.request.inputs["messages"][-1]["content"]
    text = " ".join(part.get("text", part["type"]) for part in content)
    for voice in payload.request.inputs.get("references", []):
        text += f" {voice['path'].rsplit('/')[-1]}={voice.get('text')}"
    if text == "slow":
        time.sleep(30)
    if text == "loud":
        print("printed", text)
        logging.getLogger("mine").warning("warned of %s", text)
    return {"text": text[::-1]}

class Speak:
    def __init__(self):
        self.inbox, self.outbox = MessageQueue(), MessageQueue()
    def start(self):
        while (message := self.inbox.get()) is not None:
            text, name = message.data.data["text"], message.request_id
            for letter in text:
                self.outbox.put(OutgoingMessage(name, "stream", TextChunk(letter)))
            tone = [0.3 * math.sin(i / 10) for i in range(8000 * (len(text) > 0))]
            self.outbox.put(OutgoingMessage(name, "stream", AudioChunk(tone, 8000)))
            self.outbox.put(OutgoingMessage(name, "result", TextResult(text, notices=["a notice"])))
    def stop(self):
        self.inbox.close()
    def abort(self, request_id):
        pass
"""


@pytest.fixture
def pipeline(tmp_path: Path) -> Path:
    (tmp_path / "speaking.py").write_text(SPEAKING)
    config = PipelineConfig(
        model_path="none",
        name="speaking",
        stages=[
            StageConfig(name="words", process="all", factory="speaking:words", next="speak"),
            StageConfig(name="speak", process="all", factory="speaking:Speak", terminal=True),
        ],
    )
    (tmp_path / "speaking.json").write_text(dump_json(config))
    (tmp_path / "broken.json").write_text(dump_json(evolve(config, entry_stage="nowhere")))
    (tmp_path / "misspelt.json").write_text(dump_json(config).replace('"factory":', '"facotry":', 1))
    return tmp_path / "speaking.json"


def started(pipeline: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        command(*arguments), env=environment(pipeline), capture_output=True, text=True, timeout=200, check=False
    )


def command(*arguments: str) -> list[str]:
    return [sys.executable, "-m", "omni_core.cli", *arguments]


def environment(pipeline: Path) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join([str(pipeline.parent), os.environ.get("PYTHONPATH", "")])}


def test_one_reply_in_text_and_sound(pipeline: Path, tmp_path: Path) -> None:
    out = tmp_path / "reply.wav"
    answer = started(pipeline, "run", str(pipeline), "--out", str(out), "hello")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "olleh\n"
    assert "a notice" in answer.stderr
    assert "1.00 s of speech" in answer.stderr
    with wave.open(str(out)) as file:
        assert (file.getframerate(), file.getnchannels(), file.getsampwidth(), file.getnframes()) == (8000, 1, 2, 8000)


def test_speech_that_is_not_kept_is_told(pipeline: Path) -> None:
    answer = started(pipeline, "run", str(pipeline), "hello")
    assert "1.00 s of speech at 8000 Hz; --out speech.wav keeps it." in answer.stderr.splitlines()


def test_a_message_from_standard_input_and_speech_to_standard_output(pipeline: Path) -> None:
    answer = subprocess.run(
        command("run", str(pipeline), "--out", "-"),
        env=environment(pipeline),
        input=b"hello\n",
        capture_output=True,
        timeout=200,
        check=False,
    )
    assert answer.returncode == 0, answer.stderr
    assert b"olleh\n" in answer.stderr
    assert answer.stdout[:4] == b"RIFF"
    assert len(answer.stdout) == 44 + 2 * 8000


def test_json_is_one_document(pipeline: Path) -> None:
    answer = started(pipeline, "run", str(pipeline), "--text", "hello", "--json")
    document = json.loads(answer.stdout)
    assert (document["text"], document["finish_reason"], document["audio_seconds"]) == ("olleh", "stop", 1.0)


@pytest.mark.parametrize(
    ("arguments", "code", "type_", "words"),
    [
        (["--max-tokens", "5"], 2, "NoSuchOption", ["--max-tokens", "declares no parameters"]),
        (["--set", "wrods.gpu=1"], 1, "ConfigError", ["did you mean 'words'"]),
        (["--set", "speak.factory=speaking:nothing"], 1, "ConfigError", ["has no attribute 'nothing'"]),
        (["--set", "speak.factory=absent:nothing"], 1, "ConfigError", ["absent"]),
        (["--reference-text", "y"], 2, "UsageError", ["--reference FILE"]),
    ],
)
def test_json_errors_are_documents_too(
    pipeline: Path, arguments: list[str], code: int, type_: str, words: list[str]
) -> None:
    answer = started(pipeline, "run", str(pipeline), "--text", "hello", "--json", *arguments)
    error = json.loads(answer.stdout)["error"]
    assert (answer.returncode, error["type"]) == (code, type_)
    for word in words:
        assert word in error["message"]


def said(*arguments: str, code: int = 0) -> str:
    """All that a command says that starts no pipeline, in the process of the tests."""
    result = CliRunner().invoke(omni, arguments)
    assert bool(result.exit_code) == bool(code), result.output
    assert "/2]" not in result.output, "the pipeline was started"
    return f"{result.output}{result.exception or ''}"


def test_parameters_that_a_config_declares_have_flags(pipeline: Path, tmp_path: Path) -> None:
    values = json.loads(pipeline.read_text())
    heat = {"name": "heat", "type": "number", "help": "how hot", "maximum": 2}
    values["interface"] = {"inputs": ["text"], "outputs": ["text", "audio"], "params": [heat]}
    declared, picture = tmp_path / "declared.json", tmp_path / "a.png"
    picture.write_bytes(b"\x89PNG\r\n\x1a\n")
    declared.write_text(json.dumps(values))
    assert started(pipeline, "run", str(declared), "--text", "hello", "--param", "heat=1").stdout == "olleh\n"
    assert "--heat NUMBER  How hot  [at most 2]" in said("run", str(declared), "--help")
    for arguments, words in (
        (["--heat", "3"], "must be a number, at most 2"),
        (["--param", "haet=1"], "params.haet: no such parameter; did you mean 'heat'?"),
        (["--metadata", "speaker=x"], "metadata.speaker: no such key"),
        (["--image", str(picture)], "takes no 'image'"),
    ):
        assert words in said("run", str(declared), "--text", "hello", *arguments, code=1)
    values["interface"]["outputs"] = ["text"]
    declared.write_text(json.dumps(values))
    out = str(tmp_path / "x.wav")
    assert "answers in text only" in said("run", str(declared), "--text", "hello", "--out", out, code=1)


def test_flags_are_completed(pipeline: Path) -> None:
    def completed(words: str) -> str:
        environ = {**environment(pipeline), "_OMNI_COMPLETE": "bash_complete", "COMP_WORDS": words, "COMP_CWORD": "3"}
        code = "from omni_core.cli.main import omni; omni(prog_name='omni')"
        return subprocess.run(
            [sys.executable, "-c", code], env=environ, capture_output=True, text=True, timeout=200, check=False
        ).stdout

    values = json.loads(pipeline.read_text())
    values["interface"] = {"params": [{"name": "heat", "type": "number", "help": "how hot"}]}
    pipeline.write_text(json.dumps(values))
    assert "--heat" in completed(f"omni run {pipeline} --he")
    assert "--text" in completed("omni run nothing-like-it --te")


def test_voices_of_recordings_are_inputs(pipeline: Path, tmp_path: Path) -> None:
    for name in ("one.wav", "two.wav"):
        (tmp_path / name).write_bytes(b"RIFF\0\0\0\0WAVE")
    voices = ["--reference", str(tmp_path / "one.wav"), "--reference", str(tmp_path / "two.wav")]
    answer = started(pipeline, "run", str(pipeline), "--text", "hello", *voices, "--reference-text", "first words")
    assert answer.stdout.strip()[::-1] == "hello one.wav=first words two.wav=None"


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    few(
        [
            (["run", "{pipeline}", "--text", "x", "--reference-text", "y"], 2, ["--reference FILE"]),
            (["run", "{pipeline}", "--text", "x", "--reference", "/nowhere.wav"], 2, ["/nowhere.wav"]),
            (["run", "nothing-like-it", "--text", "x"], 1, ["nothing-like-it", "omni pipelines"]),
            (["run", "{pipeline}"], 2, ["nothing to answer"]),
            (["run", "{pipeline}", "--image", "/nowhere.png"], 2, ["/nowhere.png"]),
            (["run", "{pipeline}", "--text", "x", "--out", "/nowhere/x.wav"], 2, ["/nowhere"]),
            (["run", "{pipeline}", "--text", "x", "--set", "wrods.gpu=1"], 1, ["wrods", "did you mean 'words'"]),
            (["run", "{pipeline}", "--text", "x", "--no-speech", "--out", "x.wav"], 2, ["--no-speech"]),
            (["run", "{pipeline}", "--text", "x", "--out", "{pipeline}"], 2, ["exists and is no WAV file"]),
            (["run", "{pipeline}", "--text", "x", "--play"], 2, ["--play is for a chat", "--out - | aplay -"]),
            (["chat", "{pipeline}"], 2, ["a chat needs a terminal"]),
            (["config", "validate", "{folder}/broken.json"], 1, ["entry_stage", "nowhere"]),
            (["plugins", "show", "nobody"], 1, ["nobody"]),
            (
                ["run", "{pipeline}", "--text", "x", "--option", "gpu=0"],
                1,
                ["--option gpu: a config file has no options"],
            ),
            (
                ["run", "{pipeline}", "--text", "x", "--set", "words.tp_size=0"],
                1,
                ["--set words.tp_size=0: stages[words].tp_size: must be at least 1"],
            ),
            (
                ["config", "validate", "{folder}/misspelt.json"],
                1,
                ["stages[words].facotry: unknown field; did you mean"],
            ),
            (
                ["plan", "{pipeline}", "--set", "words.gpu=7", "--gpus", "1"],
                1,
                ["--set words.gpu=7: stages[words].gpu: GPU 7"],
            ),
            (
                ["plan", "demo", "--option", "dtype=bf16"],
                1,
                ["--option dtype=bf16: there is no such dtype; did you mean 'bfloat16'?"],
            ),
            (
                ["plan", "demo", "--option", "gpuu=1"],
                1,
                ["--option gpuu: there is no such option; did you mean 'gpu'?"],
            ),
            (["plan", "dmeo"], 1, ["no pipeline is called 'dmeo'; did you mean 'demo'? (`omni pipelines`"]),
            (["tiny-checkpoint", "qwen3", "/dev/null/x"], 1, ["/dev/null"]),
            (
                ["run", "{pipeline}", "--text", "x", "--set", "speak.factory=speaking:nothing"],
                1,
                ["'speak'", "nothing"],
            ),
            (["rnu"], 2, ["no such command 'rnu'; did you mean 'run'?"]),
        ],
        8,
    ),
)
def test_wrong_arguments_are_one_clear_message(
    pipeline: Path, arguments: list[str], code: int, words: list[str]
) -> None:
    filled = [argument.format(pipeline=pipeline, folder=pipeline.parent) for argument in arguments]
    answer = started(pipeline, *filled)
    assert answer.returncode == code, answer.stderr
    assert "Traceback" not in answer.stderr
    for word in words:
        assert word in answer.stderr


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"TMPDIR": "/nowhere"}, "TMPDIR=/nowhere is not a folder that can be written"),
        ({"stdout": "/dev/full"}, "No space left on device"),
        ({"cwd": "gone"}, "the working directory has been deleted: change to one that exists"),
    ],
    ids=["TMPDIR", "stdout", "cwd"],
)
def test_system_errors_are_one_line(pipeline: Path, tmp_path: Path, change: dict[str, str], words: str) -> None:
    settings = environment(pipeline) | {name: value for name, value in change.items() if name == "TMPDIR"}
    settings["PYTHONPATH"] = str(pipeline.parent)  # an empty entry in it means the working directory
    folder = tmp_path / "gone"
    folder.mkdir()
    arguments = ["config", "show", "speaking.json"] if "cwd" in change else ["config", "show", str(pipeline)]
    remove = f"rmdir {folder}; " if "cwd" in change else ""
    line = f"{remove}exec {' '.join(command(*arguments))}"
    line += f" > {change['stdout']}" if "stdout" in change else ""
    done = subprocess.run(
        ["bash", "-c", line], env=settings, cwd=folder, capture_output=True, text=True, timeout=200, check=False
    )
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1), done.stderr
    assert done.stderr.startswith("Error: ")
    assert words in done.stderr


def test_output_of_plugins_is_not_in_the_reply(pipeline: Path) -> None:
    folder = pipeline.parent
    (folder / "chatty_plugin.py").write_text("print('hello from the import')\n")
    info = folder / "chatty-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: chatty\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[omni]\nchatty = chatty_plugin\n")
    answer = started(pipeline, "run", str(pipeline), "--text", "hello", "--json")
    assert json.loads(answer.stdout)["text"] == "olleh"
    assert "hello from the import" in answer.stderr


def test_prints_and_warnings_of_stages_are_in_the_log(pipeline: Path) -> None:
    answer = started(pipeline, "run", str(pipeline), "--text", "loud", "--json", "--log-format", "json")
    assert json.loads(answer.stdout)["text"] == "duol"
    records = [json.loads(line) for line in answer.stderr.splitlines() if line.startswith("{")]
    found = {(each["level"], each["logger"], each["stage"], each["message"]) for each in records}
    assert found == {("INFO", "print", "words", "printed loud"), ("WARNING", "mine", "words", "warned of loud")}
    assert len({each["request_id"] for each in records}) == 1
    quiet = started(pipeline, "--log-level", "error", "run", str(pipeline), "--text", "loud")
    assert "loud" not in quiet.stderr


def test_config_commands(pipeline: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(str(pipeline.parent))
    assert json.loads(said("config", "show", str(pipeline)))["name"] == "speaking"
    assert "2 stages in 1 processes, valid" in said("config", "validate", str(pipeline))
    assert "words --> speak" in said("config", "graph", str(pipeline), "--format", "mermaid")


def test_ctrl_c_ends_every_process_without_a_traceback(pipeline: Path) -> None:
    process = subprocess.Popen(
        command("run", str(pipeline), "--text", "slow"),
        env=environment(pipeline),
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    for line in process.stderr:
        if "2/2" in line:
            break
    time.sleep(0.3)
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in errors


@pytest.mark.parametrize("arguments", [["--help"], ["run", "--help"]])
def test_help_imports_nothing_that_takes_long(arguments: list[str]) -> None:
    code = f"""import sys
from omni_core.cli.main import omni
omni.main({arguments!r}, standalone_mode=False)
print({SLOW!r} & sys.modules.keys())"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "set()"
