"""The demo's checkpoint in the formats of 4 bits that people have: `omni run` answers from each as from the plain one."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
import soundfile
from quantized_checkpoints import write_gguf, write_quantized

from demo_training.speech.judge import Judge
from omni_demo.speech.phrases import REPLIES
from omni_demo.speech.pipeline import CHECKPOINT
from omni_qwen3.config import read_config
from omni_qwen3.thinker_network import metadata_of

THINKER = r"^thinker\.model\.layers\.\d+\.(self_attn|mlp)\..*(?<!embed)_proj\.weight$"
BOTH = THINKER.replace("thinker", "(thinker|talker)", 1)


def run(pipeline: str, *options: str) -> str:
    """Ask with `omni run` in a process of its own; return the reply."""
    command = [sys.executable, "-m", "omni_core.cli", "run", pipeline, "--text", "What is your name?", "--json"]
    done = subprocess.run(
        [*command, "--option", "processes=one", *options], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    text: str = json.loads(done.stdout)["text"]
    return text


@pytest.mark.full
def test_a_gptq_folder_answers_in_text_and_speech(tmp_path: Path) -> None:
    """Thinker and talker."""
    write_quantized(CHECKPOINT, tmp_path / "gptq", BOTH, group=32, symmetric=False)
    out = tmp_path / "reply.wav"
    assert run(str(tmp_path / "gptq"), "--out", str(out)) == "My name is Omni."
    assert Judge(REPLIES).hear(soundfile.read(out, dtype="float32")[0]) == "My name is Omni."


@pytest.mark.full
def test_an_awq_folder_answers(tmp_path: Path) -> None:
    write_quantized(CHECKPOINT, tmp_path / "awq", THINKER, method="awq", group=64, symmetric=False)
    assert run("qwen3-omni", "--model", str(tmp_path / "awq"), "--no-speech") == "My name is Omni."


def test_a_gguf_thinker_answers_in_text_and_speech(tmp_path: Path) -> None:
    pytest.importorskip("gguf")
    path = write_gguf(
        CHECKPOINT, tmp_path / "t.gguf", "Q4_0", metadata_of(read_config(CHECKPOINT).thinker), prefix="thinker."
    )
    out = tmp_path / "reply.wav"
    assert run("demo", "--set", f"thinker.factory_args.gguf={path}", "--out", str(out)) == "My name is Omni."
    assert Judge(REPLIES).hear(soundfile.read(out, dtype="float32")[0]) == "My name is Omni."
